"""Request parts people annotate parameters with: `URL`, `Headers`, `Data`, …

    async def login(self, url: URL = "https://shop.test/login", body: Data = {"u": "x"}): ...

For a type checker each is the plain type of its default (`URL` is `str`). At run time it
is a class whose values *are* that plain type, with an attribute `optimized` for what the client
prepared from them. Values are checked here when they are made; clients resolve and encode them
before the run starts. A later change would not be sent, so the values are read-only; copies of
them are plain and can be changed.
"""

import base64
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias
from urllib.parse import SplitResult, urlsplit

from hyperscale.errors import InputError
from hyperscale.testing.protocols import protocol_of, split_service_url

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_AUTH_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9\-]* +\S")
_SCHEMES: dict[str, int | None] = {"http": 80, "https": 443}
_SOCKET_SCHEMES: dict[str, int | None] = {"ws": 80, "wss": 443}
_RAW_SCHEMES: dict[str, int | None] = dict.fromkeys(("tcp", "tls", "udp"))
STREAM_SCHEMES = {**_SOCKET_SCHEMES, **_RAW_SCHEMES}
"""Schemes of streams, and their ports; None: a URL has to name one."""
CLIENT_SCHEMES: dict[str, Mapping[str, int | None]] = {
    "graphql": {**_SCHEMES, **_SOCKET_SCHEMES},
    "grpc": _SCHEMES,
    "http": _SCHEMES,
    "http2": _SCHEMES,
    "http3": {"https": 443},
    "sse": _SCHEMES,
    "tcp": dict.fromkeys(("tcp", "tls")),
    "udp": dict.fromkeys(("udp",)),
    "websocket": _SOCKET_SCHEMES,
}
"""Schemes of each client that uses the native engine, the usual one first."""
FILES_MAX = 10_000
"""Files that a `Directory` or a `FileGlob` may have."""


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    name = type(self).__name__.removesuffix("Value")
    plain = "dict" if isinstance(self, dict) else "list"
    raise TypeError(
        f"{name} is encoded once before the run and cannot change; "
        f"copy it first, {plain}(value), and send the copy"
    )


class _Frozen:
    """Makes the copies of a read-only value plain."""

    def __copy__(self) -> Any:
        return self.copy()  # type: ignore[attr-defined]  # of dict or list

    def __deepcopy__(self, _memo: object) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        plain = thaw(self)
        return type(plain), (plain,)


class FrozenDict(_Frozen, dict[str, Any]):
    """A dict that refuses to change. `dict(value)`, `copy()` and `|` give plain dicts."""

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse


class FrozenList(_Frozen, list[Any]):
    """A list that refuses to change. `list(value)`, slices and `+` give plain lists."""

    __setitem__ = __delitem__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse


def freeze(value: Any) -> Any:
    """Return `value` with every dict and list in it made read-only."""
    if isinstance(value, Mapping):
        return FrozenDict(frozen_items(value))
    if isinstance(value, list | tuple):
        return FrozenList([freeze(item) for item in value])
    return value


