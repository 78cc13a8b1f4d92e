"""Bundles: packs a test for the processes that run it, and imports its modules there.

A bundle is a zip of the test file, the local modules it imports and the files it names, addressed
by the SHA-256 of its bytes. The same input gives the same bytes everywhere: sorted entries, one
timestamp, nothing compressed (deflate differs between zlib builds). Executors import from the
bundle itself, so a file edited during a test changes nothing, and no unpacked files are left.

Classes without a file (a notebook, a prompt), or within a function or class, are sent by
cloudpickle instead, with all they use of modules that are not installed. Those bytes are not
reproducible, so such a bundle has a random name.
"""

import contextlib
import hashlib
import io
import linecache
import os
import sys
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import MappingProxyType, ModuleType

import msgspec
from msgspec import Struct, field

from hyperscale.errors import InputError, InvariantError
from hyperscale.execution.imports import read_bytes, scan
from hyperscale.graph.loading import import_error, is_installed
from hyperscale.plan.limits import BUNDLE_BYTES_MAX

_BIGGEST_SHOWN = 5
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip can hold
_MANIFEST = "manifest.json"
_CLASSES = "classes.pickle"


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of a bundle. It holds no path of the user's machine."""

    schema: int = 1
    module: str  # the module holding the workflows
    sources: dict[str, str] = field(default_factory=dict)  # module -> entry
    files: dict[str, str] = field(default_factory=dict)  # path as written -> entry


@dataclass(frozen=True, slots=True)
class Bundle:
    name: str  # the SHA-256 of the payload; random if the payload is not reproducible
    payload: bytes

    def write(self, directory: Path) -> Path:
        """Write the bundle to a file in `directory`, whole or not at all."""
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
    """Bundle a test file; `imports.scan` explains `module` and `loaded`.

    `files` has the paths of the files that the test names, by the path as written. A module of an
    installed package is not copied: it must be installed where the test runs.
    """
    if module is not None and is_installed(file):
        return _pack(Manifest(module=module), {})
    main, found = scan(file, module=module, loaded=loaded)
    sources = {source.module: f"src/{source.path_in_root.as_posix()}" for source in found}
    entries = {sources[source.module]: read_bytes(source.path) for source in found}
    named: dict[str, str] = {}
    for written, path in files.items():
        # Named by content: the path as written may be absolute or lead upwards.
        content = read_bytes(Path(path))
        named[written] = f"files/{hashlib.sha256(content).hexdigest()}"
        entries[named[written]] = content
    return _pack(Manifest(module=main, sources=sources, files=named), entries)


def bundle_classes(classes: Sequence[type]) -> Bundle:
    """Bundle classes of one module that exist only in this process."""
    import cloudpickle  # noqa: PLC0415 - most tests have a file

    names = ", ".join(cls.__name__ for cls in classes)
    local = [module for module in list(sys.modules.values()) if _is_local(module)]
    try:
        # What the classes use of local modules goes with them: executors cannot import those.
        for module in local:
            cloudpickle.register_pickle_by_value(module)
        payload = cloudpickle.dumps({cls.__name__: cls for cls in classes})
    except Exception as error:
        raise InputError(
            f"{names}: cannot be sent to executors: {type(error).__name__}: {error}",
            hint="keep open files, locks and connections out of the class, "
            "or put it in a file of its own",
        ) from error
    finally:
        for module in local:
            with contextlib.suppress(ValueError):  # not registered, because another one failed
                cloudpickle.unregister_pickle_by_value(module)
    packed = _pack(Manifest(module=classes[0].__module__), {_CLASSES: payload})
    return Bundle(f"classes-{uuid.uuid4().hex}", packed.payload)


def _is_local(module: object) -> bool:
    """Return True if a module is the user's own and not installed, so executors may not have it."""
    name = str(getattr(module, "__name__", ""))
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str):
        return False
    is_ours = name.partition(".")[0] == "hyperscale"
    return not is_ours and name in sys.modules and not is_installed(Path(file))


