"""What a run is made of, read from what a user wrote."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hyperscale.runner.source import LoadedTest, load_test_file

FILE = """
from hyperscale import Workflow, step
from {own} import path

class Shop(Workflow):
    vus = 1

    @step()
    async def home(self):
        return await self.client.http.get(f"http://127.0.0.1:1/{{path()}}")
"""


def test_files_can_be_loaded_in_many_threads_at_once(tmp_path: Path) -> None:
    files = []
    for number in range(24):
        own = f"own_{number}"
        folder = tmp_path / own
        folder.mkdir()
        filler = "\n".join(f"def f{line}(): return [{line}, ({line}, {{}})]" for line in range(300))
        (folder / f"{own}.py").write_text(f"def path(): return '{own}'\n{filler}\n")
        (folder / "test_shop.py").write_text(FILE.format(own=own))
        files.append(folder / "test_shop.py")

    def bundle(job: LoadedTest) -> str:
        return job.code["Shop"].bundle.name  # the digest of its modules

    def give_way(*_: object) -> None:
        time.sleep(0)

    # Collecting garbage runs finalizers, and so lets other threads go on wherever a thread is.
    gc.callbacks.append(give_way)
    try:
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(load_test_file, files))
    finally:
        gc.callbacks.remove(give_way)

    assert [bundle(job) for job in together] == [bundle(load_test_file(file)) for file in files]
