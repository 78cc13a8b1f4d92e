"""Compiles the `.proto` files of a workflow class and checks the methods that its steps name."""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from hyperscale.errors import InputError
from hyperscale.graph.analysis import literal_methods
from hyperscale.graph.reading import Reading
from hyperscale.testing.protos import Protos
from hyperscale.testing.services import INSTALL, Services, files_of

DESCRIPTORS_BYTES_MAX = 1 << 20
_COMPILE_S = 60.0


def protos_of(reading: Reading) -> dict[str, Protos]:
    """Return the `Protos` of a class and its bases, by attribute."""
    found: dict[str, Protos] = {}
    for base in reversed(reading.cls.__mro__):
        found |= {name: value for name, value in vars(base).items() if isinstance(value, Protos)}
    return found


def compile_protos(reading: Reading) -> bytes:
    """Return the descriptions of all `.proto` files of a class, as one `FileDescriptorSet`.

    Raises InputError if a file is wrong, or a step calls a method that no file has.
    """
    compiled, where, protos = b"", "", protos_of(reading)
    for name, each in protos.items():
        if each.files:
            where = reading.at(name)
            compiled += _compile(each, Path(reading.file).resolve().parent, where=where)
    if len(compiled) > DESCRIPTORS_BYTES_MAX:
        raise InputError(
            f"{where}: the descriptions have {len(compiled):,} bytes, more than "
            f"{DESCRIPTORS_BYTES_MAX:,}",
            hint="name only the files of the services that the test calls",
        )
    if compiled and not any(each.reflect for each in protos.values()):
        check_methods(reading, Services(files_of(compiled)))
    return compiled


def check_methods(reading: Reading, services: Services) -> None:
    """Raise InputError if a step calls a method that is not described."""
    for where, method in literal_methods(reading):
        try:
            services.method(method)
        except InputError as error:
            raise InputError(f"{where}: {error.message}", hint=error.hint) from error


def _compile(protos: Protos, beside: Path, *, where: str) -> bytes:
    if find_spec("grpc_tools") is None:
        raise InputError(f"{where}: .proto files need the package 'grpcio-tools'", hint=INSTALL)
    paths, roots = [], []
    for file in protos.files:
        near = beside / file
        path = os.path.abspath(near if near.exists() else file)
        if not Path(path).is_file():
            raise InputError(
                f"{where}: {file}: there is no such file", hint=f"it is not in {beside}"
            )
        paths.append(path)
    for include in protos.include:
        root = beside / include
        if not root.is_dir():
            raise InputError(f"{where}: include: {include} is not a directory")
        roots.append(os.path.abspath(root))
    roots += [str(Path(path).parent) for path in paths]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", "--include_imports"]
        command += [f"--descriptor_set_out={out}", *(f"-I{root}" for root in dict.fromkeys(roots))]
        try:
            done = subprocess.run(  # noqa: S603 - protoc, on files that the user names
                [*command, *paths], capture_output=True, text=True, timeout=_COMPILE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{where}: protoc took more than {_COMPILE_S:.0f} s") from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "warning" not in line.lower()]
            what = lines[0] if lines else f"protoc ended with {done.returncode}"
            raise InputError(f"{where}: {what}", hint="correct the .proto file, or set include=")
        return out.read_bytes()
