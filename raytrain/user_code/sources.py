"""The user's own source code: the experiment file, and the modules and packages below its folder that it imports.

A run keeps copies (`experiment.py`, `modules/`), and other processes get the text. One `Sources` is active in a process
at a time: its modules are what their names import, whatever other files have these names.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import inspect
import json
import linecache
import os
import re
import shutil
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from raytrain import errors
from raytrain.files import known_json, read_json, write_atomically

EXPERIMENT_MODULE = "raytrain_experiment"
"""The module name under which an experiment file is imported; saved JSON calls it `experiment`."""
COPY, MODULES, ORIGINS = "experiment.py", "modules", "sources.json"
"""What a run has of the sources: the experiment file, the modules, and the paths of the user's own files."""
REPLACED, REPLACING = "replaced.json", "replacing.json"
"""Which files of a run's code were replaced after which step; and the whole new code while it is being put in place:
once that file is there, it counts, and the other files no longer."""
MOST_BYTES, MOST_FILES = 20 << 20, 2000
"""What may be copied into a run."""

_LONGEST = 400
"""Characters of an exception's text in an error of one line."""
_PACKAGE = Path(__file__).parents[1]
_ENVIRONMENT = tuple({f"{Path(sysconfig.get_path(name))}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NEVER = {*sys.stdlib_module_names, "raytrain", "__main__", EXPERIMENT_MODULE}
"""Names that are never the user's modules, whatever files have them."""


class Source(NamedTuple):
    """A source file.

    Attributes:
        text: its bytes.
        file: the path that tracebacks and messages name: a file with this text, where one is known.
        origin: the path at which the user edits it; the module's `__file__`.
    """

    text: bytes
    file: str
    origin: str


class Sources:
    """An experiment file and the user's modules that it imports, read before any of them runs.

    Attributes:
        experiment: the experiment file; None where no class of it is needed.
        modules: the other files, by their path below the folder in which they can be imported: `nets/small.py`.
        foreign: whether Python itself has imported them, as in a script.
    """

    def __init__(self, experiment: Source | None, modules: dict[str, Source], foreign: bool = False):
        self.experiment, self.modules, self.foreign = experiment, modules, foreign
        self._roots: tuple[Path, ...] = ()
        self._imported: dict[str, ModuleType] = {}
        self._paths: list[str] = []
        _ALL.add(self)

    # From files, and to files

    @classmethod
    def of_file(cls, file: Path) -> Sources:
        """Read an experiment file and all modules that its import statements lead to, wherever they stand in it.

        Raises:
            UserError: the modules are too many or too large to be copied.
        """
        found = cls(_source(file.resolve()), {})
        assert found.experiment is not None
        return found._walk((file.resolve().parent,), [found.experiment.text])

    @classmethod
    def read(cls, folder: Path) -> Sources | None:
        """Read the copies in the directory of a run or a sweep; None where it has no experiment file and no modules.

        Raises:
            UserError: its code was being replaced, and the file with the new code is damaged.
        """
        new = _replacing(folder)
        if new is None:
            origins, below = known_json(folder / ORIGINS), folder / MODULES
            copies = [COPY, *(f"{MODULES}/{name}" for name in (_files(below, below) if below.is_dir() else ()))]
            texts = {name: (folder / name).read_bytes() for name in copies if (folder / name).is_file()}
            if os.path.lexists(folder / REPLACING):  # another command has just begun to replace what was read
                return cls.read(folder)
        else:
            origins = json.loads(new[ORIGINS])
            texts = {name: text for name, text in new.items() if name == COPY or name.startswith(f"{MODULES}/")}
        named = {name: "" if name == COPY else name.removeprefix(f"{MODULES}/") for name in texts}
        sources = {named[name]: _copied(text, folder / name, origins.get(named[name])) for name, text in texts.items()}
        if not sources:
            return None
        experiment = sources.pop("", None)
        return _KNOWN.get(_digest(experiment, sources)) or cls(experiment, sources)._known()

    @property
    def named(self) -> dict[str, Source]:
        """All files: the modules by their path, and the experiment file by an empty string."""
        return ({"": self.experiment} if self.experiment else {}) | dict(sorted(self.modules.items()))

    @property
    def edited(self) -> list[str]:
        """The user's own files that had another text than these copies when they were read."""
        return [one.origin for one in self.named.values() if one.file != one.origin and os.path.isfile(one.origin)]

    def files(self) -> dict[str, bytes]:
        """Return the files that the directory of a run or a sweep has of these, by their path below it."""
        files = {f"{MODULES}/{name}" if name else COPY: source.text for name, source in self.named.items()}
        origins = {name: source.origin for name, source in self.named.items()}
        return files | {ORIGINS: (json.dumps(origins, indent=2) + "\n").encode()}

    def save(self, folder: Path) -> None:
        """Copy the files into the directory of a run or a sweep."""
        _write(folder, self.files())

    def add_imported(self, before: Iterable[str]) -> None:
        """Add modules below the experiment's folder that were imported otherwise, such as by a name that was computed.

        Args:
            before: the names of the modules that were imported before the experiment file was.
        """
        before, roots, texts = set(before), self._roots, []
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None) or ""
            own = name not in before and name.partition(".")[0] not in {*_NEVER, *self.names} and is_own(file)
            if not own or not any(root in Path(file).parents for root in self._roots):
                continue
            for path in (f"{name.replace('.', '/')}/__init__.py", f"{name.replace('.', '/')}.py"):
                if file.endswith(f"/{path}") and not _hidden(path):
                    root = Path(file.removesuffix(f"/{path}"))
                    roots += () if root in roots else (root,)
                    texts += self._add(root, path.partition("/")[0].removesuffix(".py"))
        if texts:
            self._walk(roots, texts)

    # Imports

    @property
    def names(self) -> set[str]:
        """The names of the modules and packages at the top, without the experiment file's."""
        return {name.partition("/")[0].removesuffix(".py") for name in self.modules}

    def find(self, name: str) -> tuple[str, Source | None] | None:
        """Return a module's path and its file; None for the file of a package without `__init__.py`."""
        if name == EXPERIMENT_MODULE:
            return (COPY, self.experiment) if self.experiment else None
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
        """Put the imported modules into `sys.modules`, and aside what else has their names there."""
        if self.foreign:
            return
        for name, module in self.mine().items():
            _aside[name] = module
            del sys.modules[name]
        sys.modules.update(self._imported)
        self._paths = [root for root in map(str, self._roots) if root not in sys.path]
        sys.path += self._paths  # for names that are computed; last, so as to shadow nothing

    def leave(self) -> None:
        """Take the imported modules out of `sys.modules`, and bring back what was put aside."""
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
        """Add what some files import from the folders `roots`, and what that imports."""
        self._roots = roots
        there = {entry.removesuffix(".py") for root in roots for entry in os.listdir(root)} - _NEVER
        while texts:
            text = texts.pop()
            missing = {name for name in there - self.names if os.fsencode(name) in text}
            for top in sorted(_imports(text) & missing) if missing else ():
                for root in roots:
                    texts += self._add(root, top)
        return self._known()

    def _add(self, root: Path, top: str) -> list[bytes]:
        """Add a module, or all files of a package, and return the texts of those that are new."""
        folder, new = root / top, []
        package = [] if top in self.names else _files(root, folder) if folder.is_dir() else []
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

    def _known(self) -> Sources:
        _KNOWN[_digest(self.experiment, self.modules)] = self
        return self


_ALL: weakref.WeakSet[Sources] = weakref.WeakSet()
_KNOWN: weakref.WeakValueDictionary[str, Sources] = weakref.WeakValueDictionary()
"""By the digest of the files, so that files are run once in a process."""
_active: list[Sources | None] = [None]
_aside: dict[str, ModuleType] = {}
"""Other modules of the active ones' names."""


def activate(sources: Sources | None) -> None:
    """Let the names of some modules import these, in this process."""
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
    """Activate the sources of the classes in a value, and return them; None where it has only classes of raytrain or of
    installed packages, or of a notebook.

    Args:
        value: an experiment, a sweep or a part of one.
    """
    kinds = [kind for kind in _classes(value) if not kind.__module__.startswith("raytrain.")]
    for sources in [*_ALL] if kinds else ():
        held = [sources.holds(kind) for kind in kinds]
        if all(held) or (any(held) and not sources.foreign):  # a script may have imported more since
            activate(sources)
            return sources
    return _adopted(kinds) if kinds else None


def keep(value: Any, source: Path | None, folder: Path) -> None:
    """Copy the sources of a value into the directory of a run or a sweep.

    Args:
        value: an experiment or a sweep.
        source: the file that it came from, which is copied also where no class of it is needed.
    """
    found, active = use(value), _active[0]
    if found is None and source is not None:
        if active and active.experiment and active.experiment.origin == str(source.resolve()):
            found = active
        else:
            found = Sources.read(source.parent) if source.name == COPY else Sources.of_file(source)
    if found is not None:
        found.save(folder)


def link(source: Path, folder: Path) -> None:
    """Give a trial's directory what `keep` has put into the sweep's, as links where the disk has them."""
    names = [COPY, ORIGINS, *(f"{MODULES}/{name}" for name in _files(source / MODULES, source / MODULES))]
    for name in names:
        if (source / name).is_file() and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source / name, folder / name)
            except OSError:
                shutil.copyfile(source / name, folder / name)


