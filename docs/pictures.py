"""Make the pictures of the README: the report of a real run of MNIST, and the chart of docs/benchmarks.md.

    python docs/pictures.py chart
    python docs/pictures.py report --data DIR

The first reads figures that `make bench` measured. The second trains experiments/mnist.py on the data in DIR and needs
Chromium (the extra `dev`). Both write into docs/pictures, and both pictures are committed.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"

# Rows of docs/benchmarks.md in which both sides train the same model on the same images, and what the chart calls them.
ROWS = {
    "ray-streaming": "Ray Train + Data, streaming",
    "ray-materialised": "Ray Train + Data, materialised",
    "steady-mlp": "the tutorials' loop, MLP",
    "steady-cnn": "the tutorials' loop, CNN",
    "two-ranks-shared": "the tutorials' loop with DDP, 2 ranks",
    "two-ranks-gloo": "the same, gradients over gloo",
    "lightning-small": "Lightning, equal loader, small MLP",
    "lightning": "Lightning, equal loader, MLP",
    "accelerate-small": "Accelerate, equal loader, small MLP",
    "accelerate": "Accelerate, equal loader, MLP",
}
LEFT, RIGHT, TOP, STEP = 290, 690, 66, 26  # pixels
LOW, HIGH = 0.8, 25.0  # ratios at LEFT and RIGHT
STYLE = """
  svg { font: 13px system-ui, sans-serif } rect { fill: #ffffff } text { fill: #1f2328 } .faint { fill: #59636e }
  line { stroke: #d1d9e0 } .one { stroke: #59636e } .range { stroke: #0969da; stroke-width: 3 } circle { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    rect { fill: #0d1117 } text { fill: #f0f6fc } .faint { fill: #9198a1 }
    line { stroke: #3d444d } .one { stroke: #9198a1 } .range { stroke: #4493f8 } circle { fill: #4493f8 }
  }
"""


def ratios(page: str) -> dict[str, tuple[float, float, float]]:
    """Return each row's ratio and the ends of its range, from the table of docs/benchmarks.md."""
    table = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| ")]
    names = table[0]
    ratio, spread = names.index("ratio"), names.index("spread")
    found = {}
    for cells in table[2:]:
        low, high = cells[spread].split("-")
        found[cells[1]] = (float(cells[ratio]), float(low), float(high))
    return found


def across(ratio: float) -> float:
    """Return the place of a ratio on the logarithmic axis, in pixels."""
    return round(LEFT + (RIGHT - LEFT) * math.log(ratio / LOW) / math.log(HIGH / LOW), 1)


def chart(page: str) -> str:
    """Return an SVG: how many times as many samples per second as each peer, with the range over the rounds."""
    found = ratios(page)
    machine = re.findall(r"^- machine: (.*?); load", page, re.MULTILINE)[0]
    date = re.findall(r"^- date: (.*)$", page, re.MULTILINE)[0]
    bottom = TOP + STEP * len(ROWS)
    title = "raytrain's speed relative to others"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {bottom + 46}" role="img" aria-label="{title}">',
        f"<title>{title}</title><style>{STYLE}</style>",
        f'<rect width="760" height="{bottom + 46}" rx="8"/>',
        '<text x="20" y="28" font-size="16" font-weight="600">Samples per second, relative to other programs</text>',
        '<text class="faint" x="20" y="48">median and range; right of 1, raytrain is faster</text>',
    ]
    for tick in (1, 2, 5, 10, 20):
        x, style = across(tick), ' class="one"' if tick == 1 else ""
        lines.append(f'<line{style} x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>')
        lines.append(f'<text class="faint" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick}x</text>')
    for number, (row, name) in enumerate(ROWS.items()):
        ratio, low, high = found[row]
        y = TOP + STEP * number + STEP // 2
        lines.append(f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        lines.append(f'<line class="range" x1="{across(low)}" x2="{across(high)}" y1="{y}" y2="{y}"/>')
        lines.append(f'<circle cx="{across(ratio)}" cy="{y}" r="5"/>')
        lines.append(f'<text x="{across(high) + 10}" y="{y + 4}">{ratio:.2f}x</text>')
    foot = f"{machine}, {date}. Every row, also those that miss their goal: docs/benchmarks.md"
    lines.append(f'<text class="faint" x="20" y="{bottom + 36}" font-size="12">{escape(foot)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def report(data: Path) -> bytes:
    """Train experiments/mnist.py, and return a picture of the upper part of its report as WebP."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    raytrain = [sys.executable, "-m", "raytrain.cli"]
    experiment = [str(DOCS.parent / "experiments" / "mnist.py"), "--data.root", str(data)]
    with tempfile.TemporaryDirectory() as folder:
        out = ["--out", folder, "--name", "mnist", "--validate_every_steps", "100"]
        subprocess.run([*raytrain, "train", *experiment, *out], check=True)
        subprocess.run([*raytrain, "report", f"{folder}/mnist"], check=True)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 705}, color_scheme="light")
            page.goto(Path(folder, "mnist", "report.html").as_uri())
            pixels = page.screenshot()
            browser.close()
    Image.open(io.BytesIO(pixels)).save(packed := io.BytesIO(), "WEBP", quality=85, method=6)
    return packed.getvalue()


def main() -> None:
    """Write the picture that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", choices=["chart", "report"])
    parser.add_argument("--data", type=Path, help="the folder with MNIST, for the report")
    asked = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    if asked.picture == "chart":
        (PICTURES / "speed.svg").write_text(chart((DOCS / "benchmarks.md").read_text()))
    elif asked.data is None:
        parser.error("report needs --data")
    else:
        (PICTURES / "report.webp").write_bytes(report(asked.data))


if __name__ == "__main__":
    main()
