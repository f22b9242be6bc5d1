"""The HTML pages of runs and sweeps in Chromium: no error, no overflow, by keyboard, and what axe-core finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright

import raytrain
from raytrain import MNIST, Classification, Index, Run
from raytrain.report import run_evaluation, run_page, sweep_page
from raytrain.sweep import repeats
from raytrain.sweep.objective import Objective
from tests.helpers.pages import BASE, HOSTILE, Page, a_run
from tests.helpers.ranks import new_run, train_rank
from tests.helpers.scenes import CLASSES, Scenes, experiment

pytestmark = pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")

CLASS_NAMES = (HOSTILE, "\"'><img src=x onerror=alert(1)>", "\u05e9\u05dc\u05d5\u05dd \u202egnp.exe", "long" * 60)
CONTROLS = "a[href], summary, [tabindex='0']"


@dataclass(frozen=True)
class HostileScenes(Scenes):
    """Scenes whose classes have names that a page must escape or fold."""

    def index(self) -> dict[str, Index]:
        return {
            name: Index(found.labels, CLASS_NAMES, split=name, fields=found.fields)
            for name, found in super().index().items()
        }


def sweep_answer(trials: int = 12) -> dict[str, Any]:
    """The content of a sweep.json of made-up figures."""
    random, records = np.random.default_rng(0), []
    for number in range(trials):
        values = {"optimizer.lr": float(10 ** random.uniform(-4, 0)), "data.augment": HOSTILE if number % 2 else "none"}
        if number % 2 == 0:
            values["optimizer.momentum"] = float(random.random())
        figures = {"val_accuracy": float(random.random()), "seconds": 3.5, "samples_per_second": 1234.5}
        ended = {"status": "completed", "objective": [figures["val_accuracy"]], "epochs": 2, "of_epochs": 2}
        records.append({"number": number, "values": values, **figures, **ended})
    records[3] = {
        "number": 3,
        "values": records[3]["values"],
        "objective": [None],
        "status": "crashed",
        "error": HOSTILE * 3,
    }
    axes = [
        {"class": "raytrain:LogUniform", "path": "optimizer.lr", "low": 1e-4, "high": 1.0},
        {"class": "raytrain:Choice", "path": "data.augment", "values": ["none", HOSTILE]},
        {
            "class": "raytrain:Uniform",
            "path": "optimizer.momentum",
            "low": 0,
            "high": 1,
            "when": ["data.augment", "none"],
        },
    ]
    goals = [{"name": "val_accuracy", "mode": "max"}]
    answer = {"status": "completed", "trials": records, "objectives": goals, "sweep": {"axes": axes}, "seconds": 50.0}
    accuracy = (Objective("val_accuracy", "val_accuracy", "max"),)
    groups = repeats.configurations(records, accuracy, 4)
    return answer | {"configurations": repeats.described(groups, accuracy, 0.95, True)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    value = replace(experiment(Classification(), "size", CLASSES), epochs=1)
    value = replace(value, data=HostileScenes(wanted="size"))
    path = new_run(folder / "hostile", value)
    train_rank(0, 1, value, path)
    long = replace(BASE, data=MNIST(root="/" + "long" * 60))
    one, other = a_run(folder / ("name" * 40), long, steps=40), a_run(folder / "other")
    sweep = folder / "sweep"
    sweep.mkdir()
    for number in (0, 1):
        a_run(sweep / "trials" / f"{number:04d}")
    return {
        "run": run_page.write([Run(path)], evaluate=True),
        "comparison": run_page.write([one, other]),
        "sweep": sweep_page.write(sweep, sweep_answer()),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as player:
        yield player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])


@pytest.mark.parametrize("name", ["run", pytest.param("comparison", marks=pytest.mark.slow), "sweep"])
def test_a_page_fits_and_axe_core_finds_nothing_serious(browser: Browser, files: dict[str, Path], name: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    said: list[str] = []
    for width in (390, 1440):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(files[name].as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        tops = page.evaluate("[...document.querySelectorAll('section')].map(s => s.getBoundingClientRect().top)")
        assert len(tops) >= 3 and all(one < other for one, other in pairwise(tops))
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            rules = {"runOnly": ["color-contrast"]} if theme == "dark" else {}  # a theme changes colours alone
            found = axe.run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
            assert not [
                (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
            ]
        page.close()
    assert not said


@pytest.mark.parametrize("name", ["run", "sweep"])
def test_every_control_is_reached_by_the_tab_key_and_has_an_outline(
    browser: Browser, files: dict[str, Path], name: str
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(files[name].as_uri())
    count = page.evaluate(
        f"""() => {{
        const shown = [...document.querySelectorAll("{CONTROLS}")].filter(one => one.checkVisibility());
        shown.forEach((one, place) => one.dataset.place = place);
        return shown.length;
    }}"""
    )
    seen = []
    for _ in range(count):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """() => {
            const one = document.activeElement, style = getComputedStyle(one);
            return [one.dataset.place, style.outlineStyle, parseFloat(style.outlineWidth) >= 2];
        }"""
            )
        )
    assert count >= 6 and seen == [[str(place), "solid", True] for place in range(count)]
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None
    page.close()


def test_texts_of_charts_stay_small_and_no_image_is_shown_before_one_is_sent(
    browser: Browser, files: dict[str, Path]
) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 800})
    page.goto(files["run"].as_uri())
    heights = "[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)"
    assert 8 < max(page.evaluate(heights)) <= 20
    page.goto(Path(raytrain.__file__).with_name("tools").joinpath("serve.html").as_uri())
    shown = "getComputedStyle(document.querySelector('#image')).display"
    assert page.evaluate(shown) == "none"
    page.evaluate("document.querySelector('#image').hidden = false")
    assert page.evaluate(shown) == "block"
    page.close()


def test_hostile_names_stay_texts(files: dict[str, Path]) -> None:
    for name in ("run", "sweep"):
        text = files[name].read_text()
        page = Page(text)
        assert not {"script", "iframe", "b"} & {tag for tag, _ in page.tags}
        assert all(str(given["src"]).startswith("data:image/") for tag, given in page.tags if tag == "img")
        assert not [key for _, given in page.tags for key in given if key.startswith("on")]
        assert "\u202e" not in text and HOSTILE in "".join(page.texts)
    assert "\\u202egnp.exe" in "".join(Page(files["run"].read_text()).texts)


@pytest.mark.slow
def test_the_largest_pages_are_below_5_mb_and_fit(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 classes, 200 epochs of 64 metrics, and 10 such runs over each other."""
    random, run = np.random.default_rng(0), a_run(tmp_path / ("long" * 50), epochs=200, steps=25)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["kind"] == "epoch":
            row |= {f"val_metric_{place}_of_many": float(random.random()) for place in range(64)}
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classes = [f"class {number} {HOSTILE}" for number in range(1000)]
    keys = ("precision", "recall", "f1", "iou")
    table = [{"class": name, **{key: float(random.random()) for key in keys}, "count": 50} for name in classes]
    counts = random.integers(0, 50, (1000, 1000)).tolist()
    result = {"checkpoint": "step_00000010", "count": 50_000, "per_class": table, "confusion": counts}
    monkeypatch.setattr(run_evaluation.inference, "evaluate", lambda run, watch: result | {"classes": classes})
    big = sweep_answer(1000)
    texts = [run_page.single(run, limit=None), run_page.comparison([run] * 10), sweep_page.whole(tmp_path, big)]
    for number, text in enumerate(texts):
        assert len(text.encode()) < 5_000_000, (number, len(text.encode()))
        (tmp_path / f"{number}.html").write_text(text)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto((tmp_path / f"{number}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()
    pages = [Page(text) for text in texts]
    assert "Rows 901 to 1,000 of 1,000" in "".join(pages[2].texts) and "more are in trials.csv" not in texts[2]
    assert "metric_63_of_many" in texts[0] and "more metrics are in metrics.jsonl" in texts[0]
