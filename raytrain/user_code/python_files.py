"""Python files: which of them belong to the user, what they import, and which a folder has."""

from __future__ import annotations

import ast
import os
import sysconfig
from pathlib import Path

MOST_BYTES, MOST_FILES = 20 << 20, 2000
"""Upper limits of the modules that are copied into a run."""

_PACKAGE = Path(__file__).parents[1]
_ENVIRONMENT = tuple({f"{Path(sysconfig.get_path(name))}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_own(file: str) -> bool:
    """Return whether a source file is the user's: neither raytrain's, nor Python's, nor an installed package's."""
    environment = file.startswith((f"{_PACKAGE}/", *_ENVIRONMENT)) or "/site-packages/" in file
    return bool(file) and not environment and not (file.startswith("<") and not file.startswith("<ipython"))


def imported_names(text: bytes) -> set[str]:
    """Return the top-level names of all absolute imports in a file, also inside functions."""
    found: set[str] = set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # reported when the file runs
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {str(arg.value).partition(".")[0] for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return found


def python_files(root: Path, folder: Path) -> list[str]:
    """Return the paths, below `root`, of all Python files of a folder, without hidden folders and virtual
    environments."""
    found: list[str] = []
    seen: set[str] = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        if os.path.realpath(path) in seen or "pyvenv.cfg" in files:
            folders.clear()
            continue
        seen.add(os.path.realpath(path))
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        below = Path(path).relative_to(root)
        found += [(below / name).as_posix() for name in sorted(files) if name.endswith(".py") and not is_hidden(name)]
        if len(found) > MOST_FILES:
            break
    return found


def is_hidden(name: str) -> bool:
    """Return whether a path is in a hidden folder, a bytecode cache or `site-packages`, or is a hidden file."""
    return any(part.startswith(".") or part in ("__pycache__", "site-packages") for part in name.split("/"))
