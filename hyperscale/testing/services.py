"""gRPC services by their descriptions: dicts become messages, replies get classes.

Descriptions come from `.proto` files that were compiled before, or from the server itself by
reflection (`grpc.reflection.v1`, and `v1alpha` of older servers). `protobuf` is an extra.
"""

import difflib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hyperscale.errors import InputError
from hyperscale.testing.grpc import GRPCCode, GRPCResponse

INSTALL = "pip install 'hyperscale[grpc]'"
REFLECTION = (
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
_ROUNDS_MAX = 100  # of imports of imports

# Numbers of fields of the reflection service.
_FILE_BY_NAME, _FILE_OF_SYMBOL, _LIST_SERVICES = 3, 4, 7
_FILES_REPLY, _SERVICES_REPLY, _ERROR_REPLY = 4, 6, 7

Ask = Callable[[str, list[bytes]], Awaitable[GRPCResponse]]
"""Makes a bidirectional call of a method with these messages."""


class Method(NamedTuple):
    """A method of a service: the classes of its messages and its replies."""

    path: str
    message: Any
    reply: Any

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """Return a dict as a message. Raises InputError if it is none."""
        from google.protobuf import json_format  # noqa: PLC0415 - an extra

        try:
            return bytes(json_format.ParseDict(dict(value), self.message()).SerializeToString())
        except json_format.ParseError as error:
            kind = self.message.DESCRIPTOR.full_name
            raise InputError(f"gRPC {self.path}: not a {kind}: {error}") from error


class Services:
    """Methods by their names, from file descriptors."""

    def __init__(self, files: Iterable[bytes]) -> None:
        """`files` are `FileDescriptorProto` messages, in any order. Raises InputError."""
        try:
            from google.protobuf import (  # noqa: PLC0415 - an extra
                descriptor_pb2,
                descriptor_pool,
                message_factory,
            )
        except ImportError as error:
            raise InputError(
                "descriptions of gRPC services need the package 'protobuf'", hint=INSTALL
            ) from error
        parsed = {}
        for data in files:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            parsed[file.name] = file
        pool = descriptor_pool.DescriptorPool()
        self._methods: dict[str, Method] = {}
        for file in _in_order(parsed):
            try:
                pool.Add(file)
            except TypeError as error:
                raise InputError(f"{file.name}: a wrong description: {error}") from error
        for file in parsed.values():
            for service in pool.FindFileByName(file.name).services_by_name.values():
                for method in service.methods:
                    path = f"{service.full_name}/{method.name}"
                    classes = map(
                        message_factory.GetMessageClass, (method.input_type, method.output_type)
                    )
                    self._methods[path] = Method(path, *classes)

    def method(self, name: str) -> Method:
        """Return the method "package.Service/Method". Raises InputError if there is none."""
        path = name.removeprefix("/")
        found = self._methods.get(path)
        if found is not None:
            return found
        service, _, _ = path.partition("/")
        own = [each for each in self._methods if each.startswith(f"{service}/")]
        if own:
            known = ", ".join(each.partition("/")[2] for each in own)
            raise InputError(f"gRPC {path}: {service} has no such method", hint=f"it has {known}")
        services = sorted({each.partition("/")[0] for each in self._methods})
        near = difflib.get_close_matches(service, services, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(services) or 'none'}"
        raise InputError(f"gRPC {path}: there is no service {service!r}", hint=hint)


def files_of(descriptors: bytes) -> list[bytes]:
    """Return the file descriptors of a `FileDescriptorSet`."""
    return list(map(bytes, _values(descriptors, 1)))


def _in_order(files: Mapping[str, Any]) -> Iterator[Any]:
    """Yield files after those that they import. Imports that are missing are not yielded."""
    done: set[str] = set()

    def visit(name: str) -> Iterator[Any]:
        if name in done or name not in files:
            return
        done.add(name)
        for imported in files[name].dependency:
            yield from visit(imported)
        yield files[name]

    for name in files:
        yield from visit(name)


async def list_services(ask: Ask) -> list[str]:
    """Return the names of a server's services. Raises InputError if it has no reflection."""
    path = await _reflection(ask)
    replies = await _asked(ask, path, [_text_field(_LIST_SERVICES, "*")])
    names = [
        bytes(name).decode()
        for reply in replies
        for service in _values(reply, _SERVICES_REPLY)
        for each in _values(service, 1)
        for name in _values(each, 1)
    ]
    return sorted(names)


async def reflect(ask: Ask) -> list[bytes]:
    """Return the file descriptors of a server's services. Raises InputError."""
    path = await _reflection(ask)
    names = [name for name in await list_services(ask) if not name.startswith("grpc.reflection.")]
    wanted = [_text_field(_FILE_OF_SYMBOL, name) for name in names]
    files: dict[str, bytes] = {}
    for _ in range(_ROUNDS_MAX):
        if not wanted:
            break
        for reply in await _asked(ask, path, wanted):
            for found in _values(reply, _FILES_REPLY):
                for file in map(bytes, _values(found, 1)):
                    files[_texts(file, 1)[0]] = file
        imported = {name for file in files.values() for name in _texts(file, 3)}
        wanted = [_text_field(_FILE_BY_NAME, name) for name in sorted(imported - set(files))]
    return list(files.values())


async def _reflection(ask: Ask) -> str:
    """Return the reflection service that a server has."""
    for path in REFLECTION:
        response = await ask(path, [_text_field(_LIST_SERVICES, "*")])
        if response.ok:
            return path
        if response.code is not GRPCCode.UNIMPLEMENTED:
            break
    raise InputError(
        f"{response.url}: the server does not describe its services "
        f"({response.code.name}: {response.details or f'HTTP {response.status}'})",
        hint='turn server reflection on, or give .proto files: Protos("shop.proto")',
    )


async def _asked(ask: Ask, path: str, questions: list[bytes]) -> list[bytes]:
    response = await ask(path, questions)
    for reply in response.messages:
        for error in _values(reply, _ERROR_REPLY):
            what = ", ".join(_texts(error, 2)) or "an error without a message"
            raise InputError(f"{response.url}: server reflection: {what}")
    return list(response.messages)


def _text_field(number: int, text: str) -> bytes:
    data = text.encode()
    length, prefix = len(data), bytearray((number << 3 | 2,))
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*prefix, length)) + data


def _texts(message: bytes | memoryview, number: int) -> list[str]:
    return [bytes(value).decode() for value in _values(message, number)]


def _values(message: bytes | memoryview, number: int) -> Iterator[memoryview]:
    """Yield the values of a field that has a length. Raises InputError for what is no message."""
    view, at = memoryview(message), 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    try:
        while at < len(view):
            tag = varint()
            match tag & 7:
                case 0:
                    varint()
                case 1:
                    at += 8
                case 2:
                    length = varint()
                    if tag >> 3 == number:
                        yield view[at : at + length]
                    at += length
                case 5:
                    at += 4
                case kind:
                    raise InputError(f"server reflection: unknown wire type {kind}")
    except IndexError:
        raise InputError("server reflection: a message is cut off") from None