def frozen_items(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    return ((key, freeze(item)) for key, item in value.items())


def thaw(value: Any) -> Any:
    """Return a plain copy of what `freeze` made."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [thaw(item) for item in value]
    return value


class OptimizedArg:
    """A request part that is prepared once, before the run starts, and used by every VU."""

    optimized: object | None = None  # what the client prepared; None until then

    @classmethod
    def wrap(cls, value: object) -> "OptimizedArg":
        """Return the value in read-only form; raises InputError if it is not of this kind."""
        raise NotImplementedError


class UrlValue(str, OptimizedArg):
    """An absolute http or https address, or the address of a server that a client reaches.

    `f"{url}/x"` gives a plain `str`.
    """

    @classmethod
    def wrap(cls, value: object) -> Self:
        if not isinstance(value, str):
            raise InputError(f"{value!r} is not a URL", hint='write "https://host/path"')
        row = protocol_of(value.partition("://")[0])
        if row is not None:
            split_service_url(value, row)
        else:
            split_url(value, {**_SCHEMES, **STREAM_SCHEMES})
        return cls(value)

    @property
    def authority(self) -> str:
        """`host:port`, with an IPv6 address in brackets."""
        row = protocol_of(self.partition("://")[0])
        if row is not None:
            host, port = split_service_url(self, row).hosts[0]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        schemes = {**_SCHEMES, **STREAM_SCHEMES}
        parts = split_url(self, schemes)
        host, port = parts.hostname or "", parts.port or schemes[parts.scheme] or 0
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_url(value: str, schemes: Mapping[str, int | None] = _SCHEMES) -> SplitResult:
    """Return the parts of an absolute URL, of http(s) or other schemes. Raises InputError."""
    hint = 'write the full URL, such as "https://host/path"'
    if any(character.isspace() or ord(character) < 0x20 for character in value):
        raise InputError(f"{value!r} is not a URL: it has a blank or control character", hint=hint)
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{value!r} is not a URL: {error}", hint=hint) from error
    if parts.scheme not in schemes:
        scheme = f"scheme {parts.scheme!r}" if "://" in value else "no scheme"
        if parts.scheme == "dtls":
            hint = "DTLS is not supported; udp:// is"
        kind = next(iter(schemes))
        article = "an" if kind == "http" else "a"
        raise InputError(f"{value!r} is not {article} {kind} URL: it has {scheme}", hint=hint)
    if not parts.hostname:
        raise InputError(f"{value!r} is not a URL: it has no host", hint=hint)
    if port == 0:
        raise InputError(f"{value!r} is not a URL: port 0 cannot be reached", hint=hint)
    if port is None and schemes[parts.scheme] is None:
        hint = f'write "{parts.scheme}://host:port"'
        raise InputError(f"{value!r} is not a URL: it has no port", hint=hint)
    return parts


class HeadersValue(FrozenDict, OptimizedArg):
    """Header names to values, as text."""

    @classmethod
    def wrap(cls, value: object) -> Self:
        return cls((name, _header_value(name, item)) for name, item in _pairs("headers", value))


def _header_value(name: object, value: object) -> str:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise InputError(f"{name!r} is not a header name", hint="letters, digits and hyphens")
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(f"header {name!r}: {value!r} is not text")
    text = str(text)
    if any(character in "\r\n\0" for character in text):
        raise InputError(f"header {name!r}: its value {value!r} has a line break or a NUL")
    return text


class ParamsValue(FrozenDict, OptimizedArg):
    """Query parameters; a list repeats its name, None leaves it out."""

    @classmethod
    def wrap(cls, value: object) -> Self:
        pairs = _pairs("params", value)
        for name, item in pairs:
            for one in item if isinstance(item, list | tuple) else (item,):
                if not isinstance(name, str) or not isinstance(one, str | int | float | None):
                    raise InputError(f"params[{name!r}]: {item!r} is not text or a number")
        return cls(frozen_items(dict(pairs)))


class CookiesValue(FrozenDict, OptimizedArg):
    """Cookie names to values."""

    @classmethod
    def wrap(cls, value: object) -> Self:
        pairs = _pairs("cookies", value)
        for name, item in pairs:
            if not isinstance(name, str) or not _TOKEN.fullmatch(name):
                raise InputError(f"{name!r} is not a cookie name")
            if not isinstance(item, str) or any(c in ";\r\n\0" for c in item):
                raise InputError(f"cookie {name!r}: {item!r} is not text without ';' and breaks")
        return cls(pairs)


def _pairs(what: str, value: object) -> list[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise InputError(f"{value!r} is not a mapping of {what}", hint='write {"name": "value"}')
    return list(value.items())


class AuthScheme(OptimizedArg):
    """Base of credentials whose header depends on the request, on a reply or on the time."""


class AuthValue(str, OptimizedArg):
    """The value of an `Authorization` header."""

    @classmethod
    def wrap(cls, value: object) -> "AuthValue | AuthScheme":
        return value if isinstance(value, AuthScheme) else cls(authorization(value))


def authorization(value: object) -> str:
    """Return the value of an `Authorization` header.

    `("user", "password")` and `"user:password"` become Basic, a bare token Bearer; a text that
    names its scheme (`"Digest …"`) is used as it is.
    """
    hint = 'write ("user", "password"), "user:password", a bearer token or "Scheme value"'
    if isinstance(value, tuple | list):
        if len(value) != 2 or not all(isinstance(part, str) for part in value):
            raise InputError(f"auth of {len(value)} parts is not a user and a password", hint=hint)
        if ":" in value[0]:
            raise InputError("auth: a Basic user name cannot hold ':'", hint=hint)
        return _basic(f"{value[0]}:{value[1]}")
    # The value itself may be a secret, so messages never show it.
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"auth: a {type(value).__name__} is not a credential", hint=hint)
    if any(character in "\r\n\0" for character in value):
        raise InputError("auth: the credential has a line break or a NUL", hint=hint)
    text = value.strip()
    if _AUTH_SCHEME.match(text):
        return text
    return _basic(text) if ":" in text else f"Bearer {text}"


def _basic(credential: str) -> str:
    return "Basic " + base64.b64encode(credential.encode()).decode("ascii")


class _Data(OptimizedArg):
    """A request body: JSON for dicts, lists, dataclasses and structs; text and bytes as they are.

    Only the annotation: values are of one of the four classes below.
    """

    def __new__(cls, value: object) -> Any:
        return cls.wrap(value)

    @classmethod
    def wrap(cls, value: object) -> OptimizedArg:
        if isinstance(value, str):
            return DataText(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return DataBytes(bytes(value))
        plain = _plain(value)
        if isinstance(plain, Mapping):
            return DataDict(frozen_items(plain))
        if isinstance(plain, list | tuple):
            return DataList([freeze(item) for item in plain])
        raise InputError(
            f"{value!r} is not a request body",
            hint="give a dict, list, dataclass or msgspec Struct (sent as JSON), a str or bytes",
        )


class DataText(str, OptimizedArg):
    """A body of text."""


class DataBytes(bytes, OptimizedArg):
    """A body of bytes."""


class DataDict(FrozenDict, OptimizedArg):
    """A JSON object."""


class DataList(FrozenList, OptimizedArg):
    """A JSON array."""


def _plain(value: object) -> object:
    """Return a dataclass, struct or pydantic model as dicts and lists."""
    is_object = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if is_object or hasattr(value, "__struct_fields__"):
        import msgspec  # noqa: PLC0415  only such bodies need it at this point

        try:
            return msgspec.to_builtins(value)
        except (TypeError, ValueError) as error:
            raise InputError(f"{value!r} cannot be sent as JSON: {error}") from error
    dump = getattr(value, "model_dump", None)  # pydantic
    return dump(mode="json") if callable(dump) else value


class _File(OptimizedArg):
    """A file, given by its path and read once. Only the annotation: values are `FileContent`."""

    def __new__(cls, value: object) -> Any:
        return cls.wrap(value)

    @classmethod
    def wrap(cls, value: object) -> OptimizedArg:
        if isinstance(value, FileContent):
            return value
        if not isinstance(value, str | Path):
            raise InputError(f"{value!r} is not the path of a file")
        try:
            return FileContent.of(value, Path(value).read_bytes())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"file {str(value)!r} cannot be read: {reason.lower()}") from error


class FileContent(bytes, OptimizedArg):
    """The bytes of a file. `path` is its original path, `filename` the last part of the path."""

    path: Path

    @classmethod
    def of(cls, path: str | Path, content: bytes) -> Self:
        value = cls(content)
        value.path = Path(path)
        return value

    @property
    def filename(self) -> str:
        return self.path.name

    @property
    def content_type(self) -> str:
        import mimetypes  # noqa: PLC0415  it reads tables from disk; most runs have no file

        return mimetypes.guess_type(self.path.name)[0] or "application/octet-stream"


class FilesValue(tuple[FileContent, ...], OptimizedArg):
    """The files of a `Directory` or a `FileGlob`, sorted by path."""

    @classmethod
    def wrap(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        found = {name: Path(path).read_bytes() for name, path in cls.find(value, Path()).items()}
        return cls.of(found)

    @classmethod
    def of(cls, found: Mapping[str, bytes]) -> Self:
        """Return the files by the content of each path."""
        return cls(FileContent.of(name, found[name]) for name in sorted(found))

    @classmethod
    def find(cls, value: object, beside: Path) -> dict[str, str]:
        """Return where the files are, by the path that they are known as. Raises InputError."""
        raise NotImplementedError


class DirectoryValue(FilesValue):
    """Every file below a directory, given by its path and read once."""

    @classmethod
    def find(cls, value: object, beside: Path) -> dict[str, str]:
        if not isinstance(value, str | Path):
            raise InputError(f"{value!r} is not the path of a directory")
        root = beside / value if (beside / value).is_dir() else Path(value)
        if not root.is_dir():
            raise InputError(f"{str(value)!r} is not a directory")
        return _listed(sorted(root.rglob("*")), root, f"the directory {str(value)!r}")


class FileGlobValue(FilesValue):
    """The files that match a pattern such as "images/*.png" or "docs/**/*.md", read once."""

    @classmethod
    def find(cls, value: object, beside: Path) -> dict[str, str]:
        if not isinstance(value, str) or not value:
            raise InputError(f"{value!r} is not a pattern of files", hint='write "images/*.png"')
        for root in (beside, Path()):
            try:
                found = sorted(root.glob(value))
            except (ValueError, NotImplementedError) as error:
                raise InputError(
                    f"{value!r} is not a pattern of files: {error}",
                    hint="write it relative to the test file",
                ) from error
            if found:
                return _listed(found, root, f"{value!r}")
        raise InputError(f"no file matches {value!r}", hint="it is relative to the test file")


def _listed(paths: list[Path], root: Path, what: str) -> dict[str, str]:
    files = {str(path.relative_to(root)): str(path.resolve()) for path in paths if path.is_file()}
    if not files:
        raise InputError(f"{what} has no files")
    if len(files) > FILES_MAX:
        raise InputError(f"{what} has {len(files):,} files, more than {FILES_MAX:,}")
    return files


class ProtobufBytes(bytes, OptimizedArg):
    """A gRPC message, encoded once. Written as an instance of a generated class, or as bytes."""

    @classmethod
    def wrap(cls, value: object) -> "Self | ProtobufDict":
        if isinstance(value, Mapping):
            return ProtobufDict(frozen_items(value))
        message = cls(encode_message(value, where="Protobuf"))
        message.optimized = message
        return message


class ProtobufDict(FrozenDict, OptimizedArg):
    """A gRPC message as a dict, encoded once, when the method is known that it is for."""


def encode_message(value: object, *, where: str) -> bytes:
    """Return a message as bytes. Raises InputError if it is none."""
    if isinstance(value, bytes):
        return value
    encode = getattr(value, "SerializeToString", None)
    if encode is None:
        raise InputError(
            f"{where}: a {type(value).__name__} is not a message",
            hint="give an instance of a class that protoc generated, or bytes; a dict needs "
            'protos = Protos("shop.proto") in the workflow',
        )
    return bytes(encode())


class EmailValue(FrozenDict, OptimizedArg):
    """A mail: `from`, `to`, `subject`, `text` and the other parts that `hyperscale.testing.mail`
    knows."""

    @classmethod
    def wrap(cls, value: object) -> Self:
        if not isinstance(value, Mapping):
            raise InputError(
                f"{value!r} is not a mail",
                hint='write {"from": "a@x.test", "to": "b@x.test", "subject": "…", "text": "…"}',
            )
        from hyperscale.testing.mail import assemble  # noqa: PLC0415  few tests send mail

        mail = cls(frozen_items(value))
        mail.optimized = assemble(mail)
        return mail


if TYPE_CHECKING:
    URL: TypeAlias = str
    Headers: TypeAlias = Mapping[str, str]
    Params: TypeAlias = Mapping[str, Any]
    Cookies: TypeAlias = Mapping[str, str]
    Auth: TypeAlias = tuple[str, str] | str | "AuthScheme"
    # A body is whatever JSON, text or bytes its default is, and a step indexes it as such;
    # a union would ask for narrowing at every use. A file is written as a path, used as bytes.
    Data: TypeAlias = Any
    File: TypeAlias = Any
    # Written as a path or a pattern, used as a tuple of files.
    Directory: TypeAlias = Any
    FileGlob: TypeAlias = Any
    Protobuf: TypeAlias = Any
    Email: TypeAlias = Any
else:
    URL, Headers, Params, Cookies = UrlValue, HeadersValue, ParamsValue, CookiesValue
    Auth, Data, File = AuthValue, _Data, _File
    Directory, FileGlob = DirectoryValue, FileGlobValue
    Protobuf, Email = ProtobufBytes, EmailValue
