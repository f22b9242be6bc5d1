"""Bytes of an image file to a square of uint8 pixels: torchvision for JPEG, Pillow for the rest.

On JPEG torchvision is the faster one. On PNG a damaged file ends torchvision's process with a segmentation fault
(0.29), so that no error could name the file.

The format is read from the bytes, never from the name. Grey, RGBA, palette, CMYK and 16-bit images become RGB (or
grey, as asked), and EXIF orientation is applied. Only JPEGs and images that are resized need torch, which takes a
process a second to import.
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
import zlib
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 89_478_485
"""Larger images are refused before they are decoded (Pillow's limit against decompression bombs)."""
MAX_BYTES = 6 * MAX_PIXELS
"""Larger files are refused before they are read: so much are the largest images, as 16-bit RGB without compression."""

VERSION = 2
"""To be counted up with every change to what pixels come out: the disk cache asks for it."""

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What Pillow may try. It has a reader of PostScript, too, which would run Ghostscript on the file."""
_MAX_SCANNED = 500 * MAX_PIXELS
"""Pixels that a JPEG's scans may go over, together: some 4 seconds. A scan may be 14 bytes of a file, and goes over all
of the image."""
_TILE_WIDTH, _TILE_LENGTH = 322, 323

_PNG, _JPEG, _SCAN = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\xff\xda"
_PNG_HEADER = struct.Struct(">IIBBBBB")
_PNG_START = _PNG + b"\0\0\0\x0dIHDR"
_PLAIN = {(8, 0, 0, 0, 0): "L", (8, 2, 0, 0, 0): "RGB"}
"""PNG's bit depth, colour type, compression, filter and interlace -> Pillow's mode, for the commonest images."""


def square(raw: bytes, size: int, channels: int) -> np.ndarray:
    """Decodes an image, cuts its central square and resizes that.

    Args:
        raw: the file's bytes.
        size: height and width of the result.
        channels: 3 for RGB, 1 for grey.

    Returns:
        uint8 [channels, size, size].

    Raises:
        ValueError: the bytes are no image that can be decoded, or it is too large.
    """
    image = pixels(raw, channels)
    height, width = image.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    image = image[:, top : top + side, left : left + side]
    if side != size:
        image = _resized(image, size)
    return np.ascontiguousarray(image)


def pixels(raw: bytes, channels: int) -> np.ndarray:
    """Decodes an image to uint8 [channels, height, width].

    Raises:
        ValueError: as `square`.
    """
    if not raw:
        raise ValueError("the file is empty")
    plain = _plain_png(raw)
    if plain is not None:
        return _channels(plain, channels)
    with _open(raw) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"{width:,} x {height:,} pixels are more than {MAX_PIXELS:,}")
        if not raw.startswith(_JPEG):
            return _with_pillow(image, channels)
        scans = raw.count(_SCAN)
        if scans * width * height > _MAX_SCANNED:
            raise ValueError(f"{scans:,} scans are too many for an image of {width:,} x {height:,} pixels")
        import torch

        _load_torchvisions_operators()
        # The operator itself, because torchvision.io's functions warn that they are deprecated since 0.29.
        if not hasattr(torch.ops.image, "decode_jpeg"):
            return _with_pillow(image, channels)
    try:  # its modes are 1 for grey and 3 for RGB; True applies the EXIF orientation
        return torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(raw), dtype=torch.uint8), channels, True).numpy()
    except RuntimeError as error:
        raise ValueError(re.sub(r".*\.cpp:\d+, ", "", str(error).partition("\n")[0])) from None


def libraries() -> str:
    """The versions of all that pixels depend on."""
    return " ".join(f"{name} {version(name)}" for name in ("pillow", "torch", "torchvision"))


def suspicious(head: bytes, tail: bytes) -> bool:
    """Whether a file's first 32 and last 64 bytes leave doubt that it is a whole image: it is then worth decoding."""
    if head.startswith(_JPEG):
        return b"\xff\xd9" not in tail
    if head.startswith(_PNG):
        return b"IEND" not in tail
    return True


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    import torch
    from torch.nn.functional import interpolate

    # Pillow's arrays may be read-only, of which torch warns.
    tensor = torch.from_numpy(image if image.flags.writeable else image.copy())
    return interpolate(tensor[None], size=(size, size), mode="bilinear", antialias=True)[0].numpy()


@cache
def _load_torchvisions_operators() -> None:
    """Registers torch.ops.image from its library alone: to import torchvision takes as long as to import torch."""
    import torch

    spec = find_spec("torchvision")
    if spec is not None and spec.origin is not None:
        for library in Path(spec.origin).parent.glob("image*.so"):
            with contextlib.suppress(OSError):
                torch.ops.load_library(library)


def _plain_png(raw: bytes) -> Image.Image | None:
    """The image of a PNG of the plainest kind, by Pillow's decoder but without its parser, which takes longer
    than that for a small image; None for what is not of that kind, or damaged: the parser says what about it."""
    if raw[:16] != _PNG_START or len(raw) < 45:
        return None
    width, height, *kind = _PNG_HEADER.unpack_from(raw, 16)
    mode = _PLAIN.get(tuple(kind))
    if mode is None or not 0 < width * height <= MAX_PIXELS or raw[29:33] != zlib.crc32(raw[12:29]).to_bytes(4, "big"):
        return None
    position, parts = 33, []
    while raw[position + 4 : position + 8] == b"IDAT":
        end = position + 8 + int.from_bytes(raw[position : position + 4], "big")
        parts.append(raw[position + 8 : end])
        position = end + 4
    if raw[position : position + 8] != b"\0\0\0\0IEND":  # other chunks: they may hold an orientation
        return None
    from PIL import Image

    try:
        return Image.frombytes(mode, (width, height), b"".join(parts), "zip", mode, 0)
    except ValueError:
        return None


def _open(raw: bytes) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(raw), formats=_FORMATS)
    except UnidentifiedImageError:
        raise ValueError("it is no image, or of an unknown format") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # Pillow's parsers raise many types on damaged bytes
        raise ValueError(f"its header is damaged ({error})") from None


def _with_pillow(image: Image.Image, channels: int) -> np.ndarray:
    from PIL import ImageOps

    try:
        tags = getattr(image, "tag_v2", {})  # a TIFF's: a tile is decoded as a whole, however small the image
        if tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_LENGTH, 0) > MAX_PIXELS:
            raise ValueError("its tiles are too large")
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith("I") or image.mode == "F":
            deep = np.asarray(image).astype(np.float64)
            deep = deep / 257 if image.mode.startswith("I") else deep
            return np.clip(np.rint(deep), 0, 255).astype(np.uint8)[None].repeat(channels, axis=0)
        image.info.pop("transparency", None)  # Pillow warns of a palette's, which has no effect here
        return _channels(image, channels)
    except Exception as error:  # Pillow's decoders raise many types on damaged bytes
        raise ValueError(f"it cannot be decoded ({error})") from None


def _channels(image: Image.Image, channels: int) -> np.ndarray:
    mode = "RGB" if channels == 3 else "L"
    array = np.asarray(image if image.mode == mode else image.convert(mode))
    return array[None] if channels == 1 else array.transpose(2, 0, 1)
