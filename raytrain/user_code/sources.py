"""The user's own source code: the experiment file, and the modules and packages below its folder that it imports.

A run keeps copies (`copies.py`), and other processes get the text. One `Sources` is active in a process at a time: the
names of its modules import its files, even if other files on the path have the same names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import linecache
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from raytrain import errors
from raytrain.user_code.python_files import MOST_BYTES, MOST_FILES, imported_names, is_hidden, is_own, python_files

COPY, MODULES, ORIGINS = "experiment.py", "modules", "sources.json"
"""The copy of the experiment file, the folder of the modules' copies, and the file with the paths of the user's own
files."""
REPLACED, REPLACING = "replaced.json", "replacing.json"
"""Which files of a run's code were replaced after which step; and all new code while it is being put in place: while
that file exists, it counts and the other files do not."""

EXPERIMENT_MODULE = "raytrain_experiment"
"""The module name under which an experiment file is imported; saved JSON calls it `experiment`."""

_NEVER = {*sys.stdlib_module_names, "raytrain", "__main__", EXPERIMENT_MODULE}
"""Names that are never the user's modules, even if one of the user's files has such a name."""

LIBRARIES = ("torch", "torchvision", "timm", "torchmetrics", "ray")
"""Packages whose classes and functions need no sources; saved JSON may name them without a file that imports them."""


class Source(NamedTuple):
    """A source file.

    Attributes:
        text: its bytes.
        file: the path that tracebacks and messages name: a file with this text, if one is known.
        origin: the path at which the user edits it; the module's `__file__`.
    """

    text: bytes
    file: str
    origin: str


class Sources:
    """An experiment file and the user's modules that it imports, read before any of them runs.

    Attributes:
        experiment: the experiment file; None if no class of it is needed.
        modules: the other files, by their path below the folder in which they can be imported: `nets/small.py`.
        foreign: whether Python itself has imported them, as in a script.
    """

    def __init__(self, experiment: Source | None, modules: dict[str, Source], foreign: bool = False):
        self.experiment, self.modules, self.foreign = experiment, modules, foreign
        self._roots: tuple[Path, ...] = ()
        self._imported: dict[str, ModuleType] = {}
        self._paths: list[str] = []
        _ALL.add(self)

    # From files

    @classmethod
    def of_file(cls, file: Path) -> Sources:
        """Read an experiment file and all modules that its import statements lead to, directly and indirectly.

        Raises:
            UserError: the modules are too many or too large to be copied.
        """
        found = cls(_source(file.resolve()), {})
        assert found.experiment is not None
        return found._walk((file.resolve().parent,), [found.experiment.text])

    @classmethod
    def known(cls, experiment: Source | None, modules: dict[str, Source]) -> Sources:
        """Return the sources with these files; for equal files the same object, so that a process runs them once."""
        return _KNOWN.get(_digest(experiment, modules)) or cls(experiment, modules)._remembered()

    @property
    def named(self) -> dict[str, Source]:
        """All files: the modules by their path, and the experiment file by an empty string."""
        return ({"": self.experiment} if self.experiment else {}) | dict(sorted(self.modules.items()))

    @property
    def edited(self) -> list[str]:
        """The user's own files that had another text than these copies when they were read."""
        return [one.origin for one in self.named.values() if one.file != one.origin and os.path.isfile(one.origin)]

    def add_imported(self, before: Iterable[str]) -> None:
        """Add modules below the experiment's folder that were imported without an import statement, such as
        by a computed name.

        Args:
            before: the names of the modules that had been imported before the experiment file.
        """
        before, roots, texts = set(before), self._roots, []
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None) or ""
            own = name not in before and name.partition(".")[0] not in {*_NEVER, *self.names} and is_own(file)
            if not own or not any(root in Path(file).parents for root in self._roots):
                continue
            for path in (f"{name.replace('.', '/')}/__init__.py", f"{name.replace('.', '/')}.py"):
                if file.endswith(f"/{path}") and not is_hidden(path):
                    root = Path(file.removesuffix(f"/{path}"))
                    roots += () if root in roots else (root,)
                    texts += self._add(root, path.partition("/")[0].removesuffix(".py"))
        if texts:
            self._walk(roots, texts)

    # Imports

    @property
    def names(self) -> set[str]:
        """The top-level names of the modules and packages, without the experiment file's."""
        return {name.partition("/")[0].removesuffix(".py") for name in self.modules}

    def find(self, name: str) -> tuple[str, Source | None] | None:
        """Return a module's path and its file; None for the file of a package without `__init__.py`."""
        if name == EXPERIMENT_MODULE:
            return (f"{EXPERIMENT_MODULE}.py", self.experiment) if self.experiment else None
        path = name.replace(".", "/")
        for candidate in (f"{path}/__init__.py", f"{path}.py"):
            if candidate in self.modules:
                return candidate, self.modules[candidate]
        return (path, None) if any(other.startswith(f"{path}/") for other in self.modules) else None

    def holds(self, kind: type) -> bool:
        """Return whether a class was made by one of these modules."""
        tops = self.names | ({EXPERIMENT_MODULE, "__main__" if self.foreign else ""} if self.experiment else set())
        return kind.__module__.partition(".")[0] in tops and _is_of(
            kind, sys.modules if self is _active[0] else self._imported
        )

    def mine(self) -> dict[str, ModuleType]:
        """Return the entries of `sys.modules` that have names of these modules."""
        tops = self.names | ({EXPERIMENT_MODULE} if self.experiment else set())
        return {name: module for name, module in [*sys.modules.items()] if name.partition(".")[0] in tops}

    def enter(self) -> None:
        """Put the imported modules into `sys.modules`, and set aside other modules of the same names."""
        if self.foreign:
            return
        for name, module in self.mine().items():
            _aside[name] = module
            del sys.modules[name]
        sys.modules.update(self._imported)
        self._paths = [root for root in map(str, self._roots) if root not in sys.path]
        sys.path += self._paths  # for computed names; last, to shadow nothing

    def leave(self) -> None:
        """Take the imported modules out of `sys.modules`, and restore those that were set aside."""
        self._imported = self.mine()
        if not self.foreign:
            for name in self._imported:
                del sys.modules[name]
            sys.modules.update(_aside)
            sys.path[:] = [path for path in sys.path if path not in self._paths]
        _aside.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.experiment, self.modules)

    # Inside

    def _walk(self, roots: tuple[Path, ...], texts: list[bytes]) -> Sources:
        """Add the modules that some files import from the folders `roots`, directly and indirectly."""
        self._roots = roots
        there = {entry.removesuffix(".py") for root in roots for entry in os.listdir(root)} - _NEVER
        while texts:
            text = texts.pop()
            missing = {name for name in there - self.names if os.fsencode(name) in text}
            for top in sorted(imported_names(text) & missing) if missing else ():
                for root in roots:
                    texts += self._add(root, top)
        return self._remembered()

    def _add(self, root: Path, top: str) -> list[bytes]:
        """Add a module, or all files of a package, and return the texts of those that are new."""
        folder, new = root / top, []
        package = [] if top in self.names else python_files(root, folder) if folder.is_dir() else []
        single = [f"{top}.py"] if (root / f"{top}.py").is_file() and f"{top}/__init__.py" not in package else []
        for name in single or package:
            if name not in self.modules:
                with contextlib.suppress(OSError):
                    self.modules[name] = _source(root / name)
                    new.append(self.modules[name].text)
        sizes = {name: len(source.text) for name, source in self.modules.items()}
        if len(sizes) > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
            largest = max(sizes, key=lambda name: sizes[name])
            raise errors.UserError(
                f"the modules that the experiment imports have {len(sizes):,} files or more, of "
                f"{sum(sizes.values()) / 2**20:.1f} MiB, and {MOST_FILES:,} files of {MOST_BYTES >> 20} MiB may be "
                "copied into a run",
                root,
                f"install the package {top} (`pip install -e`), or import less of it; the largest file is {largest} "
                f"({sizes[largest] / 2**20:.1f} MiB)",
            )
        return new

    def _remembered(self) -> Sources:
        _KNOWN[_digest(self.experiment, self.modules)] = self
        return self


