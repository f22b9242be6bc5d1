"""Answers to requests for predictions, without Ray Serve: they equal those of `raytrain predict` for the same files."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import io
import json
import shutil
import socket
import threading
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import copied, fails, finished, make_run, without_ray
from PIL import Image
from playwright.sync_api import sync_playwright

from raytrain import CNN, Digits, Experiment, Run, Task, errors
from raytrain.checkpoint import checkpoints
from raytrain.driver.resources import Node, Resources
from raytrain.tools import handler, inference, serve
from raytrain.tools.answers import Answers
from raytrain.tools.handler import Answer, Handler
from raytrain.tools.serving import Serving

__all__ = ["copied", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def answers(finished: Run) -> Answers:
    return Answers(finished)


def ask(
    answers: Answers, method: str, path: str, body: bytes = b"", kind: str | None = "image/png", size: int = 1000
) -> Answer:
    """The answer to a request whose body comes in parts of `size` bytes."""

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def predict(image: np.ndarray) -> dict[str, Any]:
        return answers.predict([image])[0]

    headers: Mapping[str, str] = {} if kind is None else {"content-type": kind}
    return asyncio.run(Handler(answers, predict).answer(method, path, headers, parts()))


def post(answers: Answers, body: bytes, kind: str | None = "image/png") -> tuple[int, dict[str, Any]]:
    answer = ask(answers, "POST", "/predict", body, kind)
    assert answer.kind == "application/json"
    return answer.status, json.loads(answer.content)


def images() -> dict[str, bytes]:
    """Files of the modes and formats that the training reader takes, 20 x 30 pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), np.uint8)
    rgb, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = 6  # orientation: turned by 90 degrees
    made = {
        "grey.png": (rgb.convert("L"), {}),
        "rgb.png": (rgb, {}),
        "rgba.png": (rgb.convert("RGBA"), {}),
        "palette.png": (rgb.convert("P"), {}),
        "deep.png": (Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257), {}),
        "turned.jpg": (rgb, {"exif": exif}),
        "cmyk.jpg": (rgb.convert("CMYK"), {}),
        "web.webp": (rgb, {}),
        "bits.tiff": (rgb.convert("1"), {}),
        "moving.gif": (rgb.convert("P"), {}),
        "plain.bmp": (rgb, {}),
    }
    found = {}
    for name, (image, options) in made.items():
        content = io.BytesIO()
        image.save(content, {"jpg": "JPEG"}.get(name[-3:], name.rpartition(".")[2].upper()), **options)
        found[name] = content.getvalue()
    return found


def form(*parts: tuple[str, bytes], boundary: str = "xYz") -> bytes:
    written = [
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (boundary.encode(), h.encode(), c)
        for h, c in parts
    ]
    return b"".join(written) + f"--{boundary}--\r\n".encode()


def test_answers_equal_those_of_predict(finished: Run, answers: Answers, tmp_path: Path) -> None:
    """Of one image at a time and of all in a batch, whatever their mode, format and orientation."""
    files = {tmp_path / name: content for name, content in images().items()}
    for file, content in files.items():
        file.write_bytes(content)
    rows = inference.predict(finished, [str(file) for file in files])
    together = answers.predict([answers.decode(content) for content in files.values()])
    seen = set()
    for (file, content), row, in_batch in zip(files.items(), rows, together, strict=True):
        status, found = post(answers, content, "image/whatever")
        assert status == 200 and found["label"] == in_batch["label"] == row["label"], file
        assert list(found["probabilities"]) == list(finished.classes())
        for one in (found, in_batch):
            assert one["probability"] == pytest.approx(row["probability"], abs=1e-6)
            assert list(one["probabilities"].values()) == pytest.approx(row["probabilities"], abs=1e-6)
        seen.add(found["probability"])
    assert len(seen) >= 5, "the files differ"
    turned = images()["turned.jpg"]
    flat = io.BytesIO()
    Image.open(io.BytesIO(turned)).save(flat, "JPEG", quality="keep")  # without the orientation
    assert not np.array_equal(answers.decode(turned), answers.decode(flat.getvalue()))


