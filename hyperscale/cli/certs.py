"""`hyperscale certs`: create a certificate authority and certificates for a cluster."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hyperscale.config import parse_whole
from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import CertificateIdentity, check_name
from hyperscale.wire.certificates import CertificateAndKey, make_authority, make_certificate
from hyperscale.wire.client_access import ClientRole
from hyperscale.wire.roles import Role

_ROLES = ("manager", "worker", "gate", "client", "operator")  # a certificate each by default
_OF_CLIENTS = {"client": ClientRole.SUBMITTER} | {str(role): role for role in ClientRole}
_DAYS_MAX = 36_500

DESCRIPTION = """\
Create a certificate authority and certificates for nodes, clients and operators of a cluster
without a PKI. Role, cluster and environment are in the subject alternative names, where nodes
check them. With certificates, connections use mutual TLS 1.3.

Certificates with --name and the role viewer, submitter or operator prove that name: they may do
what the role permits, and a submitter's jobs are closed to other submitters (docs/security.md).

The authority (ca.pem, ca-key.pem) is created once and reused. Existing files are never
overwritten. Keep ca-key.pem off the nodes: a node needs ca.pem and its own certificate and key.
Datagrams are encrypted with the cluster secret even with certificates: see 'hyperscale secret'.
"""
EPILOG = """\
examples:
  hyperscale certs --cluster acme --environment prod --out certs
        the authority and one certificate for each role
  hyperscale certs --cluster acme --environment prod --out certs \\
      --role worker --name worker-7 --host 10.0.0.7 --host worker-7.internal
        one more certificate, for this worker, signed by the authority in certs/
  hyperscale certs --cluster acme --environment prod --out certs --role operator --name alice
        a certificate for the operator alice
  hyperscale certs --cluster acme --environment prod --out certs --role submitter --name bob
        a certificate for bob, who may submit jobs and change his own
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cluster", required=True, metavar="NAME", help="name of the cluster")
    add("--environment", required=True, metavar="NAME", help='environment, such as "prod"')
    add("--datacenter", default="", metavar="NAME", help="bind the certificate to a datacenter")
    add("--out", default="certs", metavar="DIR", help="directory to write to (default: certs)")
    add(
        "--role",
        action="append",
        choices=(*_ROLES, *(role for role in _OF_CLIENTS if role not in _ROLES)),
        metavar="ROLE",
        help=f"{', '.join(_ROLES)}, viewer, submitter; repeat the flag for more, which --name puts "
        "into one certificate (default: one certificate per role)",
    )
    add("--name", metavar="NAME", help="file and subject name, needs --role (default: the role)")
    about = "node id that a node's certificate is bound to; 'any' for none (default: --name)"
    add("--node-id", default="", metavar="ID", help=about)
    about = "name or address of the node; repeat the flag for more (default: loopback)"
    add("--host", action="append", metavar="HOST", help=about)
    add("--days", default="825", metavar="N", help="validity in days (default: 825)")
    about = "validity of a new authority in days (default: 3650)"
    add("--ca-days", default="3650", metavar="N", help=about)


def run(args: argparse.Namespace) -> int:
    for flag in ("cluster", "environment"):
        check_name(getattr(args, flag), where=f"--{flag}")
    for flag in ("datacenter", "name", "node_id"):
        if getattr(args, flag):
            check_name(getattr(args, flag), where=f"--{flag.replace('_', '-')}")
    days, ca_days = _days(args.days, "--days"), _days(args.ca_days, "--ca-days")
    if args.name and not args.role:
        raise InputError("--name needs --role", hint="such as --role worker --name worker-7")
    client_role = _client_role(args.role or (), args.name)
    chosen = [args.role] if args.name else [[role] for role in args.role or _ROLES]
    names = [args.name or roles[0] for roles in chosen]
    folder = Path(args.out)
    paths = [(folder / f"{name}.pem", folder / f"{name}-key.pem") for name in names]
    ca_paths = (folder / "ca.pem", folder / "ca-key.pem")
    taken = [path for pair in paths for path in pair if path.exists()]
    if taken:
        raise InputError(
            f"{taken[0]} already exists", hint="certificates are never overwritten; choose a --name"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out: {folder} cannot be created: {error.strerror}") from error
    is_new = not any(path.exists() for path in ca_paths)
    if is_new:
        authority = make_authority(args.cluster, days=ca_days)
        _write(ca_paths, authority)
    else:
        try:
            authority = CertificateAndKey(*(path.read_bytes() for path in ca_paths))
        except OSError as error:
            raise InputError(
                f"the authority needs both {ca_paths[0]} and {ca_paths[1]}: {error.strerror}",
                hint="restore the missing file, or choose another --out for a new authority",
            ) from error
    hosts = args.host or ["localhost", "127.0.0.1", "::1"]
    for roles, name, pair in zip(chosen, names, paths, strict=True):
        vouched = CertificateIdentity(
            roles=frozenset(_connection_role(role) for role in roles),
            cluster=args.cluster,
            environment=args.environment,
            datacenter=args.datacenter,
            node_id=_node_id(args.node_id, args.name, is_node=client_role is None),
            client=args.name if client_role else "",
            client_role=client_role,
        )
        _write(pair, make_certificate(authority, vouched, name=name, hosts=hosts, days=days))
    print(f"{'created' if is_new else 'used'} {ca_paths[0]}  (key: {ca_paths[1]}, keep it safe)")
    for roles, pair in zip(chosen, paths, strict=True):
        print(f"created {pair[0]}  {', '.join(roles)}  (key: {pair[1]})")
    return 0


def _client_role(roles: Sequence[str], name: str | None) -> ClientRole | None:
    """Return the role of the client that the certificate names; None if it names none."""
    of_clients = [_OF_CLIENTS[role] for role in roles if role in _OF_CLIENTS]
    if not name:
        unnamed = [role for role in roles if role in _OF_CLIENTS and role not in _ROLES]
        if unnamed:
            raise InputError(f"--role {unnamed[0]} needs --name", hint="such as --name alice")
        return None
    if of_clients and len(of_clients) < len(roles):
        raise InputError(
            f"--role {' and '.join(roles)}: one certificate is for a node or for a client"
        )
    return max(of_clients, key=list(ClientRole).index, default=None)


def _node_id(given: str, name: str | None, *, is_node: bool) -> str:
    """Return the node id in the certificate; empty: any node of its roles may use it."""
    if given == "any":
        return ""
    return given or (name or "" if is_node else "")


def _connection_role(role: str) -> Role:
    """Return the role of connections that a certificate is for: viewers and submitters connect as
    clients."""
    return Role(role) if role in set(Role) else Role.CLIENT


def _days(text: str, flag: str) -> int:
    days = parse_whole(text, low=1, most=_DAYS_MAX)
    if days is None:
        raise InputError(f"{flag}: {text!r} is not a number of days from 1 to {_DAYS_MAX}")
    return days


def _write(paths: tuple[Path, Path], made: CertificateAndKey) -> None:
    """Write key and certificate, the key first: a certificate without its key is useless."""
    for path, data, mode in ((paths[1], made.key, 0o600), (paths[0], made.certificate, 0o644)):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