def active() -> Sources | None:
    """Return the sources whose names import their modules in this process."""
    return _active[0]


def replace(folder: Path, files: dict[str, bytes]) -> None:
    """Let a run have other code from now on: one file takes its place with all of it, which `settle` puts in place.

    Args:
        files: as `Sources.files` returns them, and `REPLACED`.

    Raises:
        OSError: storage refuses it; the old code stays.
    """
    texts = {name: text.decode(errors="surrogateescape") for name, text in files.items()}
    write_atomically(folder / REPLACING, json.dumps({"files": texts}))


def settle(folder: Path) -> None:
    """Put a run's new code in place, where a command has replaced it. `settled` ends that.

    Raises:
        OSError: storage refuses it; the new code counts nevertheless.
        UserError: the file with the new code is damaged.
    """
    new = _replacing(folder)
    if new is not None:
        _write(folder, new)
        for name in _files(folder / MODULES, folder / MODULES):
            if f"{MODULES}/{name}" not in new:
                (folder / MODULES / name).unlink()


def settled(folder: Path) -> None:
    """Remove the file with a run's new code, once all of it is in place.

    Raises:
        OSError: storage refuses it.
    """
    (folder / REPLACING).unlink(missing_ok=True)


def replaced(folder: Path) -> list[dict[str, Any]]:
    """Return what was replaced of a run's code, the oldest first: `step`, the last one of the old code; `changed`, the
    names of the files; `file`, the path of the new experiment file."""
    try:
        new = _replacing(folder)
        found = known_json(folder / REPLACED) if new is None else json.loads(new.get(REPLACED, b"{}"))
        return [
            {"step": int(one["step"]), "changed": [str(name) for name in one["changed"]], "file": str(one["file"])}
            for one in found.get("replaced", [])
        ]
    except (KeyError, TypeError, ValueError, errors.UserError):  # it is for people
        return []


