"""The bundle: how a test travels to the processes that run it.

A bundle is a zip of the test file, the local modules it imports and the files it names,
addressed by the SHA-256 of its bytes. The same input gives the same bytes everywhere: sorted
entries, one timestamp, nothing compressed (deflate differs between zlib builds). Executors
import from the bundle itself, so a file edited while a test runs changes nothing, and nothing
is unpacked that a killed process could leave behind.

Classes without a file (a notebook, a prompt) travel by cloudpickle instead. Those bytes are
not reproducible, so such a bundle is named at random and has no digest.
"""

import hashlib
import io
import linecache
import os
import sys
import uuid
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import MappingProxyType, ModuleType

import msgspec
from msgspec import Struct, field

from hyperscale.errors import InputError, InvariantError
from hyperscale.execution.imports import decode_source, scan
from hyperscale.graph.loading import is_installed
from hyperscale.graph.workflow import forget_module
from hyperscale.plan.limits import BUNDLE_BYTES_MAX

_BIGGEST_SHOWN = 5
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the oldest a zip can say
_MANIFEST = "manifest.json"
_CLASSES = "classes.pickle"


class Manifest(Struct, frozen=True, kw_only=True):
    """What the entries of a bundle are to each other. Holds no path of the user's machine."""

    schema: int = 1
    module: str  # the module holding the workflows
    sources: dict[str, str] = field(default_factory=dict)  # module -> entry
    files: dict[str, str] = field(default_factory=dict)  # path as written -> entry


@dataclass(frozen=True, slots=True)
class Bundle:
    name: str  # the digest, or a random name
    payload: bytes
    digest: str | None  # None: made by cloudpickle

    def write(self, directory: Path) -> Path:
        """The bundle as a file in `directory`, whole or not at all."""
        path = directory / f"{self.name}.zip"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_bytes(self.payload)
            partial.rename(path)
        return path


def bundle_file(
    file: Path,
    *,
    module: str | None = None,
    loaded: Iterable[str] = (),
    files: Mapping[str, str] = MappingProxyType({}),
) -> Bundle:
    """The bundle of a test file; `imports.scan` explains `module` and `loaded`.

    `files` are those the test names, as `plan.files` has them: as written, and where they lie.
    A module of an installed package is not copied: it is expected to be installed wherever
    the test runs.
    """
    if module is not None and is_installed(file):
        return _pack(Manifest(module=module), {})
    found = scan(file, module=module, loaded=loaded)
    entries: dict[str, bytes] = {}
    sources: dict[str, str] = {}
    for source in found.sources:
        entry = f"src/{source.path_in_root.as_posix()}"
        sources[source.module] = entry
        entries[entry] = _read(source.path)
    named: dict[str, str] = {}
    for written, path in files.items():
        # By content: what is written may be absolute or lead upwards.
        content = _read(Path(path))
        named[written] = f"files/{hashlib.sha256(content).hexdigest()}"
        entries[named[written]] = content
    return _pack(Manifest(module=found.main.module, sources=sources, files=named), entries)


def bundle_classes(classes: Sequence[type]) -> Bundle:
    """The bundle of classes of one module that exist only in this process."""
    import cloudpickle  # noqa: PLC0415  most runs have a file and never need it

    names = ", ".join(cls.__name__ for cls in classes)
    try:
        payload = cloudpickle.dumps({cls.__name__: cls for cls in classes})
    except Exception as error:
        raise InputError(
            f"{names}: cannot be sent to executors: {type(error).__name__}: {error}",
            hint="keep open files, locks and connections out of the class, "
            "or put it in a file of its own",
        ) from error
    # `graph.collect` takes the classes whose module it is given.
    packed = _pack(Manifest(module=classes[0].__module__), {_CLASSES: payload})
    return Bundle(name=f"classes-{uuid.uuid4().hex}", payload=packed.payload, digest=None)


