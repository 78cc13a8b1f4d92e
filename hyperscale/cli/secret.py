"""`hyperscale secret`: a strong cluster secret, printed or in a file only its owner can read."""

import argparse
import sys
from pathlib import Path

from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Makes a strong cluster secret (256 bits). Every node of a cluster has the same one; with it
they recognise each other and seal what they send. There is no default, and fewer than 16
characters are refused. A node without a secret and without certificates uses loopback only.
"""
_EPILOG = """\
examples:
  hyperscale secret                          print one
  hyperscale secret --out cluster.secret     write one, readable by you alone (mode 0600)

to rotate without losing a message, go through all nodes three times:
  1. give every node the new secret as its previous one (both are accepted from now on)
  2. swap them: the new one is the secret, the old one the previous
  3. drop the previous one; from here on the old secret is refused
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "secret",
        help="make a strong cluster secret",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write it here, mode 0600; an existing file is not touched"
    )


def run(args: argparse.Namespace) -> int:
    from hyperscale.wire.cluster_secret import make_secret, write_secret_file

    secret = make_secret()
    if args.out is None:
        print(secret)
        return 0
    write_secret_file(Path(args.out), secret)
    print(f"wrote {args.out}", file=sys.stderr)
    return 0
