"""The font of text in pictures."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from PIL import ImageFont


def font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return DejaVu Sans, which matplotlib brings along: Pillow's own font has no letters beyond ASCII.

    Pillow's where that file is not there.
    """
    found = importlib.util.find_spec("matplotlib")  # its path, without its import
    folder = Path(found.origin or "").parent if found else Path()
    try:
        return ImageFont.truetype(folder / "mpl-data/fonts/ttf/DejaVuSans.ttf", 10)
    except OSError:
        return ImageFont.load_default()
