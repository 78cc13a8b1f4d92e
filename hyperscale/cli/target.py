"""`hyperscale target`: run the built-in (native) HTTP server that demos and tests load."""

import argparse
import errno
import ipaddress
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from hyperscale._native import Target, self_signed
from hyperscale.cli.printing import print_line
from hyperscale.config import parse_whole
from hyperscale.errors import InputError
from hyperscale.ui.stream import write_through

_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}
DESCRIPTION = """\
Run a built-in server to test against: HTTP/1.1, HTTP/2, gRPC, WebSocket, server-sent events and, if
asked for, HTTP/3, TCP and UDP. It counts every request and message that it receives, so that
results can be compared with its counts.
"""
EPILOG = """\
routes:
  /  /json  /echo[?raw]  /headers  /cookies  /cookies/set?k=v
  /delay/{ms}  /slow/{ms}/{n}  /status/{code}  /bytes/{n}[?chunked]
  /redirect/{n}[?code=301|302|303|307|308]  /basic-auth/{user}/{password}
  /gzip  /deflate  /brotli  /zstd  /close  /reset
  /sse/{ms}/{n}[?break=k]   n server-sent events, ms apart; cut off after k
  /ws                 a WebSocket that echoes; /ws/{ms}/{n} also sends n messages, ms apart
  gRPC: hyperscale.Echo/{Unary|ServerStream|ClientStream|BidiStream}, grpc.health.v1.Health/Check
  /counts             requests received so far, as JSON (POST /counts/reset resets them)
  /broken/{fault}     bad-chunk bad-content-length chunk-overflow drip early-close
                      endless-headers endless-interim garbage gzip-bomb huge-header
                      interim no-response redirect-loop truncated-gzip two-content-lengths

examples:
  hyperscale target                          on http://127.0.0.1:8080
  hyperscale target --port 0 --threads 2     on any free port, with two threads
  hyperscale target --tcp-port 9000          with a TCP port that echoes, too
  hyperscale target --tls-self-signed ca.pem on https, certificate written to ca.pem
  hyperscale target --tls-self-signed ca.pem --http3-port 8080
                                             the same, and HTTP/3 on UDP port 8080
  curl -s http://127.0.0.1:8080/counts       requests received so far
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 makes the server reachable from other machines "
        "(default: %(default)s)",
    )
    about = "port to listen on, 0 for any free port (default: %(default)s)"
    add("--port", type=_whole_from(0, 65535), default=8080, help=about)
    about = "also echo TCP connections on this port, with TLS if the server has it"
    add("--tcp-port", type=_whole_from(0, 65535), metavar="PORT", help=about)
    about = "also echo UDP datagrams on this port; one that begins with !drop gets no reply"
    add("--udp-port", type=_whole_from(0, 65535), metavar="PORT", help=about)
    about = "also serve HTTP/3 on this UDP port; needs a certificate"
    add("--http3-port", type=_whole_from(0, 65535), metavar="PORT", help=about)
    about = "server threads (default: %(default)s)"
    add("--threads", type=_whole_from(1, 256), default=1, metavar="N", help=about)
    add("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    add("--tls-key", type=Path, metavar="FILE", help="private key of the certificate (PEM)")
    about = "serve HTTPS with a new self-signed certificate, written to FILE if given"
    add("--tls-self-signed", nargs="?", const="", metavar="FILE", help=about)
    about = "require client certificates signed by these authorities (PEM)"
    add("--tls-client-ca", type=Path, metavar="FILE", help=about)
    add("--quiet", action="store_true", help="print only the address")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    # Blocked before the server starts its threads, which inherit the mask: `sigwait` below
    # receives every signal.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        target, scheme = _start(args)
        try:
            _serve(target, scheme, quiet=args.quiet)
        finally:
            target.stop()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return 0


def _serve(target: Target, scheme: str, *, quiet: bool) -> None:
    host = f"[{target.host}]" if ":" in target.host else target.host
    # A script may read only the first line and close the pipe.
    print_line(f"listening on {scheme}://{host}:{target.port}")
    for name, port in (("tcp", target.tcp_port), ("udp", target.udp_port)):
        if port is not None:
            print_line(f"echoing {name}://{host}:{port}")
    if target.http3_port is not None:
        print_line(f"serving HTTP/3 on https://{host}:{target.http3_port}")
    if not quiet and not ipaddress.ip_address(target.host).is_loopback:
        sys.stderr.write("warning: other machines can reach this server, without authentication\n")
    live = not quiet and sys.stdout.isatty()
    shown = 0
    while live:
        if signal.sigtimedwait(_STOP_SIGNALS, 1.0) is not None:
            break
        counts = json.loads(target.counts())
        total = counts["total"]
        if total != shown:
            rate, shown = max(total - shown, 0), total
            open_now = counts["connections"]["current"]
            shown_line = f"{total:,} requests, {rate:,}/s, {open_now:,} connections open"
            write_through(sys.stdout, f"\r\x1b[K{shown_line}")
    else:
        signal.sigwait(_STOP_SIGNALS)
    if not quiet:
        print_line(("\r\x1b[K" if live else "") + _summary(target.counts()))


def _summary(counts_json: str) -> str:
    counts = json.loads(counts_json)
    connections = counts["connections"]
    return (
        f"{counts['total']:,} requests on {connections['total']:,} connections "
        f"(at most {connections['peak']:,} at once), {counts['bytes_in']:,} bytes in, "
        f"{counts['bytes_out']:,} bytes out, {counts['malformed']:,} malformed"
    )


def _start(args: argparse.Namespace) -> tuple[Target, str]:
    certificate, key = _identity(args)
    client_ca = _read(args.tls_client_ca, "--tls-client-ca")
    if client_ca is not None and certificate is None:
        raise InputError(
            "--tls-client-ca needs a server certificate",
            hint="add --tls-cert and --tls-key, or --tls-self-signed",
        )
    if args.http3_port is not None and certificate is None:
        raise InputError(
            "--http3-port needs a server certificate: HTTP/3 has no plain text",
            hint="add --tls-self-signed, or --tls-cert and --tls-key",
        )
    try:
        target = Target(
            args.host,
            args.port,
            args.threads,
            certificate,
            key,
            client_ca,
            tcp_port=args.tcp_port,
            udp_port=args.udp_port,
            http3_port=args.http3_port,
        )
    except OSError as error:
        raise _listen_error(error, args.host, args.port) from error
    except ValueError as error:
        raise InputError(str(error)) from error
    return target, "http" if certificate is None else "https"


def _identity(args: argparse.Namespace) -> tuple[bytes | None, bytes | None]:
    if (args.tls_cert is None) != (args.tls_key is None):
        raise InputError("--tls-cert and --tls-key must be given together")
    if args.tls_self_signed is None:
        return _read(args.tls_cert, "--tls-cert"), _read(args.tls_key, "--tls-key")
    if args.tls_cert is not None:
        raise InputError("--tls-self-signed and --tls-cert cannot be combined")
    names = dict.fromkeys([args.host.strip("[]"), "localhost", "127.0.0.1", "::1"])
    certificate, key = self_signed(list(names))
    if args.tls_self_signed:
        try:
            Path(args.tls_self_signed).write_text(certificate)
        except OSError as error:
            raise InputError(
                f"--tls-self-signed: cannot write {args.tls_self_signed}: {error.strerror}"
            ) from error
    return certificate.encode(), key.encode()


def _read(path: Path | None, flag: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{flag}: cannot read {path}: {error.strerror}") from error


def _listen_error(error: OSError, host: str, port: int) -> InputError:
    what, hint = f"cannot listen on {host}:{port}: {error.strerror or error}", ""
    match error.errno:
        case errno.EADDRINUSE:
            what = f"port {port} on {host} is in use"
            hint = "choose another port with --port, or --port 0 for any free port"
        case errno.EACCES | errno.EPERM:
            what = f"port {port} on {host} needs privileges"
            hint = "choose a port of 1024 or more with --port"
        case errno.EADDRNOTAVAIL:
            what = f"--host: {host} is not an address of this machine"
            hint = "use 127.0.0.1 for this machine only, 0.0.0.0 for all addresses"
    return InputError(what, hint=hint)


def _whole_from(low: int, high: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        number = parse_whole(text, low=low, most=high)
        if number is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return number

    return whole
