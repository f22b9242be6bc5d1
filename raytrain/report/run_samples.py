"""The samples of a validation that have the highest loss, with their pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from raytrain.data.overlay import PALETTE, overlaid
from raytrain.report.html import cell, safe, table
from raytrain.report.trials import cut

_SIDE, _SMALL, _NAME = 224, 64, 80
"""Pixels of a picture's longer side at the most; up to which it is kept exactly; characters of a sample's name."""


@dataclass(frozen=True)
class Sample:
    """A sample of the validation split, and what the model made of it.

    Attributes:
        number: in the split.
        loss: of this sample.
        facts: what to say of it, by name.
        answer: a few words for its picture: what it is and what it was taken for.
        image: float32 [channels, height, width] from 0 to 1, as the model saw it; None if the input is no image.
        masks: int [height, width], the true classes of the pixels (-1 does not count) and the model's.
    """

    number: int
    loss: float
    facts: tuple[tuple[str, str], ...]
    answer: str
    image: np.ndarray | None = None
    masks: tuple[np.ndarray, np.ndarray] | None = None


def gallery(samples: Sequence[Sample], names: Sequence[str], classes: Sequence[str] = ()) -> str:
    """Return the samples as a list with their pictures, or as a table where there are none.

    Args:
        names: of the samples.
        classes: the names of the classes of masks; one without a name is shown by its number.
    """
    if not samples:
        return ""
    named = list(zip(samples, (cut(name, _NAME) for name in names), strict=True))
    if samples[0].image is None:
        heads = [name for name, _ in samples[0].facts]
        rows = [(name, *(value for _, value in one.facts), one.loss) for one, name in named]
        return table("Samples with the highest loss", ("sample", *heads, "loss"), rows)
    items = ""
    for one, name in named:
        facts = "".join(f"<div>{safe(key)} {safe(value)}</div>" for key, value in one.facts)
        picture = _picture(one, f"{name}: {one.answer}")
        items += (
            f"<li>{picture}<strong>{safe(one.answer)}</strong>{facts}<div>loss {safe(cell(one.loss))}</div>"
            f'<div class="muted">{safe(name)}</div></li>'
        )
    wide = samples[0].masks is not None
    said = f"<p class='muted'>Left: the true mask. Right: the model's.</p>{_legend(samples, classes)}" if wide else ""
    return f'{said}<ul class="samples{" wide" if wide else ""}">{items}</ul>'


def _legend(samples: Sequence[Sample], classes: Sequence[str]) -> str:
    """Return the colours and names of the classes that the masks of some samples have."""
    numbers = {int(number) for one in samples for mask in one.masks or () for number in np.unique(mask)}
    each = ""
    for number in sorted(numbers):
        name = cut(classes[number], _NAME) if 0 <= number < len(classes) else f"class {number}"
        if number <= 0:  # pixels that do not count have no colour either
            each += "" if number < 0 else f"<li>{safe(name)}: without a colour</li>"
            continue
        fill = "#{:02x}{:02x}{:02x}".format(*PALETTE[(number - 1) % len(PALETTE)])
        mark = f'<svg viewBox="0 0 32 12"><rect width="32" height="12" fill="{fill}"/></svg>'
        each += f"<li>{mark}{safe(name)}</li>"
    return f'<ul class="legend">{each}</ul>'


def _picture(one: Sample, said: str) -> str:
    """Return a sample's picture as HTML, with its bytes inside."""
    assert one.image is not None
    seen = _thumbnail(one.image)
    if one.masks is not None:
        sides = [overlaid(seen, mask) for mask in one.masks]
        seen = Image.new("RGB", (2 * seen.width + 4, seen.height), (128, 128, 128))
        seen.paste(sides[0], (0, 0))
        seen.paste(sides[1], (sides[0].width + 4, 0))
    small, content = max(one.image.shape[1:]) <= _SMALL, io.BytesIO()
    if small:
        seen.save(content, "PNG", optimize=True)
    else:
        seen.save(content, "JPEG", quality=80)
    source = f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(content.getvalue()).decode()}"
    kind = ' class="small"' if small else ""
    return f'<img{kind} src="{source}" alt="{safe(said)}" width="{seen.width}" height="{seen.height}">'


def _thumbnail(image: np.ndarray) -> Image.Image:
    """Return float [channels, height, width] as a picture: one channel as greys, else the first three as colours."""
    pixels = (np.nan_to_num(image).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    if len(pixels) >= 3:
        found = Image.fromarray(np.ascontiguousarray(pixels[:3].transpose(1, 2, 0)))
    else:
        found = Image.fromarray(pixels[0])
    found.thumbnail((_SIDE, _SIDE))
    return found