_ALL: weakref.WeakSet[Sources] = weakref.WeakSet()
_KNOWN: weakref.WeakValueDictionary[str, Sources] = weakref.WeakValueDictionary()
"""The sources by the digest of their files, so that a process runs equal files once."""
_active: list[Sources | None] = [None]
_aside: dict[str, ModuleType] = {}
"""Other modules with the names of the active ones."""


def activate(sources: Sources | None) -> None:
    """Make these sources the ones whose names import their modules in this process; None for no sources."""
    before = _active[0]
    if sources is before:
        return
    if before is not None:
        before.leave()
    _active[0] = sources
    if sources is not None:
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        sources.enter()


def use(value: Any) -> Sources | None:
    """Activate the sources of the classes in a value, and return them; None if it has only classes of raytrain, of
    installed packages or of a notebook.

    Args:
        value: an experiment, a sweep or a part of one.
    """
    kinds = [kind for kind in classes(value) if kind.__module__.partition(".")[0] not in ("raytrain", *LIBRARIES)]
    for sources in [*_ALL] if kinds else ():
        held = [sources.holds(kind) for kind in kinds]
        if all(held) or (any(held) and not sources.foreign):  # a script may have imported more in the meantime
            activate(sources)
            return sources
    return _adopted(kinds) if kinds else None


