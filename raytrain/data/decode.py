"""Bytes of an image file to a square of uint8 pixels: torchvision.io for JPEG and PNG, Pillow for the rest.

The format is read from the bytes, never from the name. Grey, RGBA, palette, CMYK and 16-bit images become RGB (or
grey, as asked), and EXIF orientation is applied.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

MAX_PIXELS = 89_478_485
"""Larger images are refused before they are decoded (Pillow's limit against decompression bombs)."""

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


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
    from torch.nn.functional import interpolate

    image = pixels(raw, channels)
    height, width = image.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    image = image[:, top : top + side, left : left + side]
    if side != size:
        image = interpolate(image[None], size=(size, size), mode="bilinear", antialias=True)[0]
    return image.contiguous().numpy()


def pixels(raw: bytes, channels: int) -> torch.Tensor:
    """Decodes an image to uint8 [channels, height, width].

    Raises:
        ValueError: as `square`.
    """
    import torch
    from torchvision.io import ImageReadMode, decode_image

    if not raw:
        raise ValueError("the file is empty")
    width, height = _size(raw)
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width:,} x {height:,} pixels are more than {MAX_PIXELS:,}")
    if not raw.startswith((_PNG, _JPEG)):
        return _with_pillow(raw, channels)
    mode = ImageReadMode.RGB if channels == 3 else ImageReadMode.GRAY
    try:
        image = decode_image(torch.frombuffer(bytearray(raw), dtype=torch.uint8), mode, apply_exif_orientation=True)
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return (image.to(torch.int32) >> 8).to(torch.uint8) if image.dtype == torch.uint16 else image


def suspicious(head: bytes, tail: bytes) -> bool:
    """Whether a file's first 32 and last 64 bytes leave doubt that it is a whole image: it is then worth decoding."""
    if head.startswith(_JPEG):
        return b"\xff\xd9" not in tail
    if head.startswith(_PNG):
        return b"IEND" not in tail
    return True


def _size(raw: bytes) -> tuple[int, int]:
    if raw.startswith(_PNG):
        return int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")
    with _open(raw) as image:
        return image.size


def _open(raw: bytes):
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(raw))
    except UnidentifiedImageError:
        raise ValueError("it is no image, or of an unknown format") from None
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from None
    except (OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError) as error:
        raise ValueError(f"its header is damaged ({error})") from None


def _with_pillow(raw: bytes, channels: int) -> torch.Tensor:
    import torch
    from PIL import ImageOps

    try:
        with _open(raw) as image:
            image.load()
            image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I") or image.mode == "F":
                deep = np.asarray(image).astype(np.float64)
                deep = deep / 257 if image.mode.startswith("I") else deep
                grey = np.clip(np.rint(deep), 0, 255).astype(np.uint8)
                array = grey[None].repeat(channels, axis=0)
            else:
                array = np.asarray(image.convert("RGB" if channels == 3 else "L"))
                array = array.transpose(2, 0, 1) if channels == 3 else array[None]
    except Exception as error:  # Pillow's decoders raise many types on damaged bytes
        raise ValueError(f"it cannot be decoded ({error})") from None
    return torch.from_numpy(np.array(array))
