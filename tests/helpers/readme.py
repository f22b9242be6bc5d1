"""The commands and the code of the README and of the pages of docs/ that grew out of it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("first-run", "speed", "strategies", "finding", "runs", "failures", "sweeps", "clusters", "own")
FILES = [ROOT / "README.md", *(ROOT / "docs" / f"{page}.md" for page in PAGES)]
TEXT = "\n".join(file.read_text() for file in FILES)

# Once each: the README repeats some commands of the pages, word for word.
COMMANDS = list(dict.fromkeys(re.findall(r"^    ((?:raytrain|make) .*)$", TEXT, re.MULTILINE)))
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def the(start: str) -> str:
    """The one command of these pages that begins so."""
    found = [command for command in COMMANDS if command.startswith(start)]
    assert len(found) == 1, f"{start}: {found}"
    return found[0]
