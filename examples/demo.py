"""`make demo`: a target on a free port, ten seconds of load against it, a report.

Not a test file: it starts the built-in target inside itself and runs `quickstart.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

from hyperscale._native import Target

QUICKSTART = Path(__file__).with_name("quickstart.py")


def main() -> int:
    target = Target()
    try:
        environment = {**os.environ, "TARGET": f"http://127.0.0.1:{target.port}"}
        command = [sys.executable, "-m", "hyperscale.cli.main", "run", os.path.relpath(QUICKSTART)]
        with subprocess.Popen([*command, *sys.argv[1:]], env=environment) as run:
            while True:
                try:
                    return run.wait()
                except KeyboardInterrupt:
                    continue  # the run heard it too, and ends in order
    finally:
        target.stop()


if __name__ == "__main__":
    sys.exit(main())
