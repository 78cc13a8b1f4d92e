"""`python -m benchmarks [NAME …]`: runs the benchmarks named, or all of them."""

import importlib
import sys

OTHERS = ("previous",)  # needs PREVIOUS=DIR, the checkout to compare with
ALL = (
    "startup",
    "memory",
    "latency",
    "throughput",
    "where_time_goes",
    "held_loop",
    "load_models",
    "rpc",
    "membership",
    "ledger",
    "ledger_scale",
    "cluster",
    "reports",
    "gates",
    "clients",
    "websocket",
    "sse",
)


def main() -> None:
    names = sys.argv[1:] or ALL
    known = (*ALL, *OTHERS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    for name in names:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


main()
