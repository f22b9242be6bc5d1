"""Bytes of an image file to a square of uint8 pixels: torchvision for JPEG, Pillow for the rest.

On JPEG torchvision is the faster one. On PNG a damaged file ends torchvision's process with a segmentation fault
(0.29), so that no error could name the file.

The format is read from the bytes, never from the name. Grey, RGBA, palette, CMYK and 16-bit images become RGB (or
grey, as asked), and EXIF orientation is applied.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from PIL import Image

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
    import torchvision  # noqa: F401  # registers torch.ops.image

    if not raw:
        raise ValueError("the file is empty")
    with _open(raw) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"{width:,} x {height:,} pixels are more than {MAX_PIXELS:,}")
        # The operator itself, because torchvision.io's functions warn that they are deprecated since 0.29.
        if not raw.startswith(_JPEG) or not hasattr(torch.ops.image, "decode_jpeg"):
            return torch.from_numpy(_with_pillow(image, channels))
    try:  # its modes are 1 for grey and 3 for RGB; True applies the EXIF orientation
        return torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(raw), dtype=torch.uint8), channels, True)
    except RuntimeError as error:
        raise ValueError(re.sub(r".*\.cpp:\d+, ", "", str(error).partition("\n")[0])) from None


def suspicious(head: bytes, tail: bytes) -> bool:
    """Whether a file's first 32 and last 64 bytes leave doubt that it is a whole image: it is then worth decoding."""
    if head.startswith(_JPEG):
        return b"\xff\xd9" not in tail
    if head.startswith(_PNG):
        return b"IEND" not in tail
    return True


def _open(raw: bytes) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(raw))
    except UnidentifiedImageError:
        raise ValueError("it is no image, or of an unknown format") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # Pillow's parsers raise many types on damaged bytes
        raise ValueError(f"its header is damaged ({error})") from None


def _with_pillow(image: Image.Image, channels: int) -> np.ndarray:
    from PIL import ImageOps

    try:
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I") or image.mode == "F":
            deep = np.asarray(image).astype(np.float64)
            deep = deep / 257 if image.mode.startswith("I") else deep
            return np.clip(np.rint(deep), 0, 255).astype(np.uint8)[None].repeat(channels, axis=0)
        image.info.pop("transparency", None)  # Pillow warns of a palette's, which has no effect here
        array = np.array(image.convert("RGB" if channels == 3 else "L"))
    except Exception as error:  # Pillow's decoders raise many types on damaged bytes
        raise ValueError(f"it cannot be decoded ({error})") from None
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))
