"""The answers to HTTP requests for predictions, without a server: paths, bodies, limits and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import Message
from importlib import resources
from typing import Any

import numpy as np

from raytrain import errors
from raytrain.tools.answers import Answers

LARGEST = 32 << 20
"""Bytes of the largest body that is accepted."""
_DISCARDED = 4 * LARGEST
"""Bytes that are read of a larger one, without keeping them: many clients look for an answer only when they have sent
all of their body."""
_RAW = ("application/octet-stream", "application/x-www-form-urlencoded", "")
"""Types of a body that is the image itself, besides image/*: the second is what curl says of --data-binary."""
_METHODS = {"/": ("GET", "HEAD"), "/health": ("GET", "HEAD"), "/predict": ("POST",)}
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

Predict = Callable[[np.ndarray], Awaitable[dict[str, Any]]]
"""Returns the answer to one decoded image, perhaps in a batch with others."""


@dataclass(frozen=True)
class Answer:
    """An HTTP response.

    Attributes:
        kind: its content type.
    """

    status: int
    content: bytes
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    """A request that is answered with an error of its own making.

    Attributes:
        status: of HTTP, 400 to 499.
    """

    def __init__(self, status: int, what: str, **headers: str):
        super().__init__(what)
        self.status, self.headers = status, headers


class Handler:
    """Answers requests.

    Args:
        answers: decodes the images.
        predict: answers one of them.
        threads: the number of images that are decoded at once, which bounds the memory for them.
    """

    def __init__(self, answers: Answers, predict: Predict, threads: int = 1):
        self._answers, self._predict = answers, predict
        self._readers = ThreadPoolExecutor(threads, "reader")
        self._page = resources.files("raytrain.tools").joinpath("serve.html").read_bytes()
        self._health = {
            "status": "ok",
            "run": answers.run.path.name,
            "checkpoint": answers.checkpoint,
            "task": type(answers.run.experiment.task).__name__,
            "classes": list(answers.classes),
            "largest_bytes": LARGEST,
        }

    async def answer(self, method: str, path: str, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> Answer:
        """Return the response to a request.

        Args:
            headers: by their names in lower case.
            body: its parts.
        """
        try:
            allowed = _METHODS.get(path)
            if allowed is None:
                raise Refused(404, f"no such path: {path}; there are {', '.join(_METHODS)}")
            if method not in allowed:
                raise Refused(405, f"{path} takes {allowed[0]}, got {method}", allow=", ".join(allowed))
            if path == "/":
                return Answer(200, self._page, "text/html; charset=utf-8", _PAGE_HEADERS)
            if path == "/health":
                return _json(200, self._health)
            return _json(200, await self._predicted(headers, body))
        except Refused as refused:
            return _json(refused.status, {"error": errors.one_line(str(refused))}, refused.headers)

    async def _predicted(self, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> dict[str, Any]:
        given = Message()
        given["content-type"] = headers.get("content-type", "")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*_RAW, "multipart/form-data") and not kind.startswith("image/"):
            raise Refused(415, f"the body must be an image or a form with a file, got content-type {kind}")
        content = await _read(headers, body)
        if kind == "multipart/form-data":
            content = file_of(content, str(given.get_param("boundary") or ""))
        if not content:
            raise Refused(400, "the image is empty")
        try:
            image = await asyncio.get_running_loop().run_in_executor(self._readers, self._answers.decode, content)
        except errors.BadSample as error:
            raise Refused(400, f"the image cannot be read: {error.reason}") from None
        return await self._predict(image)


async def _read(headers: Mapping[str, str], body: AsyncIterator[bytes]) -> bytes:
    """Return a body.

    Raises:
        Refused: it is too large, by its own declaration or its bytes.
    """
    declared, parts, size = headers.get("content-length", ""), [], 0
    if declared.isdecimal() and int(declared) > _DISCARDED:
        raise _too_large()
    async for part in body:
        size += len(part)
        if size > LARGEST:
            parts.clear()
        else:
            parts.append(part)
        if size > _DISCARDED:
            break
    if size > LARGEST:
        raise _too_large()
    return b"".join(parts)


def _too_large() -> Refused:
    return Refused(413, f"the body is larger than {LARGEST:,} bytes", connection="close")


def file_of(body: bytes, boundary: str) -> bytes:
    """Return the content of the first file of a form (RFC 7578), or of its first field if none has a file's name.

    Raises:
        Refused: the body is not of that form.
    """
    line = b"--" + boundary.encode("latin-1", "replace")
    _before, *parts = (b"\r\n" + body).split(b"\r\n" + line)
    if not boundary or not parts or not parts[-1].startswith(b"--"):
        raise Refused(400, "the form is cut off, or has no boundary")
    found: list[bytes] = []
    for part in parts[:-1]:
        head, blank, content = part.lstrip(b" \t").partition(b"\r\n\r\n")
        if not blank:
            raise Refused(400, "a part of the form has no content")
        if b"filename" in head.lower():
            return content
        found.append(content)
    if not found:
        raise Refused(400, "the form has no file")
    return found[0]


def _json(status: int, value: dict[str, Any], headers: Mapping[str, str] | None = None) -> Answer:
    content = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    return Answer(status, content, headers={"x-content-type-options": "nosniff", **(headers or {})})