def active() -> Sources | None:
    """Return the sources whose names import their modules in this process."""
    return _active[0]


def source_of(module: str) -> Source | None:
    """Return the file that an imported module was run from, if it is one of the active sources."""
    loader = getattr(sys.modules.get(module), "__loader__", None)
    return loader.source if isinstance(loader, _Loader) else None


def own(module: str) -> bool:
    """Return whether a module is the experiment file's or one of the active sources."""
    active = _active[0]
    return module == EXPERIMENT_MODULE or (active is not None and module.partition(".")[0] in active.names)


def _adopted(kinds: list[type]) -> Sources | None:
    """Return the sources of classes that Python itself has imported, as in a script."""
    activate(None)
    found, roots, texts = Sources(None, {}, foreign=True), [], []
    for name in dict.fromkeys(kind.__module__ for kind in kinds if _is_of(kind, sys.modules)):
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if not file.endswith(".py") or not is_own(os.path.abspath(file)):
            continue
        path = Path(file).resolve()
        if name == "__main__":
            found.experiment = _source(path)
            texts.append(found.experiment.text)
        depth = name.count(".") + (path.name == "__init__.py") if name != "__main__" else 0
        roots.append(path.parents[depth])
        if name != "__main__":
            texts += found._add(roots[-1], name.partition(".")[0])
    if not roots:
        return None
    found._walk(tuple(dict.fromkeys(roots)), texts)
    activate(found)
    return found


def _arrived(experiment: Source | None, modules: dict[str, Source]) -> Sources:
    """Activate sources that come from another process."""
    found = Sources.known(experiment, modules)
    activate(found)
    return found


class _Finder(MetaPathFinder):
    """Finds the modules of the active sources."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how to import a module; None for a module outside the active sources."""
        sources = _active[0]
        if sources is None or sources.foreign or (found := sources.find(fullname)) is None:
            return None
        name, source = found
        if source is None:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = []
            return spec
        package = name.endswith("/__init__.py")
        spec = ModuleSpec(fullname, _Loader(source, sources), origin=source.origin, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [str(Path(source.origin).parent)]
        return spec


class _Loader(Loader):
    """Runs the text of a source file; it reads and writes no bytecode."""

    def __init__(self, source: Source, owner: Sources):
        self.source, self.owner = source, owner  # keeps the owner alive as long as its modules

    def exec_module(self, module: ModuleType) -> None:
        """Run the file as the module."""
        text, file = self.source.text, self.source.file
        lines = text.decode(errors="replace").splitlines(keepends=True)
        linecache.cache[file] = (len(text), None, lines, file)  # for tracebacks, also if the file does not exist
        exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, fullname: str) -> str:
        """Return the text, for `inspect`."""
        return self.source.text.decode(errors="replace")


_FINDER = _Finder()


def _source(path: Path) -> Source:
    return Source(path.read_bytes(), str(path), str(path))


def _digest(experiment: Source | None, modules: dict[str, Source]) -> str:
    found = hashlib.sha256()
    for name, source in [("", experiment), *sorted(modules.items())]:
        if source is not None:
            found.update(f"{name}\0{source.origin}\0{len(source.text)}\0".encode(errors="surrogateescape"))
            found.update(source.text)
    return found.hexdigest()


def _is_of(kind: type, modules: dict[str, ModuleType]) -> bool:
    """Return whether a class is the one that its module has under its name."""
    found: Any = modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    return found is kind


def classes(value: Any) -> Iterator[Any]:
    """Yield the dataclasses in a value, and what wrappers wrap: classes and functions."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from classes(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield vars(type(value)).get("__target__", type(value))  # what a wrapper wraps (wrappers.py)
        for field in dataclasses.fields(value):
            yield from classes(getattr(value, field.name))
