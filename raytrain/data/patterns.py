"""The names of files by a pattern or a folder, on this machine; and the parts of patterns."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from raytrain.files import is_url


def parted(path: str) -> tuple[str, str]:
    """Return the folder of a path or pattern that no pattern is in, which may be empty, and the rest, which is empty
    for a path that is there."""
    parts = path.split("/")
    if is_url(path):
        odd = (number for number, part in enumerate(parts) if "*" in part or len(expanded(part)) > 1)
        count = next(odd, len(parts) - 1)
    else:  # a folder's own name may look like a pattern
        there = (n for n in range(len(parts), 0, -1) if os.path.exists("/".join(parts[:n]) or "/"))
        count = next(there, 0)
    return "/".join(parts[:count]) or ("/" if count else ""), "/".join(parts[count:])


def expanded(pattern: str) -> list[str]:
    """Return a pattern with its braces replaced: {a,b} by each text, {08..11} by each number, with its zeros."""
    braces = re.search(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    parts = braces[1].split(",")
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        parts = [f"{number:0{len(numbers[1])}}" for number in range(first, last + 1)]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [one for part in parts for one in expanded(f"{before}{part}{after}")]


def matching(path: str) -> list[str]:
    """Return the paths on this machine that a pattern without braces names, sorted; a path without `*` as it is."""
    folder, pattern = parted(path)
    return sorted(glob.glob(below(glob.escape(folder), escaped(pattern)))) if "*" in pattern else [path]


def below(folder: str, rest: str) -> str:
    """Return the two parts of a path as one."""
    return os.path.join(folder, rest) if rest else folder


def escaped(pattern: str) -> str:
    """Return a pattern in which only `*` has a meaning."""
    return re.sub(r"[\[?]", r"[\g<0>]", pattern)


def files_below(root: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the paths of files in a folder and all folders below it, sorted. Links to folders are followed after all
    else, so that a folder that is reached twice goes by its own name."""
    found, seen, starts = list[str](), set[tuple[int, int]](), [root]
    for start in starts:  # grows in the loop
        for folder, folders, names in os.walk(start):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            starts += [path for name in sorted(folders) if os.path.islink(path := os.path.join(folder, name))]
            paths = (os.path.join(folder, name) for name in names if name.lower().endswith(suffixes))
            found += [str(Path(path)) for path in paths if os.path.isfile(path)]
    return sorted(found)
