"""`hyperscale secret`: generate a cluster secret, printed or in a file only its owner can read."""

import argparse
import sys
from pathlib import Path

from hyperscale.wire.cluster_secret import make_secret, write_secret_file

DESCRIPTION = """\
Generate a strong cluster secret (256 bits). All nodes of a cluster share it: it authenticates them
to each other and encrypts their traffic. There is no default secret, and a secret of fewer than 16
characters is refused. A node with neither a secret nor certificates listens on loopback only.
"""
EPILOG = """\
examples:
  hyperscale secret                          print a new secret
  hyperscale secret --out cluster.secret     write it to a file with mode 0600

To rotate the secret without downtime, change the secret files of all nodes three times; nodes read
them again within seconds, or on SIGHUP:
  1. the new secret as previous secret: nodes accept both secrets
  2. the two exchanged: the new secret is the secret, the old one the previous secret
  3. the new secret in both files: nodes refuse the old secret
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "write to FILE with mode 0600; an existing file is never overwritten"
    parser.add_argument("--out", metavar="FILE", help=about)


def run(args: argparse.Namespace) -> int:
    secret = make_secret()
    if args.out is None:
        print(secret)
        return 0
    write_secret_file(Path(args.out), secret)
    print(f"wrote {args.out}", file=sys.stderr)
    return 0