def merged(bundles: Sequence[tuple[Bundle, Sequence[str]]]) -> Bundle:
    """Merge bundles, each given with the names of its workflow classes.

    The main module of the merged bundle imports the classes from their modules.
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
    # Named after its content: no module of a user has such a name.
    text = "".join(lines).encode()
    main = f"_workflows_{hashlib.sha256(text).hexdigest()[:16]}"
    sources[main], entries[f"src/{main}.py"] = f"src/{main}.py", text
    return _pack(Manifest(module=main, sources=sources, files=files), entries)


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
            hint="let the test open large files itself, on the machines where it runs",
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
    return Bundle(hashlib.sha256(payload).hexdigest(), payload)


class OpenBundle:
    """The manifest, sources and files of a bundle."""

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
        """Content of the files that the test names, by the path as written."""
        return {name: self._entries[entry] for name, entry in self.manifest.files.items()}


def bundled_modules(bundle: Bundle) -> list[str]:
    """Return the names of the modules whose source is in a bundle."""
    return list(OpenBundle(io.BytesIO(bundle.payload)).manifest.sources)


class _Importer(SourceLoader):
    """Imports the modules of a bundle, and no others.

    Each module keeps the file name it had on the user's machine: tracebacks show it, and on that
    machine `Path(__file__).parent / "data.csv"` is found.
    """

    def __init__(self, bundle: OpenBundle, file: Path) -> None:
        self._bundle = bundle
        sources = bundle.manifest.sources
        # "src/a/b.py" is two directories below its root; so is the file it was made from.
        depth = sources.get(bundle.manifest.module, "src/").count("/") - 1
        # The path of the test may be a name alone.
        root = file.parents[depth] if depth < len(file.parents) else Path()
        self._names = {
            module: str(root / entry.removeprefix("src/")) for module, entry in sources.items()
        }
        # Directories without __init__.py: packages of no code.
        self._namespaces = {
            ".".join(parts[:count])
            for parts in (module.split(".") for module in sources)
            for count in range(1, len(parts))
        } - set(sources)

    @property
    def main(self) -> str:
        return self._bundle.manifest.module

    @property
    def modules(self) -> set[str]:
        return {*self._names, *self._namespaces}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname in self._names:
            return spec_from_loader(fullname, self)
        if fullname in self._namespaces:
            return ModuleSpec(fullname, None, is_package=True)
        return None

    def get_filename(self, fullname: str) -> str:
        try:
            return self._names[fullname]
        except KeyError:
            raise ImportError(f"no module {fullname!r} in the bundle", name=fullname) from None

    def is_package(self, fullname: str) -> bool:
        return self._bundle.manifest.sources[fullname].endswith("/__init__.py")

    def get_data(self, path: str) -> bytes:
        for module, name in self._names.items():
            if name == path:
                return self._bundle.source(module)
        return Path(path).read_bytes()

    def install(self) -> None:
        for module, name in self._names.items():
            # A module of the same name from elsewhere must not be used instead.
            sys.modules.pop(module, None)
            # Tracebacks and `inspect` show the lines that run, even if the file has changed:
            # without a modification time linecache never reads the file.
            text = self.get_source(module) or ""
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        sys.meta_path.remove(self)
        for name in self._names.values():
            linecache.cache.pop(name, None)
        for module in self.modules:
            sys.modules.pop(module, None)


@dataclass(frozen=True, slots=True)
class _Mounted:
    path: Path
    job: str
    importer: _Importer
    module: ModuleType
    files: dict[str, bytes]


_mounted: _Mounted | None = None


def mount(path: Path, file: str, *, job: str = "") -> ModuleType:
    """Import the main module of a bundle; `file` is the user's path of the test.

    One bundle is mounted at a time. A bundle is imported again for another job, which must not see
    what the last job did to its modules. Raises what user code raises while it is imported.
    """
    global _mounted  # noqa: PLW0603 - imports are a state of the process, like sys.modules
    if _mounted is not None and (_mounted.path, _mounted.job) == (path, job):
        return _mounted.module
    unmount()
    bundle = OpenBundle(path)
    if bundle.classes is not None:
        import pickle  # noqa: PLC0415 - only for classes without a file

        module = ModuleType(bundle.manifest.module)
        # The parent of this run made these bytes, from classes that its user wrote.
        vars(module).update(pickle.loads(bundle.classes))  # noqa: S301
        return module
    importer = _Importer(bundle, Path(file))
    importer.install()
    try:
        module = import_module(importer.main)
    except BaseException:
        importer.remove()
        raise
    _mounted = _Mounted(path, job, importer, module, bundle.files)
    return module


@contextlib.contextmanager
def imported_anew(bundle: Bundle, file: str) -> Iterator[ModuleType]:
    """Import the modules of a bundle as an executor does; afterwards this process has the modules
    that it had before. Raises InputError if the import fails."""
    importer = _Importer(OpenBundle(io.BytesIO(bundle.payload)), Path(file))
    kept = {name: sys.modules[name] for name in importer.modules if name in sys.modules}
    importer.install()
    try:
        try:
            module = import_module(importer.main)
        except Exception as error:
            raise import_error(error, Path(file)) from error
        yield module
    finally:
        importer.remove()
        sys.modules.update(kept)


def mounted_files() -> Mapping[str, bytes]:
    """Return the content of the files in the mounted bundle, by their path as written."""
    return {} if _mounted is None else _mounted.files


def unmount() -> None:
    """Forget the mounted bundle and its modules, if there is one."""
    global _mounted  # noqa: PLW0603 - as above
    if _mounted is not None:
        _mounted.importer.remove()
        _mounted = None