def own(module: str) -> bool:
    """Return whether a module is the experiment file's or one of the active sources."""
    active = _active[0]
    return module == EXPERIMENT_MODULE or (active is not None and module.partition(".")[0] in active.names)


def _adopted(kinds: list[type]) -> Sources | None:
    """The sources of classes that Python itself has imported, as in a script."""
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
    found = _KNOWN.get(_digest(experiment, modules)) or Sources(experiment, modules)._known()
    activate(found)
    return found


class _Finder(MetaPathFinder):
    """Finds the modules of the active sources."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how to import a module; None for those of others."""
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
        self.source, self.owner = source, owner  # which lives as long as a module of it does

    def exec_module(self, module: ModuleType) -> None:
        """Run the file as the module."""
        text, file = self.source.text, self.source.file
        lines = text.decode(errors="replace").splitlines(keepends=True)
        linecache.cache[file] = (len(text), None, lines, file)  # for tracebacks, also where there is no such file
        exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, fullname: str) -> str:
        """Return the text, as inspect asks for it."""
        return self.source.text.decode(errors="replace")


_FINDER = _Finder()


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text)


def _replacing(folder: Path) -> dict[str, bytes] | None:
    """The code that takes the place of a run's, as `replace` was given it; None where that is not under way.

    Raises:
        UserError: the file is damaged.
    """
    file, how = folder / REPLACING, "remove it, and go on with `raytrain resume RUN --experiment FILE`"
    try:
        texts = read_json(file)["files"]
        files = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
        json.loads(files[ORIGINS])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise errors.UserError(f"the run's new code cannot be read: {error}", file, how) from None
    modules = [name for name in files if name not in (COPY, ORIGINS, REPLACED)]
    if any(not name.startswith(f"{MODULES}/") or not name.endswith(".py") or _hidden(name) for name in modules):
        raise errors.UserError("the run's new code has files with other names than a run's code has", file, how)
    return files


def _source(path: Path) -> Source:
    return Source(path.read_bytes(), str(path), str(path))


def _copied(text: bytes, path: Path, origin: Any) -> Source:
    """A run's copy of a file, which is named by the user's own file as long as that has the same text."""
    copy = str(path.resolve())
    if not isinstance(origin, str):
        return Source(text, copy, copy)
    same = False
    with contextlib.suppress(OSError, ValueError):
        same = os.path.isfile(origin) and Path(origin).read_bytes() == text
    return Source(text, origin if same else copy, origin)


def _digest(experiment: Source | None, modules: dict[str, Source]) -> str:
    found = hashlib.sha256()
    for name, source in [("", experiment), *sorted(modules.items())]:
        if source is not None:
            found.update(f"{name}\0{source.origin}\0{len(source.text)}\0".encode(errors="surrogateescape"))
            found.update(source.text)
    return found.hexdigest()