def test_a_form_and_raw_bytes_get_the_same_answer(answers: Answers) -> None:
    content = images()["rgb.png"]
    expected = post(answers, content)
    assert expected[0] == 200
    for kind in (None, "application/octet-stream", "application/x-www-form-urlencoded", "IMAGE/JPEG; a=b"):
        assert post(answers, content, kind) == expected
    file = ('name="file"; filename="x.png"', content)
    for parts in ([file], [("name=a", b"text"), file, ("name=b", b"")], [('name="file"', content)]):
        assert post(answers, form(*parts), "multipart/form-data; boundary=xYz") == expected
        assert post(answers, form(*parts), 'multipart/form-data; boundary="xYz"') == expected
    assert handler.file_of(b"preamble\r\n" + form(file) + b"epilogue", "xYz") == content


def test_malformed_requests_get_4xx(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    content, kind = images()["rgb.png"], "multipart/form-data; boundary=xYz"
    whole = form(('name="file"; filename="x.png"', content))
    for status, body, given, words in (
        (400, b"", "image/png", "empty"),
        (400, b"no image", "image/png", "not an image"),
        (400, content[:-40], "image/png", "cannot be read"),
        (400, content[:60], "image/png", "cannot be read"),
        (400, whole[:-30], kind, "cut off"),
        (400, whole, "multipart/form-data", "boundary"),
        (400, whole, "multipart/form-data; boundary=other", "cut off"),
        (400, b"--xYz--\r\n", kind, "no file"),
        (400, b"--xYz\r\nname\r\n--xYz--\r\n", kind, "no content"),
        (400, form(('name="file"; filename="x.png"', b"")), kind, "empty"),
        (415, b"{}", "application/json", "application/json"),
        (415, b"x", "text/plain; charset=utf-8", "text/plain"),
    ):
        found, answer = post(answers, body, given)
        assert found == status and words in answer["error"], (body[:40], answer)
        assert list(answer) == ["error"] and "/tmp" not in answer["error"]
    monkeypatch.setattr(handler, "LARGEST", len(content) - 1)
    assert post(answers, content) == (413, {"error": f"the body is larger than {len(content) - 1:,} bytes"})
    monkeypatch.setattr(handler, "LARGEST", len(content))
    assert post(answers, content)[0] == 200


def test_a_body_that_is_too_large_is_not_kept(answers: Answers) -> None:
    asked = []

    async def parts() -> AsyncIterator[bytes]:
        for number in range(1000):
            asked.append(number)
            yield bytes(1 << 20)

    one = Handler(answers, lambda image: asyncio.sleep(0, {}))
    assert asyncio.run(one.answer("POST", "/predict", {"content-length": str(1 << 40)}, parts())).status == 413
    assert not asked
    tracemalloc.start()
    assert asyncio.run(one.answer("POST", "/predict", {}, parts())).status == 413
    assert tracemalloc.get_traced_memory()[1] < 1.1 * handler.LARGEST and len(asked) == 4 * 32 + 1
    tracemalloc.stop()


def test_damaged_files_never_raise_anything_else(answers: Answers) -> None:
    """Each byte of the headers, and bytes of the rest, in each format."""
    generator, refused = np.random.default_rng(0), 0
    for name, content in images().items():
        for _ in range(60):
            damaged = bytearray(content)
            for place in generator.integers(0, min(len(content), 400), 3):
                damaged[place] = generator.integers(256)
            if generator.random() < 0.3:
                del damaged[int(generator.integers(1, len(damaged))) :]
            try:
                assert answers.decode(bytes(damaged)).shape == answers.shape, name
            except errors.BadSample:
                refused += 1
    assert refused > 100


def test_paths_and_methods(finished: Run, answers: Answers) -> None:
    health = json.loads(ask(answers, "GET", "/health").content)
    assert health["status"] == "ok" and health["classes"] == list(finished.classes())
    assert health["checkpoint"] == finished.checkpoint().name and health["run"] == finished.path.name
    assert [ask(answers, "GET", path).status for path in ("/predict", "/other", "/health/")] == [405, 404, 404]
    assert ask(answers, "DELETE", "/").headers["allow"] == "GET, HEAD"
    page = ask(answers, "GET", "/")
    assert page.status == 200 and page.kind.startswith("text/html") and b"http" not in page.content
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_masks_numbers_and_names_become_json(finished: Run) -> None:
    one = Answers(finished)
    mask = np.zeros((4, 6), np.uint8)
    mask[0] = 3
    row = {"mask": mask, "size": float("nan"), "kind": "a", "count": 3, "probabilities": [0.5, float("inf")]}
    found = json.loads(json.dumps(one._answer(row), allow_nan=False))
    assert (found["size"], found["kind"], found["count"]) == (None, "a", 3)
    assert found["probabilities"] == {"0": 0.5, "1": None} and found["shares"] == {"0": 0.75, "3": 0.25}
    png = base64.b64decode(found["mask"].removeprefix("data:image/png;base64,"))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), mask)


