"""Build the site of the documentation into build/site, without a network; a broken link or anchor fails.

    python docs/build.py

Zensical reads one folder, so the pages of docs/ and the generated reference are put together in build/docs first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import links
import reference

DOCS = Path(__file__).parent
ROOT = DOCS.parent


def stage(folder: Path) -> None:
    """Copy the pages and pictures of docs/ to a folder, and write the reference there."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "reference").mkdir(parents=True)
    for file in sorted(DOCS.rglob("*")):
        if file.suffix in (".md", ".ipynb", ".svg", ".webp", ".js") and file.is_file():
            (target := folder / file.relative_to(DOCS)).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
    for name, text in reference.pages().items():
        (folder / "reference" / name).write_text(text)


def listed(nav: list) -> Iterator[str]:
    """Yield the pages that the navigation names."""
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else listed(value)


def main() -> int:
    """Build the site; return 1 if a page is in no menu or a link is broken, else Zensical's status."""
    shown = set(listed(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    stage(folder := ROOT / "build" / "docs")
    pages = {str(file.relative_to(folder)) for file in folder.rglob("*.md")}
    wrong = [f"{name}: not in both nav of zensical.toml and the pages; edit nav" for name in sorted(shown ^ pages)]
    wrong += links.broken(sorted(folder.rglob("*.md")))
    if wrong:
        print("\n".join(["error: the site cannot be built", *wrong]), file=sys.stderr)
        return 1
    return subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
