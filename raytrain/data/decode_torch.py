"""The parts of decoding that need torch: JPEG and resizing; and encoding."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate


def has_decoder() -> bool:
    """Return whether torchvision's JPEG decoder is there."""
    _load_torchvisions_operators()
    return hasattr(torch.ops.image, "decode_jpeg")


def decoded(raw: bytes, channels: int) -> np.ndarray:
    """Decode a JPEG to uint8 [channels, height, width], with its EXIF orientation.

    Raises:
        RuntimeError: the file is damaged.
    """
    # The operator itself, because torchvision.io's functions warn that they are deprecated since 0.29. Its modes are 1
    # for grey and 3 for RGB; True applies the EXIF orientation.
    return torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(raw), dtype=torch.uint8), channels, True).numpy()


def resized(image: np.ndarray, size: int, resampling: str = "bilinear") -> np.ndarray:
    """Resize uint8 [channels, height, width] to [channels, size, size]."""
    # Pillow's arrays may be read-only, of which torch warns.
    tensor = torch.from_numpy(image if image.flags.writeable else image.copy())
    return interpolate(tensor[None], size=(size, size), mode=resampling, antialias=True)[0].numpy()


def shortened(image: np.ndarray, side: int, resampling: str = "bilinear") -> np.ndarray:
    """Resize uint8 [channels, height, width] with its aspect ratio, so that its shorter side is `side`."""
    height, width = image.shape[1:]
    short = min(height, width)
    size = [max(side, round(one * side / short)) for one in (height, width)]
    tensor = torch.from_numpy(image if image.flags.writeable else image.copy())
    return interpolate(tensor[None], size=size, mode=resampling, antialias=True)[0].numpy()


def jpeg(image: np.ndarray, quality: int) -> bytes:
    """Encode uint8 [channels, height, width], of 1 or 3 channels, as a JPEG."""
    if has_decoder():  # torchvision's encoder too, which lets other threads run
        return torch.ops.image.encode_jpeg(torch.from_numpy(image), quality).numpy().tobytes()
    content = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(content, "JPEG", quality=quality)
    return content.getvalue()


@cache
def _load_torchvisions_operators() -> None:
    """Register torch.ops.image from its library alone: importing torchvision takes as long as importing torch."""
    spec = find_spec("torchvision")
    if spec is not None and spec.origin is not None:
        for library in Path(spec.origin).parent.glob("image*.so"):
            with contextlib.suppress(OSError):
                torch.ops.load_library(library)