def test_mistakes_before_anything_starts(
    finished: Run, copied: Run, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags, words in (
        (("--port", 0), "--port = 0 is out of range"),
        (("--replicas", 0), "--replicas = 0 is out of range"),
        (("--max_batch", 0), "--max_batch = 0 is out of range"),
        (("--gpus", 1.5), "--gpus = 1.5 is out of range"),
        (("--cpus", 0), "--cpus = 0.0 is out of range"),
        (("--prt", 80), "did you mean --port?"),
        (("--host", "no.such.host.invalid"), "cannot be used"),
        (("--replicas", 4000), "4000 replicas of 1 CPUs and 0 GPUs do not fit"),
    ):
        assert words in fails(capsys, "serve", finished.path, *flags)
    assert "no run there" in fails(capsys, "serve", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used" in fails(capsys, "serve", finished.path, "--port", port)
    other = make_run(tmp_path / "other", Experiment(CNN(channels=(2,)), Digits(), task=Task()), steps=2)
    assert "this run's task is Task" in fails(capsys, "serve", other.path)
    path = copied.checkpoint()
    state = checkpoints.load_state(path) | {"input_kind": "plain"}
    shutil.rmtree(path)
    checkpoints.save(path.parent, int(path.name[5:]), copied.model("last").state_dict(), {}, state)
    assert "whose input is no image" in fails(capsys, "serve", copied.path)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "starlette" else found(name))
    said = fails(capsys, "serve", finished.path)
    assert said == "error: `raytrain serve` needs starlette, which is not installed; pip install 'raytrain[serve]'"


def test_replicas_share_the_cpus_of_this_machine() -> None:
    there = Resources((Node("here", 8, 2, 1 << 30),), "this machine")
    for how, own, cpus in (
        (Serving(), True, 8),
        (Serving(replicas=3), True, 2),
        (Serving(replicas=3, cpus=1.5), True, 1.5),
        (Serving(replicas=4, gpus=0.5), True, 2),
        (Serving(replicas=3), False, 1),
    ):
        assert serve._placed(how, there, own) == replace(how, cpus=cpus)
    with pytest.raises(errors.UserError, match=r"5 replicas of 1 CPUs and 0\.5 GPUs do not fit"):
        serve._placed(Serving(replicas=5, gpus=0.5), there, True)


def test_addresses() -> None:
    assert Serving().url == "http://127.0.0.1:8000" and not Serving().open and not Serving(host="localhost").open
    assert Serving(host="::1").url == "http://[::1]:8000" and not Serving(host="::1").open
    assert Serving(host="0.0.0.0", port=80).url == "http://127.0.0.1:80" and Serving(host="0.0.0.0").open


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_a_browser_sends_an_image_and_shows_bars(answers: Answers, tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "image.png").write_bytes(images()["rgb.png"])
    (tmp_path / "text.png").write_text("no image")

    class Server(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            found = ask(answers, self.command, self.path, body, self.headers.get("content-type"))
            self.send_response(found.status)
            for name, value in {**found.headers, "content-type": found.kind}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found.content)

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.wait_for_selector("#facts:has-text('10 classes')")
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.id") == "file"
            page.set_input_files("#file", tmp_path / "image.png")
            page.wait_for_selector("li")
            label = answers.predict([answers.decode(images()["rgb.png"])])[0]["label"]
            assert page.inner_text("h2") == f"label: {label}" and page.locator("li").count() == 10
            assert page.inner_text("li >> nth=0").startswith(label)
            page.wait_for_selector("#image")  # it is visible once it is loaded
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert not said
            page.set_input_files("#file", tmp_path / "text.png")
            page.wait_for_selector(".error")
            assert "not an image" in page.inner_text(".error") and page.locator("li").count() == 0
            said.clear()  # the browser's own line on the status 400
            page.close()
        browser.close()
    server.shutdown()
    server.server_close()


def test_the_model_runs_without_gradients(answers: Answers) -> None:
    assert not torch.is_inference_mode_enabled()
    blank = np.zeros(answers.shape, np.uint8)
    assert answers.predict([blank])[0] == answers.predict([blank])[0]
