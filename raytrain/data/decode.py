"""Decode the bytes of an image file to a square of uint8 pixels: torchvision for JPEG, Pillow for the rest.

torchvision decodes JPEG faster. A damaged PNG ends torchvision's process with a segmentation fault (0.29), so that no
error could name the file.

The format is read from the bytes, never from the name. Grey, RGBA, palette, CMYK and 16-bit images become RGB (or
grey, as asked), and EXIF orientation is applied. Only JPEGs and images that are resized need torch, which takes a
process a second to import.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from importlib.metadata import version
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from raytrain.data.crops import Crops
from raytrain.data.late import with_torch

Resampling = Literal["bilinear", "bicubic"]
MAX_PIXELS = 89_478_485
"""Larger images are refused before they are decoded (Pillow's limit against decompression bombs)."""
MAX_BYTES = 6 * MAX_PIXELS
"""Larger files are refused before they are read. It is the size of the largest image as uncompressed 16-bit RGB."""

VERSION = 3
"""Increase it with every change of the decoded pixels: entries of the disk cache are named by it."""

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""The formats that Pillow may try. Its reader of PostScript would run Ghostscript on the file."""
_MAX_SCANNED = 500 * MAX_PIXELS
"""Pixels that all scans of a JPEG may visit together: some 4 seconds. A scan takes 14 bytes of a file or more, and
visits the whole image."""
_TILE_WIDTH, _TILE_LENGTH, _BITS, _ORIENTATION = 322, 323, 258, 274
"""Tags of TIFF and EXIF."""
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda image: image[:, :, ::-1],
    3: lambda image: image[:, ::-1, ::-1],
    4: lambda image: image[:, ::-1],
    5: lambda image: image.transpose(0, 2, 1),
    6: lambda image: image[:, ::-1].transpose(0, 2, 1),
    7: lambda image: image[:, ::-1, ::-1].transpose(0, 2, 1),
    8: lambda image: image[:, :, ::-1].transpose(0, 2, 1),
}
"""EXIF's orientation -> [channels, height, width] of the upright image."""

_PNG, _JPEG, _SCAN = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\xff\xda"
_PNG_HEADER = struct.Struct(">IIBBBBB")
_PNG_START = _PNG + b"\0\0\0\x0dIHDR"
_PLAIN = {(8, 0, 0, 0, 0): "L", (8, 2, 0, 0, 0): "RGB"}
"""PNG's bit depth, colour type, compression, filter and interlace -> Pillow's mode, for the commonest images."""

# Large images are refused in an error of their own. A filter for a while would not be safe in threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def square(
    raw: bytes, size: int, channels: int, resampling: Resampling = "bilinear", squashed: bool = False
) -> np.ndarray:
    """Decode an image, cut its central square and resize it.

    Args:
        raw: the file's bytes.
        size: height and width of the result.
        channels: 3 for RGB, 1 for grey.
        resampling: how it is resized, with antialiasing.
        squashed: take the whole image, whose proportions change, in place of its central square.

    Returns:
        uint8 [channels, size, size].

    Raises:
        ValueError: the bytes are no image that can be decoded, or it is too large.
    """
    image = pixels(raw, channels)
    top, left, height, width = box(None, *image.shape[1:], squashed=squashed)
    image = image[:, top : top + height, left : left + width]
    if (height, width) != (size, size):
        image = with_torch().decode_torch.resized(image, size, resampling)
    return np.ascontiguousarray(image)


def crop(raw: bytes, crops: Crops, side: int, channels: int, resampling: Resampling = "bilinear") -> np.ndarray:
    """Decode an image, cut a random part of it and resize it.

    Args:
        raw: the file's bytes.
        crops: what to cut, of one sample.
        side: height and width of the result.
        channels: 3 for RGB, 1 for grey.
        resampling: as for `square`.

    Returns:
        uint8 [channels, side, side].

    Raises:
        ValueError: as `square`.
    """
    image = pixels(raw, channels)
    top, left, height, width = box(crops, *image.shape[1:])
    image = image[:, top : top + height, left : left + width]
    return image if (height, width) == (side, side) else with_torch().decode_torch.resized(image, side, resampling)