def merged(bundles: Sequence[tuple[Bundle, Sequence[str]]]) -> Bundle:
    """One bundle of several, each with the names of the classes it is there for.

    Its main module is one that imports them from theirs.
    """
    if len(bundles) == 1:
        return bundles[0][0]
    entries: dict[str, bytes] = {}
    sources: dict[str, str] = {}
    files: dict[str, str] = {}
    lines = []
    for bundle, names in bundles:
        opened = OpenBundle(io.BytesIO(bundle.payload))
        manifest = opened.manifest
        if opened.classes is not None:
            raise InputError(
                f"{', '.join(names)}: without a file, and cannot be sent together with classes "
                "of other modules",
                hint="put them in one file",
            )
        for module, entry in manifest.sources.items():
            content = opened.source(module)
            if entries.setdefault(entry, content) != content:
                raise InputError(
                    f"module {module!r} is in two places with different content",
                    hint="rename one, or submit the workflows one after the other",
                )
            sources[module] = entry
        for name, entry in manifest.files.items():
            files[name], entries[entry] = entry, opened.files[name]
        lines.append(f"from {manifest.module} import {', '.join(names)}\n")
    # Named by what it imports: no module of a user's is called so.
    text = "".join(lines).encode()
    main = f"_workflows_{hashlib.sha256(text).hexdigest()[:16]}"
    sources[main], entries[f"src/{main}.py"] = f"src/{main}.py", text
    return _pack(Manifest(module=main, sources=sources, files=files), entries)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _pack(manifest: Manifest, entries: Mapping[str, bytes]) -> Bundle:
    total = sum(len(content) for content in entries.values())
    if total > BUNDLE_BYTES_MAX:
        biggest = sorted(entries, key=lambda name: -len(entries[name]))[:_BIGGEST_SHOWN]
        written = {entry: name for name, entry in manifest.files.items()}
        shown = ", ".join(
            f"{written.get(name, name)} {len(entries[name]) / 2**20:.1f} MiB" for name in biggest
        )
        raise InputError(
            f"the test is {total / 2**20:.1f} MiB, over the limit of "
            f"{BUNDLE_BYTES_MAX // 2**20} MiB; the biggest: {shown}",
            hint="a test may open large files by path itself, where it runs",
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        encoded = msgspec.json.encode(manifest, order="deterministic")
        for name, content in [(_MANIFEST, encoded), *sorted(entries.items())]:
            info = zipfile.ZipInfo(name, _TIMESTAMP)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    payload = buffer.getvalue()
    digest = hashlib.sha256(payload).hexdigest()
    return Bundle(name=digest, payload=payload, digest=digest)


# --- where it runs -----------------------------------------------------------------------


class OpenBundle:
    """A bundle being read: its manifest, sources and files."""

    def __init__(self, path: Path | io.BytesIO) -> None:
        try:
            with zipfile.ZipFile(path) as archive:
                self._entries = {name: archive.read(name) for name in archive.namelist()}
            self.manifest = msgspec.json.decode(self._entries[_MANIFEST], type=Manifest)
        except (OSError, KeyError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
            raise InvariantError(f"{path} is not a bundle: {error}") from error

    @property
    def classes(self) -> bytes | None:
        return self._entries.get(_CLASSES)

    def source(self, module: str) -> bytes:
        return self._entries[self.manifest.sources[module]]

    @property
    def files(self) -> dict[str, bytes]:
        """Content of the files the test names, by the path as written there."""
        return {name: self._entries[entry] for name, entry in self.manifest.files.items()}


class _Loader(SourceLoader):
    """Loads a bundle's modules.

    Each module keeps the file name it had where the user is: tracebacks read as expected
    there, and on that machine `Path(__file__).parent / "data.csv"` is found.
    """

    def __init__(self, bundle: OpenBundle, file: Path) -> None:
        self._bundle = bundle
        sources = bundle.manifest.sources
        # "src/a/b.py" is two directories below its root; so is the file it was made from.
        main = sources.get(bundle.manifest.module, "src/")
        # The path of the test may be a name alone.
        depth = main.count("/") - 1
        root = file.parents[depth] if depth < len(file.parents) else Path()
        self.names = {
            module: str(root / entry.removeprefix("src/")) for module, entry in sources.items()
        }

    def get_filename(self, fullname: str) -> str:
        try:
            return self.names[fullname]
        except KeyError:
            raise ImportError(f"no module {fullname!r} in the bundle", name=fullname) from None

    def is_package(self, fullname: str) -> bool:
        return self._bundle.manifest.sources[fullname].endswith("/__init__.py")

    def get_data(self, path: str) -> bytes:
        for module, name in self.names.items():
            if name == path:
                return self._bundle.source(module)
        return Path(path).read_bytes()

    def get_source(self, fullname: str) -> str:
        return decode_source(self._bundle.source(fullname), self.get_filename(fullname))

    def remember_lines(self) -> None:
        """Give tracebacks and `inspect` the lines that run, even if the file has changed."""
        for module, name in self.names.items():
            text = self.get_source(module)
            # No modification time: linecache then never looks for the file.
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


class _Finder(MetaPathFinder):
    """Claims the names of a bundle's modules, and no others."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        # Directories without __init__.py: packages of no code.
        self._namespaces = {
            ".".join(parts[:count])
            for parts in (module.split(".") for module in loader.names)
            for count in range(1, len(parts))
        } - set(loader.names)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del path, target
        if fullname in self._loader.names:
            return spec_from_loader(fullname, self._loader)
        if fullname in self._namespaces:
            return ModuleSpec(fullname, None, is_package=True)
        return None

    def install(self) -> None:
        # A module of the same name from elsewhere must not stand in for the bundle's.
        for module in self._loader.names:
            sys.modules.pop(module, None)
        sys.meta_path.insert(0, self)
        self._loader.remember_lines()

    def remove(self) -> None:
        sys.meta_path.remove(self)
        for module, name in self._loader.names.items():
            linecache.cache.pop(name, None)
            sys.modules.pop(module, None)
            forget_module(module)
        for module in self._namespaces:
            sys.modules.pop(module, None)


@dataclass(frozen=True, slots=True)
class _Mounted:
    path: Path
    job: str
    finder: _Finder
    module: ModuleType
    files: dict[str, bytes]


_mounted: _Mounted | None = None


def mount(path: Path, file: str, *, job: str = "") -> ModuleType:
    """Import a bundle's main module; `file` is the user's path of the test.

    One bundle is mounted at a time: another one takes its place, and so does the same one for
    another job, which finds its modules as they were written and not as the last job left them.
    Raises what user code raises while being imported.
    """
    global _mounted  # noqa: PLW0603  as sys.modules is: imports are a state of the process
    if _mounted is not None and (_mounted.path, _mounted.job) == (path, job):
        return _mounted.module
    unmount()
    bundle = OpenBundle(path)
    if bundle.classes is not None:
        return _unpickled(bundle.manifest.module, bundle.classes)
    finder = _Finder(_Loader(bundle, Path(file)))
    finder.install()
    try:
        module = import_module(bundle.manifest.module)
    except BaseException:
        finder.remove()
        raise
    _mounted = _Mounted(path, job, finder, module, bundle.files)
    return module


def mounted_files() -> Mapping[str, bytes]:
    """Content of the files the mounted bundle brought, by their path as written."""
    return {} if _mounted is None else _mounted.files


def unmount() -> None:
    """Forgets the mounted bundle and its modules, if there is one."""
    global _mounted  # noqa: PLW0603  as above
    if _mounted is not None:
        _mounted.finder.remove()
        _mounted = None


def _unpickled(name: str, payload: bytes) -> ModuleType:
    import pickle  # noqa: PLC0415  only classes without a file come this way

    module = ModuleType(name)
    # The bytes were made by the parent of this very run, from classes its user wrote.
    vars(module).update(pickle.loads(payload))  # noqa: S301
    return module
