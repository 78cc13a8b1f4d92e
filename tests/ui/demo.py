"""The UI on an imagined run: for looking at it, and what the terminal tests start.

`python tests/ui/demo.py --ui full --seconds 20`; SIGUSR1 ends it early.
"""

import argparse
import os
import resource
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hyperscale.ui import open_ui
from tests.ui import scenes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ui", default="full")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--start", type=float, default=0.0)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--scene", default="shop")
    parser.add_argument("--saturated", action="store_true")
    parser.add_argument("--end", choices=("finish", "raise", "return", "exit"), default="finish")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--report-updates", action="store_true")
    parser.add_argument("--then", help="run this code instead of the demo")
    options = parser.parse_args()
    if options.then:
        exec(options.then, {})
    ended: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: ended.append(number))
    started_s = time.monotonic()
    cpu_s = time.process_time()
    slowest_s = 0.0
    with open_ui(options.ui, quiet=options.quiet) as ui:
        shown = 0
        while (elapsed_s := time.monotonic() - started_s) < options.seconds and not ended:
            at_s = options.start + elapsed_s * options.speed
            view = scenes.shop(at_s, saturated=options.saturated)
            if options.scene == "one":
                view = scenes.run(scenes.running(elapsed_s=at_s))
            elif options.scene == "steps":
                view = scenes.run(scenes.many_steps(elapsed_s=at_s))
            elif options.scene == "workflows":
                view = scenes.many_workflows(at_s)
            if options.hostile:
                view = scenes.hostile(view)
            before_s = time.perf_counter()
            ui.update(view)
            ui.log(f"line {shown} of user code\x1b[31m\x1b]0;owned\x07\n")
            slowest_s = max(slowest_s, time.perf_counter() - before_s)
            shown += 1
            time.sleep(0.1)
        if options.report_updates:
            sys.stderr.write(f"updates {shown}\n")
            sys.stderr.flush()
        if options.end == "raise":
            raise RuntimeError("the run broke")
        if options.end == "return":
            return 0
        if options.end == "exit":
            os._exit(0)
        ui.finish(scenes.result())
    used_s = time.process_time() - cpu_s
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stderr.write(
        f"cpu {used_s / (time.monotonic() - started_s):.1%}  "
        f"slowest update {slowest_s * 1e6:.0f}us  {memory_mb:.0f} MB\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
