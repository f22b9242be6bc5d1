"""How samples are packed, as flags; it imports neither torch nor Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raytrain import config


@dataclass(frozen=True)
class Settings:
    """How samples are packed."""

    codec: Literal["auto", "original", "jpeg", "raw"] = "auto"
    """original keeps the bytes of the image files; jpeg makes images smaller, with their aspect ratio; both keep the
    targets. raw keeps the arrays of all fields as the source returns them, such as decoded images and masks, without
    loss. auto takes original where the source has encoded images without masks, else raw."""
    size: int | None = None
    """jpeg: the shorter side of the packed images, 256 by default; smaller images stay as they are. raw: the side of
    the decoded images; by default the source's."""
    quality: int = 90
    """jpeg: the quality of the encoder, 1 to 100."""
    address: str | None = None
    """Address of a running Ray cluster whose CPUs pack; DEST must be a URL or a folder that its nodes share. By default
    the threads of this process do."""

    def __post_init__(self) -> None:
        sides = (lambda size: 1 <= size <= 1 << 15, "of 1 to 32768")
        config.check(self, size=sides, quality=(lambda quality: 1 <= quality <= 100, "of 1 to 100"))
