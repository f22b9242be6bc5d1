"""Scripts of the documentation, run as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def succeeds(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Python in a folder, and return what it prints."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=400,
                          env={**os.environ, **environment})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changed(text: str, before: str, after: str) -> str:
    """Return text with the one place that reads `before` replaced."""
    assert text.count(before) == 1, before
    return text.replace(before, after)


def write_shapes(folder: Path, count: int, side: int) -> None:
    """Write images of two classes below `shapes`, `count` of each to train and to validate on."""
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for name, light in (("dark", 60), ("light", 200)):
            (folder / "shapes" / split / name).mkdir(parents=True)
            for number in range(count):
                image = random.integers(0, 50, (side, side, 3), np.uint8) + np.uint8(light)
                Image.fromarray(image).save(folder / "shapes" / split / name / f"{number}.png")
