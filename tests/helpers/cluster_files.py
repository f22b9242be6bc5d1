"""The shipped cluster files, filled in."""

from __future__ import annotations

import re

FILLED = {
    "-0123456789abcdef0": "-0a1b2c3d4e5f60718",
    "192.0.2.": "10.1.2.",
    "your-project": "vision-4711",
    "youraccount": "visionruns",
    "registry.example.com": "registry.visions.io:5000",
}


def filled(text: str) -> str:
    """A file whose placeholders and lines marked EDIT were edited."""
    for placeholder, value in FILLED.items():
        text = text.replace(placeholder, value)
    return re.sub(r"^(\s*[^#\s].*?)\s+# EDIT.*$", r"\1", text, flags=re.MULTILINE)
