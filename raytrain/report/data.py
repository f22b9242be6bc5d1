"""What `raytrain data` prints."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from raytrain import errors
from raytrain.files import size
from raytrain.report.console import terminal
from raytrain.report.layout import columns, folded
from raytrain.tools.describe import Description, Values

_CLASSES, _LISTED = 20, 5
"""Classes, and bad or equal samples, that are shown; JSON has all."""
_UNEVEN = 3
"""Ratio of the largest class to the smallest from which the classes are called uneven."""


def show(found: Description) -> None:
    """Print a description."""
    console = terminal()
    width = columns(console)
    for name, text in _lines(found):
        first, *others = folded(f"{name:<10}", text, width)
        console.print(Text.assemble((first[:10], "bold"), first[10:]))
        for line in others:
            console.print(Text(line))


def to_json(found: Description) -> str:
    """Return a description as one JSON object."""
    value: dict[str, Any] = {
        "source": found.source,
        "samples": found.counts,
        "classes": {name: dict(zip(found.counts, counts, strict=True)) for name, counts in found.classes.items()},
        "columns": found.columns,
        "ignored_files": found.ignored,
        "bytes": found.bytes,
        "notes": found.notes,
        "samples_read": found.read,
        "pixels": _sides(found),
        "bad": [{"path": path, "reason": reason} for path, reason in found.bad],
        "equal": [[{"split": s, "path": p, "class": c} for s, p, c in group] for group in found.equal],
        "fields": [
            {
                "name": one.of.name,
                "shape": list(one.of.shape),
                "dtype": one.of.dtype,
                "kind": one.of.kind,
                "min": one.low,
                "max": one.high,
                "not_finite": one.nan,
                "mean": one.mean,
                "std": one.std,
                **({"pixels": dict(sorted(one.pixels.items()))} if one.pixels else {}),
            }
            for one in found.values
        ],
    }
    return json.dumps(value)


def _lines(found: Description) -> list[tuple[str, str]]:
    counts = ", ".join(f"{split} {count:,}" for split, count in found.counts.items())
    lines = [("source", errors.one_line(found.source)), ("samples", f"{found.count:,}: {counts}")]
    if found.bytes is not None:
        ignored = f"; files, hidden or without an image's suffix: {found.ignored:,}" if found.ignored else ""
        lines.append(("files", f"{size(found.bytes)}{ignored}"))
    lines += [("note", errors.one_line(note)) for note in found.notes]
    if found.classes:
        lines += _class_lines(found)
    for name, counts in found.columns.items():
        of = f" of {counts['values']:,} values are"
        both = [f"{n:,}{of} in train and in {key.split('_')[-1]}" for key, n in counts.items() if key != "values"]
        lines.append(("column", f"{errors.one_line(name, 40)}: {', '.join(both)}"))
    part = "all" if found.read == found.count else f"{found.read:,} of {found.count:,}"
    ended = " (the time was over: --seconds)" if found.read < found.wanted else ""
    lines.append(("read", f"{part} samples{ended}; what follows is about these"))
    if sides := _sides(found):
        low, middle, high = (f"{one[0]} x {one[1]}" for one in sides.values())
        lines.append(("pixels", f"{middle} (median), from {low} to {high}" if low != high else f"{low}, all images"))
    for one in found.values:
        lines.append((one.of.name[:9], _value_line(one)))
        if one.of.kind == "image" and one.mean:
            lines.append(("", f"mean=({_numbers(one.mean)}), std=({_numbers(one.std)}) of the training images"))
    lines.append(("bad", _bad(found)))
    across = sum(len({split for split, _, _ in group}) > 1 for group in found.equal)
    differ = sum(len({label for _, _, label in group}) > 1 for group in found.equal)
    equal = f"groups of equal samples: {len(found.equal)}" if found.equal else "none"
    equal += f", {across} of them in several splits" if across else ""
    equal += f", {differ} with different classes" if differ else ""
    lines.append(("equal", equal))
    for group in found.equal[:_LISTED]:
        lines.append(("", " = ".join(f"{split}: {errors.one_line(name)}" for split, name, _ in group[:3])))
    return lines


def _class_lines(found: Description) -> list[tuple[str, str]]:
    train = np.array([counts[0] for counts in found.classes.values()])
    low, high = int(train.min()), int(train.max())
    text = f"{len(train)}, of {low:,} to {high:,} training samples" if low != high else f"{len(train)}, of {low:,} each"
    if high > _UNEVEN * low:
        text += ": uneven, consider sampler=Balanced()"
    shown = list(found.classes.items())
    lines = [("classes", text)]
    names = [errors.one_line(name, 24) for name, _ in shown[:_CLASSES]]
    width = max(map(cell_len, names))
    for name, (_, counts) in zip(names, shown, strict=False):
        bar = "█" * max(1, round(20 * counts[0] / max(1, high))) if counts[0] else ""
        space = " " * (width - cell_len(name) + 2)  # a CJK letter takes two cells
        lines.append(("", f"{name}{space}{' + '.join(f'{one:,}' for one in counts)}  {bar}"))
    if len(shown) > _CLASSES:
        lines.append(("", f"and {len(shown) - _CLASSES} more (--json has all)"))
    return lines


def _bad(found: Description) -> str:
    if not found.bad:
        return "none"
    shown = "; ".join(f"{errors.one_line(path)}: {reason}" for path, reason in found.bad[:_LISTED])
    more = f" and {len(found.bad) - _LISTED} more" if len(found.bad) > _LISTED else ""
    every = "all " if len(found.bad) == found.read else ""
    return f"{every}{len(found.bad)}: {shown}{more}"


def _value_line(one: Values) -> str:
    text = f"{one.of.dtype} {list(one.of.shape)}"
    if one.pixels:
        whole, most = sum(one.pixels.values()), sorted(one.pixels.items(), key=lambda pair: -pair[1])
        shares = [f"{number} in {count / whole:.1%}" for number, count in most]
        return f"{text}, the numbers {errors.listed(shares)} of the pixels"
    if one.low is not None:
        text += f", {one.low:g} to {one.high:g}"
    if one.of.kind != "image" and one.mean:
        text += f", mean {one.mean[0]:.4g}, std {one.std[0]:.4g}"
    return text + (f", {one.nan:,} values are NaN or infinite" if one.nan else "")


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{one:.3f}" for one in values) + ("," if len(values) == 1 else "")


def _sides(found: Description) -> dict[str, list[int]]:
    """Return width and height of the smallest, the median and the largest image by area."""
    if not len(found.sides):
        return {}
    ranked = found.sides[np.argsort(found.sides.prod(1), kind="stable")]
    rows = {"least": ranked[0], "median": ranked[len(ranked) // 2], "most": ranked[-1]}
    return {name: row.tolist() for name, row in rows.items()}
