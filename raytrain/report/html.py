"""Parts of an HTML page without scripts and without anything from a network: escaped texts, tables, and the page."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

LIGHT = {
    "ground": "#ffffff",
    "panel": "#f4f6f8",
    "ink": "#1a1f24",
    "muted": "#525c66",
    "line": "#d3dae0",
    "link": "#0b5fa5",
    "good": "#14692f",
    "warn": "#8f4a00",
}
DARK = {
    "ground": "#14181c",
    "panel": "#1d2329",
    "ink": "#e8ecef",
    "muted": "#a7b1bb",
    "line": "#3a444d",
    "link": "#7dbcf5",
    "good": "#74d391",
    "warn": "#f0b060",
}
"""The colours of texts and grounds in each theme; texts have a contrast of at least 4.5 on both grounds (WCAG AA)."""

CURVES_LIGHT = ("#0b5fa5", "#b03a00", "#14692f", "#7a35b0", "#7a5600", "#a3195b")
CURVES_DARK = ("#7dbcf5", "#ff9d6b", "#74d391", "#cba6f7", "#e3c04f", "#f58fb8")
"""The colours of curves in each theme, with the same contrast."""

_LONGEST = 600
"""Characters of a table's cell."""

_STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:75rem;background:var(--ground);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:0 0 .25rem}p{margin:.5rem 0}a{color:var(--link)}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.muted{color:var(--muted)}.good{color:var(--good)}.warn{color:var(--warn)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,9rem),1fr));gap:.5rem;margin:.5rem 0}
.figures div{background:var(--panel);border-radius:.4rem;padding:.5rem .75rem}
.figures dt{color:var(--muted);font-size:.85rem}.figures dd{margin:0;font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr));gap:1rem;align-items:start}
figure+.charts{margin-top:1rem}
figure{margin:0;background:var(--panel);border-radius:.4rem;padding:.75rem;min-width:0}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--muted);font:12px system-ui,sans-serif}
svg .rule{stroke:var(--muted);stroke-width:1.5;stroke-dasharray:5 4;fill:none}
svg .dots{fill:none;stroke-width:4.5;stroke-linecap:round;stroke-opacity:.55}svg .pale{fill-opacity:.45}
svg .grid{stroke:var(--line);stroke-width:1}svg .curve{fill:none;stroke-width:2;stroke-linejoin:round}
svg .thin{stroke-width:1.2;stroke-opacity:.75}svg .bar{stroke:var(--c0);stroke-width:9;stroke-opacity:.3}
svg .upright{stroke:var(--muted);stroke-width:1.3;fill:none}svg .faint{fill:var(--line)}
svg .name{fill:var(--ink);font-weight:600}svg .over{paint-order:stroke;stroke:var(--panel);stroke-width:4px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1rem;margin:.25rem 0;padding:0;font-size:.9rem}
.legend svg{display:inline-block;width:2rem;height:.75rem;vertical-align:middle;margin-right:.4rem}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--link)}
.scroll{margin:.5rem 0 1rem;overflow:auto;max-width:100%;max-height:28rem}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted)}
th,td{padding:.2rem .7rem .2rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td,th{overflow-wrap:break-word}td{min-width:3.5rem;max-width:32rem}
.number{text-align:right;white-space:nowrap;overflow-wrap:normal}
pre{background:var(--panel);padding:.75rem;border-radius:.4rem;margin:.5rem 0;font-size:.85rem;overflow-wrap:normal}
.matrix td,.matrix th{padding:.2rem .5rem;min-width:2.5rem}.matrix .hit{font-weight:700;background:var(--panel)}
.matrix .miss{box-shadow:inset 0 0 0 2px var(--warn)}
.samples{list-style:none;padding:0;margin:.5rem 0;display:grid;gap:.75rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,10rem),1fr))}
.samples li{background:var(--panel);border-radius:.4rem;padding:.75rem;min-width:0;font-size:.85rem}
.samples img{display:block;width:100%;height:9rem;object-fit:contain;margin-bottom:.5rem;background:var(--ground)}
.samples.wide img{height:14rem}
.samples .small{image-rendering:pixelated}.samples strong{font-size:.95rem}
.samples.wide{grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr))}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:0 2rem;align-items:start}
.columns>*{min-width:0}
td,th,dd,li,strong,figcaption,h1,caption{unicode-bidi:isolate}
@media(max-width:600px){svg text{font-size:15px}.legend{font-size:.85rem}}
@media print{.scroll{max-height:none}}
"""


def safe(value: object) -> str:
    """Return text of users for HTML: markup is escaped, and what UTF-8 or HTML cannot hold becomes a backslash
    escape."""
    text = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in str(value))
    return html.escape(text)


def public(text: str) -> str:
    """Return a text without the options and passwords of URLs, which may contain keys."""
    text = re.sub(r"(\w+://[^\s\"'?]*)\?[^\s\"']*", r"\1?...", text)
    return re.sub(r"(\w+://)[^\s\"'/@]+@", r"\1...@", text)


def page(title: str, body: str) -> str:
    """Return a whole page; `body` is HTML."""
    light = _colours(LIGHT, CURVES_LIGHT)
    dark = _colours(DARK, CURVES_DARK)
    curves = "".join(f".c{n}{{stroke:var(--c{n})}}svg .d{n}{{fill:var(--c{n})}}" for n in range(len(CURVES_LIGHT)))
    curves += "".join(f".s{n}{{stroke:color-mix(in oklab,var(--link) {16 + 12 * n}%,var(--line))}}" for n in range(8))
    # The policy forbids scripts and requests, should an escape ever be missing.
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline';"
        'img-src data:">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{safe(title)}</title><style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"{_STYLE}{curves}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def section(name: str, title: str, content: str) -> str:
    """Return a section with a heading that `#name` leads to."""
    return f'<section id="{name}"><h2>{safe(title)}</h2>{content}</section>\n'


def navigation(parts: Iterable[tuple[str, str, str]]) -> str:
    """Return links to sections, which are the arguments of `section`."""
    links = "".join(f'<a href="#{name}">{safe(title)}</a>' for name, title, _ in parts)
    return f"<nav aria-label='Sections'>{links}</nav>"


def columns(*parts: str) -> str:
    """Return tables beside each other, where there is room."""
    return f'<div class="columns">{"".join(parts)}</div>'


def details(title: str, content: str) -> str:
    """Return content that is shown when it is opened."""
    return f"<details><summary>{safe(title)}</summary>{content}</details>"


def scroll(name: str, content: str) -> str:
    """Return content that scrolls by itself, also by keys."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{safe(name)}">{content}</div>'


