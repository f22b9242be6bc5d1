"""The calibration of a classifier: how often it is right, by how sure it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raytrain.report.charts import LEFT, RIGHT, WIDTH, Scale
from raytrain.report.html import details, safe, table
from raytrain.tasks.calibration import ExpectedCalibrationError

_TOP, _BOTTOM, _COUNTS, _HEIGHT = 42, 300, 368, 412
"""Heights in the picture: top and foot of the accuracies, foot of the counts, and all of it."""


def diagram(metric: ExpectedCalibrationError, sums: Mapping[str, np.ndarray]) -> str:
    """Return the reliability diagram with the samples of each bin, and the expected calibration error.

    Args:
        sums: what the metric added up over the split: `confidence`, `right` and `samples`, each [bins].
    """
    samples, edges = sums["samples"], np.linspace(0, 1, metric.bins + 1)
    if not samples.sum():
        return ""
    value = metric.values(sums)["expected_calibration_error"]
    confidence, accuracy = (sums[key] / np.maximum(samples, 1) for key in ("confidence", "right"))
    across, up = Scale(0.0, 1.0, LEFT, WIDTH - RIGHT), Scale(0.0, 1.0, _BOTTOM, _TOP)
    drawn, most = _axes(across, up), float(samples.max())
    for low, high, mean, right, count in zip(edges[:-1], edges[1:], confidence, accuracy, samples, strict=True):
        if not count:
            continue
        tall = max(1.0, 40 * float(np.log1p(count) / np.log1p(most)))
        left, width = across(low) + 1, across(high) - across(low) - 2
        name = f"<title>confidence {low:.2f} to {high:.2f}: {right:.1%} right of {count:,.0f}</title>"
        drawn.append(_bar("d0", left, up(right), width, _BOTTOM - up(right), name))
        drawn.append(_bar("d0 pale", left, _COUNTS - tall, width, tall, name))
        drawn.append(f'<path class="curve c1" d="M{left:g} {up(mean):g}h{width:g}"/>')
    label = f"Reliability diagram: accuracy by confidence; expected calibration error {value:.4f}"
    svg = f'<svg viewBox="0 0 {WIDTH} {_HEIGHT}" role="img" aria-label="{safe(label)}">{"".join(drawn)}</svg>'
    rows = [
        (f"{low:.3f} to {high:.3f}", int(count), *((float(mean), float(right)) if count else (None, None)))
        for low, high, count, mean, right in zip(edges[:-1], edges[1:], samples, confidence, accuracy, strict=True)
    ]
    numbers = details("Data", table("Calibration", ("confidence", "samples", "mean confidence", "accuracy"), rows))
    return (
        f"<figure><h3>Reliability</h3>{svg}"
        f"<p>Expected calibration error <strong>{value:.4f}</strong> ({metric.bins} bins)</p>"
        "<p class='muted'>Bars: share of right answers among the samples of each confidence, and below their number, "
        "on a logarithmic scale. "
        "Lines across the bars: the mean confidence. Where a bar ends below its line, the model is too sure.</p>"
        f"{numbers}</figure>\n"
    )


def _axes(across: Scale, up: Scale) -> list[str]:
    found = ['<text x="4" y="13">accuracy</text>']
    for value in (0, 0.2, 0.4, 0.6, 0.8, 1):
        found.append(f'<path class="grid" d="M{LEFT} {up(value)}H{WIDTH - RIGHT}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{up(value) + 4:g}" text-anchor="end">{value:g}</text>')
        found.append(f'<text x="{across(value)}" y="{_COUNTS + 17}" text-anchor="middle">{value:g}</text>')
    found.append(f'<text x="{(LEFT + WIDTH) / 2:g}" y="{_HEIGHT - 6}" text-anchor="middle">confidence</text>')
    found.append(f'<text x="{LEFT - 6}" y="{_COUNTS}" text-anchor="end">samples</text>')
    found.append(f'<path class="grid" d="M{LEFT} {_COUNTS}H{WIDTH - RIGHT}"/>')
    found.append(f'<path class="rule" d="M{across(0)} {up(0)}L{across(1)} {up(1)}"/>')
    return found


def _bar(kind: str, left: float, top: float, width: float, tall: float, inside: str) -> str:
    return f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{width:g}" height="{tall:g}">{inside}</rect>'
