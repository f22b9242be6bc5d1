"""Which checkpoints a run keeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from raytrain.checkpoint.layout import MANIFEST, names_in, remove, size_of, step_of


def expired(
    sizes: Mapping[str, int],
    keep: int,
    best: Mapping[str, str],
    every: int | None = None,
    budget: int | None = None,
) -> list[str]:
    """Return which committed checkpoints to remove, in this order.

    Args:
        sizes: bytes of each, by name.
        keep: how many of the newest to keep.
        best: the best checkpoint as of each; those of the newest are kept, since a run may resume from any of these.
        every: keep also the checkpoints whose step is a multiple of it.
        budget: bytes of all checkpoints: beyond it remove the oldest, then the best one, and never the newest.
    """
    names = sorted(sizes, key=lambda name: step_of(name) or 0)
    newest = names[-keep:]
    stay = {*newest, *(best.get(name, name) for name in newest)}
    stay |= {name for name in names if every and (step_of(name) or 0) % every == 0}
    gone, kept = [name for name in names if name not in stay], [name for name in names if name in stay]
    if budget is not None:
        taken, champion = sum(sizes[name] for name in kept), best.get(names[-1]) if names else None
        for name in sorted(kept[:-1], key=lambda name: name == champion):
            if taken > budget:
                gone.append(name)
                taken -= sizes[name]
    return gone


def prune(folder: Path, expired: Callable[[Mapping[str, int]], list[str]]) -> None:
    """Remove expired checkpoints, and older folders without a manifest.

    Args:
        expired: returns which to remove, by name and bytes.

    Raises:
        OSError: storage refused it. A checkpoint that is partly removed has no manifest.
    """
    there = names_in(folder)
    names = [name for name in there if os.path.isfile(f"{folder}/{name}/{MANIFEST}")]
    left = there[: there.index(names[-1])] if names else []
    gone = expired({name: size_of(f"{folder}/{name}") for name in names})
    for name in [*gone, *(name for name in left if name not in names)]:
        remove(f"{folder}/{name}")


def drop_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after `step`, which did not verify, or which a resumed run will write again.

    Raises:
        OSError: storage refused it.
    """
    for name in names_in(folder):
        if (step_of(name) or 0) > step:
            remove(f"{folder}/{name}")
