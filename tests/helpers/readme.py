"""The README's commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


README = (ROOT / "README.md").read_text()


COMMANDS = re.findall(r"^    ((?:raytrain|make) .*)$", README, re.MULTILINE)


def the(start: str) -> str:
    """The one command of README that begins so."""
    found = [command for command in COMMANDS if command.startswith(start)]
    assert len(found) == 1, f"{start}: {found}"
    return found[0]