def box(crops: Crops | None, height: int, width: int, squashed: bool = False) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of what is taken of an image: its central square, all of it, or a random crop.

    Args:
        crops: of one sample; None takes the square.
        squashed: take all of it in place of the square.
    """
    if crops is not None:
        (found,) = crops.crop.boxes(crops.draws, height, width).tolist()
        return found
    if squashed:
        return 0, 0, height, width
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def pixels(raw: bytes, channels: int) -> np.ndarray:
    """Decode an image to uint8 [channels, height, width].

    Raises:
        ValueError: as `square`.
    """
    if not raw:
        raise ValueError("the file is empty")
    plain = _plain_png(raw)
    if plain is not None:
        return _channels(plain, channels)
    with _open(io.BytesIO(raw)) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"{width:,} x {height:,} pixels are more than {MAX_PIXELS:,}")
        jpeg = raw.startswith(_JPEG)
        scans = raw.count(_SCAN) if jpeg else 0
        if scans * width * height > _MAX_SCANNED:
            raise ValueError(f"{scans:,} scans are too many for an image of {width:,} x {height:,} pixels")
        if not jpeg or not with_torch().decode_torch.has_decoder():
            return _upright(_with_pillow(image, channels), image)
        try:
            return _upright(with_torch().decode_torch.decoded(raw, channels), image)
        except RuntimeError as error:
            raise ValueError(re.sub(r".*\.cpp:\d+, ", "", str(error).partition("\n")[0])) from None


def numbers(raw: bytes) -> np.ndarray:
    """Decode a mask to the number of each pixel: grey values, or places in a palette; integers [height, width].

    Raises:
        ValueError: the bytes are no such image, it is too large, or it is a JPEG, which does not keep numbers.
    """
    if not raw:
        raise ValueError("the file is empty")
    with _open(io.BytesIO(raw)) as image:
        if raw.startswith(_JPEG):
            raise ValueError("a JPEG does not keep the numbers of pixels: save it as PNG")
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width:,} x {image.height:,} pixels are more than {MAX_PIXELS:,}")
        if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
            raise ValueError(f"it has a colour for each pixel (mode {image.mode}), and not a number")
        found = np.asarray(_loaded(image))
        bits = raw[24] if raw.startswith(_PNG) else getattr(image, "tag_v2", {}).get(_BITS, (8,))[0]
        if image.mode == "L" and bits in (2, 4):  # Pillow has spread them over 0 to 255
            found = found // (255 // (2**bits - 1))
        (found,) = _upright(found[None], image)
    return found.astype(np.uint8) if found.dtype == bool else found


def upright_size(raw: bytes) -> tuple[int, int]:
    """Return the width and height of an encoded image as it is decoded: after EXIF's orientation.

    Raises:
        ValueError: as `square`.
    """
    with _open(io.BytesIO(raw)) as image:
        return (image.height, image.width) if _orientation(image) in (5, 6, 7, 8) else image.size


def pixels_for_gpu(raw: bytes) -> int:
    """Return the number of pixels of a JPEG that a GPU may decode in place of `pixels`; 0 for one that it may not.

    Left to the CPU are other formats, CMYK, RGB that is stored as such, grey images whose header has a factor of
    subsampling, which have no meaning there and for which nvJPEG returns zeros, what EXIF turns, and what `pixels`
    refuses, as far as the header and the ends of the file tell.
    """
    if not raw.startswith(_JPEG) or suspicious(raw[:32], raw[-64:]):
        return 0
    try:
        with _open(io.BytesIO(raw)) as image:
            count = image.width * image.height
            converted = image.info.get("adobe_transform", 1) == 1 and [one[0] for one in image.layer] != [*b"RGB"]  # type: ignore[attr-defined]
            even = image.mode == "RGB" or image.layer[0][1:3] == (1, 1)  # type: ignore[attr-defined]
            upright = _orientation(image) not in _TURNS
            plain = image.mode in ("L", "RGB") and even and converted and upright
    except Exception:  # Pillow's parsers raise many types on damaged bytes; `pixels` says what is wrong
        return 0
    return count if plain and count <= MAX_PIXELS and raw.count(_SCAN) * count <= _MAX_SCANNED else 0


def pixel_size(file: BinaryIO) -> tuple[int, int]:
    """Return an image's width and height, from its header alone.

    Raises:
        ValueError: as `square`.
    """
    with _open(file) as image:
        return image.size


def libraries() -> str:
    """Return the versions of the libraries that the pixels depend on."""
    return " ".join(f"{name} {version(name)}" for name in ("pillow", "torch", "torchvision"))


def check(raw: bytes, channels: int) -> None:
    """Look at both ends of an encoded image, and decode it if it looks damaged.

    Raises:
        ValueError: it cannot be decoded.
    """
    if suspicious(raw[:32], raw[-64:]):
        pixels(raw, channels)


def suspicious(head: bytes, tail: bytes) -> bool:
    """Return whether a file's first 32 and last 64 bytes leave doubt that it is a whole image."""
    if head.startswith(_JPEG):
        return b"\xff\xd9" not in tail
    if head.startswith(_PNG):
        return b"IEND" not in tail
    return True


