"""The parts of decoding that need torch: JPEG and resizing; and encoding."""

from __future__ import annotations

import contextlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate


def pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads in which torch's functions use no further threads: each would get as many as the caller
    has, and they would wait for each other. Threads that are made later have as many as the caller again."""
    all_set = threading.Barrier(threads + 1)

    def begin() -> None:
        torch.set_num_threads(1)  # of those that are made from now on,
        torch.get_num_threads()  # and of this one, which takes the number when it is first needed
        all_set.wait()

    found = ThreadPoolExecutor(threads, "data", begin)
    for _ in range(threads):
        found.submit(int)
    all_set.wait()
    torch.set_num_threads(torch.get_num_threads())
    return found


def has_decoder() -> bool:
    """Return whether torchvision's JPEG decoder is there."""
    _load_torchvisions_operators()
    return hasattr(torch.ops.image, "decode_jpeg")


def decoded(raw: bytes, channels: int) -> np.ndarray:
    """Decode a JPEG to uint8 [channels, height, width], as it is stored: torchvision does not find each orientation.

    Raises:
        RuntimeError: the file is damaged.
    """
    # The operator itself, because torchvision.io's functions warn that they are deprecated since 0.29. Its modes are 1
    # for grey and 3 for RGB.
    return torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(raw), dtype=torch.uint8), channels, False).numpy()


def tensor(image: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor: of a read-only one, such as Pillow's, a copy, since torch warns of these."""
    return torch.from_numpy(image if image.flags.writeable else image.copy())


def resized(image: np.ndarray, size: int, resampling: str = "bilinear") -> np.ndarray:
    """Resize uint8 [channels, height, width] to [channels, size, size]."""
    return interpolate(tensor(image)[None], size=(size, size), mode=resampling, antialias=True)[0].numpy()


def shortened(image: np.ndarray, side: int, resampling: str = "bilinear") -> np.ndarray:
    """Resize uint8 [channels, height, width] with its aspect ratio, so that its shorter side is `side`."""
    height, width = image.shape[1:]
    short = min(height, width)
    size = [max(side, round(one * side / short)) for one in (height, width)]
    return interpolate(tensor(image)[None], size=size, mode=resampling, antialias=True)[0].numpy()


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
