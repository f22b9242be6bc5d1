"""JPEGs that a worker's GPU decodes by nvJPEG, cuts and resizes: what `decode` does on the CPU.

The resized images go back to the host's memory, where those that the CPU has decoded are, and batches are made as ever.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from raytrain import errors
from raytrain.data import decode, decode_torch
from raytrain.data.crops import Crops

Decode = Callable[[list[torch.Tensor], int], list[torch.Tensor]]
"""From JPEGs, uint8 [bytes] each, and the number of channels to pixels on a device, uint8 [channels, height, width]."""

_PIXELS = 1 << 25
"""Pixels that are on the GPU at a time, whose uint8 take 100 MB and their floats four times as many; an image of more
is left to the CPU."""
_OF_IMAGE = re.compile(r"Failed to (?!synchronize)[\w ]+: (3|4|9|10)\b|Unknown chroma subsampling")
"""What torchvision says of an image that nvJPEG cannot decode (nvjpegStatus_t: BAD_JPEG, JPEG_NOT_SUPPORTED,
IMPLEMENTATION_NOT_SUPPORTED, INCOMPLETE_BITSTREAM). Other failures are the GPU's, or one of memory."""
_EVERY, _FAR = 16, 16.0
"""Groups of images of which one image is compared with the CPU's, and the mean difference of two images, each shrunk
to 8 x 8, from which they show something else. Of photographs, other ones differ by 26 or more, and chroma that is
repeated where the CPU interpolates it makes 0.8 at most."""


class Decoder:
    """Decodes JPEGs on a GPU. All threads of a worker share it, and one of them uses it at a time: torchvision has one
    decoder, and the GPU's memory for images stays bounded.

    Which images it leaves to the CPU depends on each image alone.

    Args:
        device: the GPU.
        decode: what decodes; by default nvJPEG, through torchvision.

    Attributes:
        failed: the error after which nothing more can be decoded.
    """

    def __init__(self, device: torch.device, decode: Decode | None = None):
        self.failed: Exception | None = None
        self._decode = decode or partial(_nvjpeg, device)
        self._lock, self._groups = threading.Lock(), 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # training has the default one

    def fill(
        self,
        images: np.ndarray,
        raws: Iterable[tuple[int, bytes]],
        crops: Crops | None,
        resampling: str,
        squashed: bool,
    ) -> Iterator[tuple[int, bytes]]:
        """Decode images to squares, and yield those that the CPU must decode.

        Args:
            images: uint8 [k, channels, side, side], to fill.
            raws: (row, encoded image) of each row.
            crops: what to cut, of k samples; None takes the central squares.
            resampling, squashed: as for `decode.square`.

        Raises:
            RuntimeError: the GPU fails.
            UserError: it decodes other images than the CPU.
        """
        group: list[tuple[int, bytes]] = []
        size = 0
        for row, raw in raws:
            count = decode.pixels_for_gpu(raw)
            if not 0 < count <= _PIXELS:
                yield row, raw
                continue
            if size + count > _PIXELS:
                yield from self._group(images, group, crops, resampling, squashed)
                group, size = [], 0
            group.append((row, raw))
            size += count
        if group:
            yield from self._group(images, group, crops, resampling, squashed)

    def _group(
        self, images: np.ndarray, group: list[tuple[int, bytes]], crops: Crops | None, resampling: str, squashed: bool
    ) -> list[tuple[int, bytes]]:
        """Decode images that are on the GPU at the same time; return those that it cannot decode."""
        channels, side = images.shape[1:3]
        with self._lock, self._on_stream():
            try:
                found = self._decoded([raw for _, raw in group], channels)
                one, self._groups = self._groups // _EVERY % len(group), self._groups + 1
                if self._groups % _EVERY == 1 and (image := found[one]) is not None:
                    _compare(group[one][1], image)
                for (row, _), image in zip(group, found, strict=True):
                    if image is not None:
                        box = decode.box(crops and crops.rows(slice(row, row + 1)), *image.shape[1:], squashed=squashed)
                        # It waits for the GPU: the memory of `found` may be written to as soon as it is free, since
                        # torchvision's decoder has a stream of its own, which waits for none.
                        torch.from_numpy(images[row]).copy_(_resized(image, box, side, resampling))
            except Exception as error:
                self.failed = error
                raise
        return [one for one, image in zip(group, found, strict=True) if image is None]

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Return the context of the decoder's stream. Threads begin on GPU 0, to which the end of a stream's context
        alone would return, and CUDA would make a context of its own there."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            yield

    def _decoded(self, raws: list[bytes], channels: int) -> list[torch.Tensor | None]:
        """Return the pixels of images; None for one that nvJPEG cannot decode."""
        try:
            return [*self._decode([torch.frombuffer(bytearray(raw), dtype=torch.uint8) for raw in raws], channels)]
        except RuntimeError as error:
            if self._stream is not None:
                self._stream.synchronize()  # raises the error of a GPU that has failed
            if not _OF_IMAGE.search(str(error)):
                raise
            self._decode([], channels)  # waits for images that were begun, whose memory is free
        return [None] if len(raws) == 1 else [self._decoded([raw], channels)[0] for raw in raws]


def has_nvjpeg() -> bool:
    """Return whether torchvision is built with nvJPEG. No GPU is needed to tell."""
    if not decode_torch.has_decoder() or not hasattr(torch.ops.image, "decode_jpegs_cuda"):
        return False
    try:
        torch.ops.image.decode_jpegs_cuda([], 3, torch.device("cpu"))
    except RuntimeError as error:  # it wants another device, or has no code for any
        return "not compiled" not in str(error)
    return True


def _nvjpeg(device: torch.device, raws: list[torch.Tensor], channels: int) -> list[torch.Tensor]:
    # The operator itself, as in `decode_torch.decoded`. It knows no EXIF orientation.
    decode_torch.has_decoder()
    return torch.ops.image.decode_jpegs_cuda(raws, channels, device)


def _resized(image: torch.Tensor, box: tuple[int, int, int, int], side: int, resampling: str) -> torch.Tensor:
    """Cut a box (top, left, height, width) and resize it to uint8 [channels, side, side]: across, then down, and round
    after each as the CPU does, which multiplies integers. Values differ from its by 2 at most, and few do."""
    top, left, height, width = box
    found = image[None, :, top : top + height, left : left + width]
    for size in (height, side), (side, side):
        if found.shape[2:] != size:
            found = interpolate(found.float(), size=size, mode=resampling, antialias=True).round_().clamp_(0, 255)
    return found[0].to(torch.uint8)


def _compare(raw: bytes, image: torch.Tensor) -> None:
    """Compare an image with the CPU's. torchvision is not told by nvJPEG which images of a batch it has left out.

    Raises:
        UserError: they show something else.
    """
    try:
        expected = decode_torch.tensor(decode.pixels(raw, len(image)))
    except ValueError:  # it is damaged, which nvJPEG need not see
        return
    here, there = (adaptive_avg_pool2d(one.float(), 8) for one in (image.cpu(), expected))
    far = (here - there).abs().mean().item()
    if image.shape != expected.shape or far > _FAR:
        what = f"the GPU decodes a JPEG to another image than the CPU: they differ by {far:.0f} of 255"
        raise errors.UserError(what, "in data.decode", "train a new run with --data.decode cpu")
