"""decode: every kind of image to uint8 pixels, and a plain reason for what is none."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

from raytrain.data import decode

ROWS, COLUMNS = np.mgrid[0:90, 0:120]
PHOTO = Image.fromarray(np.stack([COLUMNS * 2, ROWS * 2, ROWS + COLUMNS], axis=-1).astype(np.uint8))
DEEP = (ROWS * 700 + COLUMNS).astype(np.uint16)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def reference(raw: bytes, channels: int) -> np.ndarray:
    """What Pillow sees, int64 [channels, height, width]."""
    with Image.open(io.BytesIO(raw)) as file:
        image = ImageOps.exif_transpose(file)
        if image.mode.startswith("I"):
            return np.rint(np.asarray(image).astype(np.float64) / 257).astype(np.int64)[None].repeat(channels, 0)
        image.info.pop("transparency", None)
        array = np.asarray(image.convert("RGB" if channels == 3 else "L")).astype(np.int64)
    return array.transpose(2, 0, 1) if channels == 3 else array[None]


KINDS = {
    "grey PNG": encode(PHOTO.convert("L"), "PNG"),
    "RGB PNG": encode(PHOTO, "PNG"),
    "RGBA PNG": encode(PHOTO.convert("RGBA"), "PNG"),
    "palette PNG": encode(PHOTO.convert("P"), "PNG"),
    "palette PNG with transparent colours": encode(PHOTO.convert("P"), "PNG", transparency=bytes(range(256))),
    "grey PNG with alpha": encode(PHOTO.convert("LA"), "PNG"),
    "1-bit PNG": encode(PHOTO.convert("1"), "PNG"),
    "16-bit grey PNG": encode(Image.fromarray(DEEP), "PNG"),
    "RGB JPEG": encode(PHOTO, "JPEG", quality=95),
    "grey JPEG": encode(PHOTO.convert("L"), "JPEG", quality=95),
    "CMYK JPEG": encode(PHOTO.convert("CMYK"), "JPEG", quality=95),
    "progressive JPEG": encode(PHOTO, "JPEG", quality=95, progressive=True),
    "BMP": encode(PHOTO, "BMP"),
    "PPM": encode(PHOTO, "PPM"),
    "PGM": encode(PHOTO.convert("L"), "PPM"),
    "16-bit PGM": encode(Image.fromarray(DEEP), "PPM"),
    "TIFF": encode(PHOTO, "TIFF"),
    "CMYK TIFF": encode(PHOTO.convert("CMYK"), "TIFF"),
    "16-bit TIFF": encode(Image.fromarray(DEEP), "TIFF"),
    "WebP": encode(PHOTO, "WEBP", lossless=True),
    "WebP with alpha": encode(Image.merge("RGBA", (*PHOTO.split(), PHOTO.getchannel(0))), "WEBP", lossless=True),
    "GIF": encode(PHOTO.convert("P"), "GIF"),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_that_pillow_sees(kind: str, channels: int) -> None:
    image = decode.pixels(KINDS[kind], channels)
    assert image.dtype == np.uint8 and image.shape == (channels, 90, 120)
    assert np.abs(image.astype(int) - reference(KINDS[kind], channels)).max() <= (1 if "JPEG" in kind else 0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_central_square_is_resized_as_pillow_does(kind: str, channels: int) -> None:
    image = decode.square(KINDS[kind], 40, channels)
    assert image.dtype == np.uint8 and image.shape == (channels, 40, 40)
    for channel, expected in zip(image, reference(KINDS[kind], channels), strict=True):
        whole = Image.fromarray(expected.astype(np.uint8)).crop((15, 0, 105, 90))
        resized = np.asarray(whole.resize((40, 40), Image.Resampling.BILINEAR)).astype(np.int64)
        assert np.abs(channel - resized).max() <= 2


def test_a_16_bit_rgb_png_keeps_its_colours() -> None:
    colours = np.stack([DEEP, DEEP[::-1], DEEP[:, ::-1]], axis=-1)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    image = decode.pixels(png(120, 90, 16, 2, rows), 3).astype(int)
    assert np.abs(image - colours.transpose(2, 0, 1) / 257).max() <= 1


def test_floating_point_pixels_from_0_to_255_are_rounded() -> None:
    image = Image.fromarray(np.array([[-0.4, 0.4], [99.6, 255.4]], np.float32))
    assert decode.pixels(encode(image, "TIFF"), 1).tolist() == [[[0, 0], [100, 255]]]


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.array([[0.0, 0.25], [0.5, 1.0]], np.float32), "its values go from 0 to 1, and not from 0 to 255"),
        (np.array([[-5.0, 3.0], [9.0, 300.0]], np.float32), "its values go from -5 to 300, and not from 0 to 255"),
        (np.array([[np.nan, 3.0], [9.0, 30.0]], np.float32), "its values go from nan to nan, and not from 0 to 255"),
        (np.array([[0, 3], [9, 70_000]], np.int32), "its values go from 0 to 70000, and not from 0 to 65,535"),
        (np.array([[-7, 3], [9, 70]], np.int32), "its values go from -7 to 70, and not from 0 to 65,535"),
    ],
)
def test_pixels_on_another_scale_are_refused(pixels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode.pixels(encode(Image.fromarray(pixels), "TIFF"), 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = encode(PHOTO, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {"lossless": True}))
    image, expected = decode.pixels(raw, 3), reference(raw, 3)
    assert image.shape == expected.shape == ((3, 120, 90) if orientation > 4 else (3, 90, 120))
    assert np.abs(image.astype(int) - expected).max() <= 1
    moved = np.abs(decode.square(raw, 90, 3) - decode.square(KINDS["RGB PNG"], 90, 3).astype(int)).max()
    assert moved < 10 if orientation == 1 else moved > 50


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["H", "L"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_is_found_wherever_a_camera_or_an_editor_writes_it(orientation: int, kind: str, order: str) -> None:
    value = struct.pack(f"{order}{kind}", orientation).ljust(4, b"\0")
    entry = struct.pack(f"{order}HHI", 0x0112, 3 if kind == "H" else 4, 1) + value
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, 1)
    first, exif = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>", b"Exif\0\0" + head + entry + bytes(4)
    parts = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in (first, exif))
    plain = encode(PHOTO, "JPEG", quality=95)
    raw = plain[:2] + parts + plain[2:]
    image, expected = decode.pixels(raw, 3), reference(raw, 3)
    assert image.shape == expected.shape == (3, *decode.upright_size(raw)[::-1])
    assert image.shape == ((3, 120, 90) if orientation > 4 else (3, 90, 120))
    assert np.abs(image.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_damaged_orientation_counts_as_none(kind: str) -> None:
    raw = encode(PHOTO, kind, exif=b"Exif\0\0no TIFF", lossless=True)
    assert np.array_equal(decode.pixels(raw, 3), np.asarray(PHOTO).transpose(2, 0, 1))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_masks_keep_their_numbers_at_each_depth(bits: int) -> None:
    values = np.arange(2**bits, dtype=np.uint8)[None].repeat(3, 0)
    rows = b"".join(b"\0" + np.packbits(np.unpackbits(row[:, None], axis=1)[:, 8 - bits :]).tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], 3, bits, 0, 0, 0, 0)
    raw = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
        for name, part in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )
    assert np.array_equal(decode.numbers(raw), values)
    assert np.array_equal(decode.numbers(encode(Image.fromarray(values), "TIFF")), values)


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (1, 50), (7, 7), (1, 1)])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_small_images_are_enlarged(shape: tuple[int, int], mode: str) -> None:
    raw = encode(PHOTO.convert(mode).crop((0, 0, *shape)), "PNG")
    assert decode.square(raw, 64, 3).shape == (3, 64, 64)


def test_enlarging_interpolates_between_the_pixels() -> None:
    raw = encode(Image.fromarray(np.array([[0, 200], [0, 200]], np.uint8)), "PNG")
    assert decode.square(raw, 4, 1)[0].tolist() == [[0, 50, 150, 200]] * 4


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [17, 64, 200])
def test_squares_are_resized_as_torchvision_does(size: int, channels: int) -> None:
    noise = np.random.default_rng(size).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    raw = encode(Image.fromarray(noise), "PNG")
    square = torch.from_numpy(reference(raw, channels)[:, :, 15:105].astype(np.uint8))
    found: dict[str, np.ndarray] = {}
    for how in ("bilinear", "bicubic"):
        found[how] = decode.square(raw, size, channels, how)
        wanted = v2.functional.resize(square, [size, size], v2.InterpolationMode(how), antialias=True)
        np.testing.assert_array_equal(found[how], wanted.numpy())
    assert not np.array_equal(found["bilinear"], found["bicubic"])
    np.testing.assert_array_equal(decode.square(raw, size, channels), found["bilinear"])


@pytest.mark.parametrize("size", [90, 91])
def test_a_square_of_the_stored_size_is_left_as_it_is(size: int) -> None:
    raw = encode(PHOTO.crop((0, 0, 90, 90)), "PNG")
    equal = np.array_equal(decode.square(raw, size, 3), reference(raw, 3))
    assert equal == (size == 90)


def test_a_jpeg_decodes_alike_where_torchvision_has_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torchvision = decode.pixels(KINDS["RGB JPEG"], 3)
    monkeypatch.setattr(torch.ops, "image", object())
    assert np.array_equal(decode.pixels(KINDS["RGB JPEG"], 3), with_torchvision)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_truncated_image_is_refused(kind: str, share: float) -> None:
    raw = KINDS[kind]
    with pytest.raises(ValueError, match=r"truncated|damaged|not an image|cannot be decoded"):
        decode.pixels(raw[: int(len(raw) * share)], 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 3, 8, 20])
def test_a_mere_beginning_is_refused(kind: str, size: int) -> None:
    with pytest.raises(
        ValueError, match="the file is empty" if size == 0 else r"not an image|header is damaged|truncated"
    ):
        decode.pixels(KINDS[kind][:size], 3)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_give_pixels_or_a_reason(kind: str) -> None:
    generator, refused = np.random.default_rng(0), 0
    for _ in range(40):
        raw = bytearray(KINDS[kind])
        raw[generator.integers(len(raw))] ^= 1 << generator.integers(8)
        raw[generator.integers(min(100, len(raw)))] ^= 1 << generator.integers(8)
        try:
            assert decode.square(bytes(raw), 16, 3).shape == (3, 16, 16)
        except ValueError as error:
            assert str(error) and "\n" not in str(error) and ".cpp" not in str(error)
            refused += 1
    assert refused


@pytest.mark.parametrize("raw", [b"<html>not found</html>", b"P", b"\x00" * 100, b"a, b\n1, 2\n", b"\xff\xd8\xff"])
def test_what_is_no_image_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not an image"):
        decode.pixels(raw, 3)


@pytest.mark.parametrize("side", [10_000, 60_000])
def test_image_of_too_many_pixels_is_not_decoded(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_with_pillow", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(ValueError, match="more than 89,478,485"):
        decode.pixels(png(side, side, 8, 2, b""), 3)


def test_the_limit_holds_also_where_pillow_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(decode, "_with_pillow", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(ValueError, match="10,000 x 10,000 pixels are more than 89,478,485"):
        decode.pixels(png(10_000, 10_000, 8, 2, b""), 3)


def test_a_refused_size_has_no_warning_of_pillow() -> None:
    code = (
        "import sys; from raytrain.data import decode\n"
        "try: decode.pixels(sys.stdin.buffer.read(), 3)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=png(10_000, 10_000, 8, 2, b""), capture_output=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"10,000 x 10,000 pixels are more than 89,478,485\n", b"")


def test_jpeg_of_many_scans_is_refused_in_time() -> None:
    raw = KINDS["progressive JPEG"]
    frame, scan = raw.index(b"\xff\xc2"), raw.rindex(b"\xff\xda")
    large = raw[: frame + 5] + struct.pack(">HH", 9_000, 9_000) + raw[frame + 9 : -2]
    with pytest.raises(ValueError, match="610 scans are too many for an image of 9,000 x 9,000 pixels"):
        decode.pixels(large + raw[scan : scan + 14] * 600 + b"\xff\xd9", 3)
    film = np.random.default_rng(0).integers(0, 256, 60 << 20, dtype=np.uint8).tobytes()
    assert film.count(b"\xff\xda") > 600
    assert np.array_equal(decode.pixels(raw + film, 3), decode.pixels(raw, 3))


def test_a_tile_is_refused_that_is_larger_than_any_image() -> None:
    assert decode.pixels(tiled(128, 96), 1).shape == (1, 90, 120)
    with pytest.raises(ValueError, match="its tiles are too large"):
        decode.pixels(tiled(30_000, 30_000), 1)


def tiled(width: int, height: int) -> bytes:
    """A black TIFF of 120 x 90 pixels in one tile, of which there are as many bytes as a tile of 128 x 96 has."""
    body = zlib.compress(bytes(128 * 96))
    tags = {256: 120, 257: 90, 258: 8, 259: 8, 262: 1, 277: 1, 322: width, 323: height, 324: 134, 325: len(body)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + body


@pytest.mark.parametrize("start", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", b"%PDF-1.4\n"])
def test_pillow_tries_seven_formats_only(start: bytes) -> None:
    with pytest.raises(ValueError, match="it is not an image, or its format is unknown"):
        decode.pixels(start + b"showpage\n%%EOF\n", 3)


def test_only_whole_jpeg_and_png_files_are_beyond_suspicion() -> None:
    doubts = {kind: decode.suspicious(raw[:32], raw[-64:]) for kind, raw in KINDS.items()}
    assert {kind for kind, doubt in doubts.items() if not doubt} == {k for k in KINDS if "JPEG" in k or "PNG" in k}
    for kind in ("RGB JPEG", "RGB PNG"):
        assert decode.suspicious(KINDS[kind][:32], KINDS[kind][:-100][-64:])
    assert decode.suspicious(b"", b"")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "PNG" in kind])
def test_fast_path_for_plain_pngs_equals_pillow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(raw: bytes) -> object:
        try:
            return decode.pixels(raw, 3).tolist()
        except ValueError as error:
            return str(error)

    generator, files = np.random.default_rng(1), [KINDS[kind]]
    for position in generator.integers(8, len(KINDS[kind]), 60):
        files.append(KINDS[kind][:position] + bytes([KINDS[kind][position] ^ 16]) + KINDS[kind][position + 1 :])
    short = [outcome(raw) for raw in files]
    assert (decode._plain_png(files[0]) is not None) == (kind in ("grey PNG", "RGB PNG"))
    monkeypatch.setattr(decode, "_plain_png", lambda _: None)
    assert short == [outcome(raw) for raw in files]


def test_a_png_of_the_stored_size_needs_no_torch() -> None:
    code = (
        "import sys; from raytrain.data import decode\n"
        "print(decode.square(sys.stdin.buffer.read(), 90, 3).shape, 'torch' in sys.modules)"
    )
    raw = encode(PHOTO.crop((0, 0, 90, 90)), "PNG")
    done = subprocess.run([sys.executable, "-c", code], input=raw, capture_output=True, check=False, timeout=60)
    assert done.stdout == b"(3, 90, 90) False\n", done.stderr