def table(
    caption: str, names: Sequence[str], rows: Iterable[Sequence[Any]], exact: bool = False, right: Collection[int] = ()
) -> str:
    """Return a table; the first cell of each row is its heading.

    Args:
        exact: write floats with all their digits, as in metrics.jsonl.
        right: the columns, counted from 0, of texts that end in numbers; numbers are aligned right as they are.
    """
    numeric = {*right}
    body = []
    for row in rows:
        numeric |= {place for place, value in enumerate(row) if place and _is_number(value)}
        cells = [
            f"<td{_right(value, place in right)}>{safe(_cut(cell(value, exact)))}</td>"
            for place, value in enumerate(row[1:], 1)
        ]
        body.append(f'<tr><th scope="row">{safe(_cut(cell(row[0], exact)))}</th>{"".join(cells)}</tr>')
    aligned = ' class="number"'
    head = "".join(
        f'<th scope="col"{aligned if n in numeric else ""}>{safe(name)}</th>' for n, name in enumerate(names)
    )
    whole = f"<table><caption>{safe(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return scroll(caption, f"{whole}</table>")


def pages(
    caption: str, names: Sequence[str], rows: Sequence[Sequence[Any]], size: int, right: Collection[int] = ()
) -> str:
    """Return a table of at most `size` rows, and the following ones in tables that are shown when they are opened."""
    found = table(caption, names, rows[:size], right=right)
    for first in range(size, len(rows), size):
        title = f"Rows {first + 1:,} to {min(first + size, len(rows)):,} of {len(rows):,}"
        found += details(title, table(title, names, rows[first : first + size], right=right))
    return found


def figures(values: Mapping[str, str]) -> str:
    """Return figures with their names, side by side."""
    each = "".join(f"<div><dt>{safe(name)}</dt><dd>{safe(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="figures">{each}</dl>'


def cell(value: Any, exact: bool = False) -> str:
    """Return a value for people."""
    if value is None:
        return "-"
    if isinstance(value, float) and not exact:
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and not exact else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _right(value: Any, wanted: bool) -> str:
    return ' class="number"' if wanted or _is_number(value) or value is None else ""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _colours(named: Mapping[str, str], curves: Sequence[str]) -> str:
    pairs = {**named, **{f"c{n}": colour for n, colour in enumerate(curves)}}
    return "".join(f"--{name}:{colour};" for name, colour in pairs.items())