def _imports(text: bytes) -> set[str]:
    """The names at the top of all absolute imports in a file, also inside functions."""
    found: set[str] = set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # which shows when it runs
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {str(arg.value).partition(".")[0] for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return found


def _files(root: Path, folder: Path) -> list[str]:
    """All Python files of a folder, by their paths below `root`, without hidden folders and virtual environments."""
    found: list[str] = []
    seen: set[str] = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        if os.path.realpath(path) in seen or "pyvenv.cfg" in files:
            folders.clear()
            continue
        seen.add(os.path.realpath(path))
        folders[:] = sorted(name for name in folders if not _hidden(name))
        below = Path(path).relative_to(root)
        found += [(below / name).as_posix() for name in sorted(files) if name.endswith(".py") and not _hidden(name)]
        if len(found) > MOST_FILES:
            break
    return found


def _hidden(name: str) -> bool:
    return any(part.startswith(".") or part in ("__pycache__", "site-packages") for part in name.split("/"))


def _is_of(kind: type, modules: dict[str, ModuleType]) -> bool:
    """Whether a class is the one that its module has under its name."""
    found: Any = modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    return found is kind


def _classes(value: Any) -> Iterator[type]:
    """The dataclasses in a value."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _classes(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for field in dataclasses.fields(value):
            yield from _classes(getattr(value, field.name))


# Messages


def place(thing: type | Callable[..., Any]) -> str:
    """Return the name of a class or a function for a message, with file and line where it is not raytrain's own:
    `Net (exp.py:12)`."""
    name, module = getattr(thing, "__qualname__", str(thing)), str(getattr(thing, "__module__", ""))
    if module.startswith("raytrain."):
        return name
    code = getattr(inspect.unwrap(thing), "__code__", None)
    if code:
        return f"{name} ({code.co_filename}:{code.co_firstlineno})"
    loader = getattr(sys.modules.get(module), "__loader__", None)
    try:
        if isinstance(loader, _Loader):
            return f"{name} ({loader.source.file}:{_line_of_class(loader.source.text, name)})"
        return f"{name} ({inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]})"
    except (OSError, TypeError):  # a notebook's class, or one that is not written in Python
        return name


def _line_of_class(text: bytes, name: str) -> int:
    body: Any = ast.parse(text)
    for part in name.split("."):
        body = next((node for node in ast.walk(body) if isinstance(node, ast.ClassDef) and node.name == part), body)
    return getattr(body, "lineno", 1)


def line_of(error: BaseException) -> str:
    """Return `file:line` of the innermost frame of an error in the user's own code; an empty string where there is
    none."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def to_edit(place: str) -> str:
    """Return the user's own file that a place in the active sources comes from, with the line where that is known: the
    copy of a run names a line of itself once the user's file has changed.

    Args:
        place: text with `file:line`, such as `Net (exp.py:12)`.

    Returns:
        `file:line` or a file; an empty string for a place that is in none of the active sources.
    """
    _, source, line = _placed(place)
    return "" if source is None else f"{source.origin}:{line}" if source.file == source.origin else source.origin


def copy_of(place: str) -> str:
    """Return the path, below its directory, at which a run has the file of a place in the active sources; an empty
    string for a place that is in none of them."""
    name, source, _ = _placed(place)
    return "" if source is None else f"{MODULES}/{name}" if name else COPY


def _placed(place: str) -> tuple[str, Source | None, str]:
    """Return the name, the file and the line of a place in the active sources."""
    for name, source in _active[0].named.items() if _active[0] else ():
        if found := re.search(rf"(?:^|[ (]){re.escape(source.file)}:(\d+)", place):
            return name, source, found[1]
    return "", None, ""


def is_own(file: str) -> bool:
    """Return whether a source file is the user's: neither raytrain's, nor Python's, nor an installed package's."""
    environment = file.startswith((f"{_PACKAGE}/", *_ENVIRONMENT)) or "/site-packages/" in file
    return bool(file) and not environment and not (file.startswith("<") and not file.startswith("<ipython"))


@contextlib.contextmanager
def calling(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into one that names its line; `UserError` and `BadSample` pass.

    Args:
        what: what is called, such as `Net.build`.

    Raises:
        UserError: the code raised anything else.
    """
    try:
        yield
    except (errors.UserError, errors.BadSample):
        raise
    except Exception as error:
        raise failed(what, error) from None


def failed(what: str, error: BaseException) -> errors.UserError:
    """Return the error for an exception that the user's code raised when `what` was called."""
    if isinstance(error, NotImplementedError) and not line_of(error):  # a base class's own
        return errors.UserError(str(error), "in the experiment", "write that method")
    return errors.UserError(
        f"{what} fails: {reason(error)}", line_of(error) or "in the experiment", "correct it and try again"
    )


def reason(error: BaseException) -> str:
    """Return an exception's class and text in one line."""
    said = " ".join(str(error).split())
    said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]} ..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