def _plain_png(raw: bytes) -> Image.Image | None:
    """Return the image of a plain PNG, by Pillow's decoder but without its parser, which takes longer than the decoder
    for a small image. Return None for other and damaged files, which the parser then takes or refuses."""
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
    try:
        return Image.frombytes(mode, (width, height), b"".join(parts), "zip", mode, 0)
    except ValueError:
        return None


def _open(file: BinaryIO) -> Image.Image:
    try:
        return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        raise ValueError("it is not an image, or its format is unknown") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(f"it has more than {MAX_PIXELS:,} pixels: make it smaller") from None
    except Exception as error:  # Pillow's parsers raise many types on damaged bytes
        raise ValueError(f"its header is damaged ({error})") from None


def _orientation(image: Image.Image) -> int:
    """Return an image's orientation as EXIF or XMP has it; 1, upright, where they are damaged."""
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow's parsers raise many types on damaged bytes
        return 1


def _upright(found: np.ndarray, image: Image.Image) -> np.ndarray:
    """Return decoded pixels, [channels, height, width], turned as the image's header says."""
    turn = _TURNS.get(_orientation(image))
    return found if turn is None else np.ascontiguousarray(turn(found))


def _loaded(image: Image.Image) -> Image.Image:
    """Decode an image as it is stored."""
    try:
        tags = getattr(image, "tag_v2", {})  # a TIFF's: a tile is decoded as a whole, however small the image
        if tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_LENGTH, 0) > MAX_PIXELS:
            raise ValueError("its tiles are too large")
        image.load()
    except Exception as error:  # Pillow's decoders raise many types on damaged bytes
        raise ValueError(f"it cannot be decoded ({error})") from None
    return image


def _with_pillow(image: Image.Image, channels: int) -> np.ndarray:
    image = _loaded(image)
    if image.mode.startswith("I") or image.mode == "F":
        return _eight_bits(np.asarray(image))[None].repeat(channels, axis=0)
    try:
        image.info.pop("transparency", None)  # Pillow warns of a palette's, which has no effect here
        return _channels(image, channels)
    except Exception as error:  # Pillow's decoders raise many types on damaged bytes
        raise ValueError(f"it cannot be decoded ({error})") from None


def _eight_bits(deep: np.ndarray) -> np.ndarray:
    """Return grey values of 16 bits, or floats from 0 to 255, as uint8.

    Raises:
        ValueError: they are on another scale, of which an image alone does not tell the ends.
    """
    whole = deep.dtype.kind in "iu"
    low, high = float(deep.min()), float(deep.max())
    if not 0 <= np.rint(low) <= np.rint(high) <= (65535 if whole else 255) or (not whole and 0 < high <= 1):
        known = "0 to 65,535" if whole else "0 to 255"
        raise ValueError(f"its values go from {low:g} to {high:g}, and not from {known}: save it with 8 or 16 bits")
    return np.rint(deep / 257.0 if whole else deep).astype(np.uint8)


def _channels(image: Image.Image, channels: int) -> np.ndarray:
    mode = "RGB" if channels == 3 else "L"
    array = np.asarray(image if image.mode == mode else image.convert(mode))
    return array[None] if channels == 1 else array.transpose(2, 0, 1)
