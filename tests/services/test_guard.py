"""The servers of a test run end with it."""

import subprocess
import sys
import time
from pathlib import Path

from tests.services.guard import marked

RUN = """
import sys, time
from pathlib import Path
from tests.services import guard
from tests.services.mail import MailServer

with guard.watch():
    server = MailServer(Path(sys.argv[1]))
    server.start_first()
    print("started", flush=True)
    time.sleep(600)
"""


def test_servers_do_not_survive_a_killed_test_run(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "server")], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        assert marked(str(run.pid))
        run.kill()
    until_s = time.monotonic() + 30.0
    while marked(str(run.pid)):
        assert time.monotonic() < until_s
        time.sleep(0.02)  # between two looks at processes of another program
