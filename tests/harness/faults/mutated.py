"""Damaged and hostile image and IDX files, several hundred, the same ones for a seed. Run as a program it
reads all of them in a process of its own and prints what came of each kind."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from raytrain.data import MNIST, ImageFolder, decode, mnist, packing
from raytrain.data.trees import EXTENSIONS
from raytrain.errors import BadSample, UserError

SIZE = 16
HERE = Path(__file__).absolute()
ROWS, COLUMNS = np.mgrid[0:40, 0:52]
NOISE = np.random.default_rng(0).integers(0, 60, (40, 52, 3))
PHOTO = Image.fromarray((np.stack([COLUMNS * 3, ROWS * 4, ROWS + COLUMNS], axis=-1) + NOISE).astype(np.uint8))


class File(NamedTuple):
    """A file to be: what was done to it, what it is called below its folder, and its bytes."""

    kind: str
    name: str
    raw: bytes


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, colour: int, body: bytes, before: bytes = b"", interlaced: int = 0) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, interlaced))
    return b"\x89PNG\r\n\x1a\n" + head + before + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@cache
def zeros(size: int, wbits: int = zlib.MAX_WBITS) -> bytes:
    """So many zero bytes, compressed."""
    return zlib.compress(bytes(size), 1, wbits=wbits)


def interlaced() -> bytes:
    """PHOTO in Adam7's seven passes, which Pillow reads and does not write."""
    pixels, rows = np.asarray(PHOTO), b""
    for top, left, down, right in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                                   (1, 0, 2, 1)):  # fmt: skip
        rows += b"".join(b"\0" + row.tobytes() for row in pixels[top::down, left::right])
    return png(52, 40, 2, zlib.compress(rows), interlaced=1)


def originals(data_root: Path | None) -> dict[str, bytes]:
    """Whole images by suffix and kind."""
    deep = Image.fromarray((ROWS * 700 + COLUMNS).astype(np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = {
        "rgb.jpg": encoded(PHOTO, "JPEG", quality=90, exif=exif),
        "grey.jpg": encoded(PHOTO.convert("L"), "JPEG"),
        "progressive.jpeg": encoded(PHOTO, "JPEG", progressive=True),
        "cmyk.jpg": encoded(PHOTO.convert("CMYK"), "JPEG"),
        "rgb.png": encoded(PHOTO, "PNG"),
        "grey.png": encoded(PHOTO.convert("L"), "PNG"),
        "palette.png": encoded(PHOTO.convert("P"), "PNG", transparency=bytes(range(256))),
        "deep.png": encoded(deep, "PNG"),
        "interlaced.png": interlaced(),
        "gif.png": encoded(PHOTO.convert("P"), "GIF"),
        "plain.bmp": encoded(PHOTO, "BMP"),
        "lossy.webp": encoded(PHOTO, "WEBP", exif=exif),
        "lossless.webp": encoded(PHOTO, "WEBP", lossless=True),
        "deflated.tiff": encoded(PHOTO, "TIFF", compression="tiff_deflate"),
        "plain.ppm": encoded(PHOTO, "PPM"),
    }
    if data_root is not None:
        for path in sorted((data_root / "hymenoptera" / "train" / "ants").glob("*.jpg"))[:2]:
            found[f"real-{path.stem[:8]}.jpg"] = path.read_bytes()
    return found


def damaged(raw: bytes, generator: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """(kind, bytes) of the ways in which a file is damaged."""
    size, head = len(raw), min(len(raw), 64)
    for share in (*np.linspace(0, 1, 9)[1:-1], 1 - 1 / size, 1 / size, 12 / size):
        yield "truncated", raw[: int(size * share)]
    for count in (1, 1, 1, 1, 1, 1, 4, 16, 64, 256):
        changed = bytearray(raw)
        for place in generator.integers(size, size=count):
            changed[place] ^= 1 << generator.integers(8)
        yield "bits flipped", bytes(changed)
    for count in (1, 1, 1, 1, 2, 2, 3, 4):
        changed = bytearray(raw)
        for place in generator.integers(2, head, size=count):
            changed[place] = generator.choice([0, 1, 2, 16, 127, 128, 254, 255])
        yield "header edited", bytes(changed)
    first, last = sorted(generator.integers(size, size=2))
    yield "piece moved", raw[:first] + raw[last:]
    yield "piece moved", raw[:last] + raw[first:]
    yield "piece moved", raw[:first] + bytes(last - first) + raw[last:]
    yield "piece moved", raw[last:] + raw[:last]
    yield "foreign bytes", generator.bytes(40) + raw
    yield "foreign bytes", raw[: size // 2] + generator.bytes(400)
    yield "foreign bytes", raw + generator.bytes(400)


def bombs(whole: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of small files that ask for much."""
    much = zeros(200 << 20)
    yield "data.png", png(32, 32, 0, much)
    yield "palette.png", png(32, 32, 3, much, chunk(b"PLTE", bytes(768)))
    rows = zlib.compress(bytes(32 * 33))
    for name, start in ((b"zTXt", b"k\0\0"), (b"iCCP", b"k\0\0"), (b"iTXt", b"k\0\1\0\0\0")):
        yield f"{name.decode()}.png", png(32, 32, 0, rows, chunk(name, start + much))
    yield "texts.png", png(32, 32, 0, rows, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1_000_000))) * 100)
    for side in (20_000, 2**31 - 1):
        yield f"claims-{side}.png", png(side, side, 2, rows)
    jpeg, large = whole["progressive.jpeg"], struct.pack(">HH", 9_400, 9_400)
    frame, scan = jpeg.index(b"\xff\xc2"), jpeg.rindex(b"\xff\xda")
    yield "claims.jpg", jpeg[: frame + 5] + b"\xff\xff\xff\xff" + jpeg[frame + 9 :]
    yield "scans.jpg", jpeg[: frame + 5] + large + jpeg[frame + 9 : -2] + jpeg[scan : scan + 14] * 50_000
    for side in (30_000, 2**31 - 1):
        yield f"claims-{side}.bmp", whole["plain.bmp"][:18] + struct.pack("<ii", side, side) + whole["plain.bmp"][26:]
    yield "claims.ppm", b"P6 60000 60000 255\n" + bytes(100)
    yield "digits.ppm", b"P6 " + b"9" * 100_000 + b" 9 255\n"
    yield "claims-gif.jpg", whole["gif.png"][:6] + b"\xff\xff\xff\xff" + whole["gif.png"][10:]
    canvas = bytes([0x10, 0, 0, 0]) + b"\xff\xff\x00\xff\xff\x00"
    lossless = whole["lossless.webp"][12:]
    body = b"WEBPVP8X" + struct.pack("<I", 10) + canvas + lossless
    yield "claims.webp", b"RIFF" + struct.pack("<I", len(body)) + body
    for name, side, packed in (
        ("tile.tiff", 16_000, zeros(16_000**2)),
        ("claims.tiff", 2**31, b""),
    ):
        width, height = (52, 40) if packed else (side, side)
        tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 134}
        tags[325] = len(packed)
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
        yield name, b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + packed
    yield "postscript.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{} loop\n%%EOF\n"


def images(seed: int, data_root: Path | None) -> list[File]:
    """All mutated images."""
    generator, whole, found = np.random.default_rng(seed), originals(data_root), []
    for name, raw in whole.items():
        for number, (kind, changed) in enumerate(damaged(raw, generator)):
            found.append(File(kind, f"{name.partition('.')[0]}-{number:02}.{name.rpartition('.')[2]}", changed))
        for suffix in generator.choice([one for one in EXTENSIONS if not name.endswith(one)], 2, replace=False):
            found.append(File("wrong extension", f"{name.replace('.', '-')}{suffix}", raw))
    found += [File("bomb", f"bomb-{name}", raw) for name, raw in bombs(whole)]
    for name, raw in (
        ("empty.jpg", b""),
        ("zeros.png", bytes(4_096)),
        ("text.jpg", b"<html>404</html>"),
        ("one.png", b"P"),
    ):
        found.append(File("no image", name, raw))
    return found


def no_files(folder: Path) -> dict[str, str]:
    """Makes what is named like an image and is no file; name -> kind."""
    os.mkfifo(folder / "pipe.jpg")
    os.symlink("/dev/zero", folder / "device.jpg")
    os.symlink("/proc/self/mem", folder / "memory.png")
    os.symlink("itself.jpg", folder / "itself.jpg")
    os.symlink("nowhere.jpg", folder / "dangling.jpg")
    (folder / "sparse.png").touch()
    os.truncate(folder / "sparse.png", 1 << 40)
    (folder / "folder.jpg").mkdir()
    os.symlink("..", folder / "folder.jpg" / "loop.jpg")
    names = ["pipe.jpg", "device.jpg", "memory.png", "itself.jpg", "dangling.jpg", "sparse.png"]
    if os.geteuid():
        (folder / "secret.png").write_bytes(encoded(PHOTO, "PNG"))
        (folder / "secret.png").chmod(0)
        names.append("secret.png")
    return dict.fromkeys(names, "no file")


def make_folder(root: Path, seed: int, data_root: Path | None) -> dict[str, str]:
    """Writes ROOT/clean, with good images alone, and ROOT/all, with the mutated ones among them in both splits.

    Returns:
        The kind of each mutated file, by its path below ROOT/all.
    """
    generator, kinds = np.random.default_rng(seed), {}
    for split, count in (("train", 24), ("val", 8)):
        for label in ("ants", "bees"):
            for number in range(count):
                raw = encoded(Image.fromarray(generator.integers(0, 256, (20, 24, 3), dtype=np.uint8)), "PNG")
                for part in ("clean", "all"):
                    (root / part / split / label).mkdir(parents=True, exist_ok=True)
                    (root / part / split / label / f"m{number:02}.png").write_bytes(raw)
    for number, file in enumerate(images(seed, data_root)):
        split, label = "val" if number % 5 == 4 else "train", ("ants", "bees")[number % 2]
        (root / "all" / split / label / file.name).write_bytes(file.raw)
        kinds[f"{split}/{label}/{file.name}"] = file.kind
    kinds |= {f"train/bees/{name}": kind for name, kind in no_files(root / "all" / "train" / "bees").items()}
    return kinds


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_originals() -> dict[str, bytes]:
    """MNIST's four files, of 60 and 20 images."""
    generator = np.random.default_rng(0)
    counts = {name: 60 if name.startswith("train") else 20 for name in NAMES}
    return {
        name: idx(generator.integers(0, 10, (count, 28, 28) if "idx3" in name else (count,)).astype(np.uint8))
        for name, count in counts.items()
    }


def idx_files(seed: int) -> list[File]:
    """All mutated IDX files; their names are those of MNIST's files, plain or gzipped."""
    generator, whole, found = np.random.default_rng(seed), idx_originals(), []
    for name, raw in whole.items():
        packed = gzip.compress(raw, mtime=0)
        for suffix, one in (("", raw), (".gz", packed)):
            found += [File(f"IDX{suffix}: {kind}", name + suffix, changed) for kind, changed in damaged(one, generator)]
        dimensions = 3 if "idx3" in name else 1
        for place in range(4 + 4 * dimensions):
            for bit in (0, 4, 7):
                changed = bytearray(raw)
                changed[place] ^= 1 << bit
                kind, suffix = ("IDX: header edited", "") if bit == 4 else ("IDX.gz: header edited", ".gz")
                found.append(File(kind, name + suffix, gzip.compress(changed, mtime=0) if suffix else bytes(changed)))
        for count in (2**31, 2**32 - 1):
            claims = raw[:4] + struct.pack(">I", count) + raw[8:]
            found.append(File("IDX: bomb", name, claims))
            found.append(File("IDX.gz: bomb", f"{name}.gz", gzip.compress(claims, mtime=0)))
        found.append(File("IDX: bomb", name, raw[:4] + b"\xff" * 4 * dimensions))
        if "idx3" in name:
            count = struct.unpack_from(">I", raw, 4)[0]
            for sides in ((0, 0), (28, 0), (1, 28)):
                found.append(File("IDX: no images", name, idx(np.zeros((count, *sides), np.uint8))))
        found.append(File("IDX: no images", name, idx(np.zeros((0, 28, 28)[:dimensions], np.uint8))))
        found.append(File("IDX: no images", name, b""))
    packed = zeros(200 << 20, zlib.MAX_WBITS + 16)
    for name, raw in whole.items():  # gzip files may be put one behind another
        found.append(File("IDX.gz: bomb", f"{name}.gz", gzip.compress(raw, mtime=0) + packed))
    return found


def place_idx(root: Path, file: File) -> Path:
    """Writes MNIST's files with one of them mutated; returns that one's path."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, content in idx_originals().items():
        (raw / f"{name}.gz").unlink(missing_ok=True)
        (raw / name).write_bytes(content)
    if file.name.endswith(".gz"):
        (raw / file.name.removesuffix(".gz")).unlink()
    (raw / file.name).write_bytes(file.raw)
    mnist._idx.cache_clear()
    return raw / file.name


def folder(root: Path, **fields: Any) -> ImageFolder:
    return ImageFolder(root=str(root), size=SIZE, crop=None, **fields)


def read_images(root: Path) -> dict[str, Any]:
    """Reads ROOT/all file by file, and then in one go."""
    data = folder(root / "all", on_bad_sample="skip", cache="off")
    indices, results = data.index(), {}
    for index in indices.values():
        for sample, name in enumerate(index.names(np.arange(len(index)))):
            started, reason = time.perf_counter(), None
            try:
                image = data.read(index, np.array([sample]))
                assert image.shape == (1, 3, SIZE, SIZE) and image.dtype == np.uint8
            except BadSample as error:
                reason = error.reason
                assert error.path == f"{root}/all/{name}" and reason and "\n" not in reason, error
            results[name] = (reason, time.perf_counter() - started)
    packing._HERE_SECONDS = 600.0  # without Ray
    kept, streamed, equal = [], [], True
    cached = folder(root / "all", on_bad_sample="skip", cache=str(root / "cache"))
    for split, index in indices.items():
        clean = replace(data, root=str(root / "clean"))
        expected, clean_index, none = packing.pack(clean, clean.index()[split])
        found, rest, skipped = packing.pack(data, index)
        assert expected is not None and found is not None and not none
        at = {name: row for row, name in enumerate(rest.names(np.arange(len(rest))))}
        good = [at[name] for name in clean_index.names(np.arange(len(clean_index)))]
        equal = equal and np.array_equal(found["image"][good], expected["image"])
        equal = equal and len(found["image"]) == len(rest)
        kept += [bad.path for bad in skipped]
        for _ in range(2):  # the second time from the cache's note, if it keeps one
            streamed.append([bad.path for bad in packing.pack(cached, index, keep=False)[2]])
    try:
        packing.pack(folder(root / "all", cache="off"), indices["train"])
        message = ""
    except UserError as error:
        message = str(error)
    return {
        "results": results,
        "kept": kept,
        "streamed": streamed[0] + streamed[2],
        "streamed again": streamed[1] + streamed[3],
        "equal": equal,
        "message": message,
    }


def read_idx(root: Path, seed: int) -> list[tuple[str, str | None, float]]:
    """(kind, message, seconds) of each mutated IDX file; the message is None where it reads."""
    found = []
    for file in idx_files(seed):
        path, message, started = place_idx(root, file), None, time.perf_counter()
        try:
            data = MNIST(root=str(root))
            for index in data.index().values():
                pixels = data.read(index, np.arange(len(index)))
                assert pixels.shape == (len(index), *index.shape) and pixels.size
        except UserError as error:
            message = str(error)
            assert str(path.parent) in message and "\n" not in message, (file.kind, message)
        found.append((file.kind, message, time.perf_counter() - started))
    return found


def alone(what: str, root: Path, seed: int) -> dict[str, Any]:
    """`read_images` or `read_idx` in a process of its own: what it found, and `megabytes`, by how much it grew."""
    done = subprocess.run([sys.executable, str(HERE), what, str(root), str(seed)], capture_output=True, text=True,
                          timeout=300, env={**os.environ, "PYTHONPATH": str(HERE.parents[3])})  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def _alone(what: str, root: Path, seed: int) -> None:
    if what == "images":  # with all that decoders import and allocate once
        for kind in ("JPEG", "WEBP", "TIFF"):
            decode.square(encoded(PHOTO, kind), SIZE, 3)
    before = peak()
    found = read_images(root) if what == "images" else {"files": read_idx(root, seed)}
    print(json.dumps(found | {"megabytes": peak() - before}))


def peak() -> float:
    """Megabytes that this process had at most. getrusage's figure is that of whoever started it, if that is larger."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Prints the table of docs/reliability.md."""
    shared = HERE.parents[3].parent / "shared" / "data"
    data_root = Path(os.environ.get("RAYTRAIN_TEST_DATA", shared))
    with tempfile.TemporaryDirectory() as root:
        kinds = make_folder(Path(root), 0, data_root if data_root.is_dir() else None)
        pictures, numbers = alone("images", Path(root), 0), alone("idx", Path(root) / "idx", 0)
    files = [(kind, *pictures["results"][name]) for name, kind in kinds.items()] + [tuple(f) for f in numbers["files"]]
    print("| kind | files | read | refused by name | slowest |\n|---|---|---|---|---|")
    for kind in dict.fromkeys(kind for kind, _, _ in files):
        some = [(reason, seconds) for other, reason, seconds in files if other == kind]
        refused = sum(reason is not None for reason, _ in some)
        print(f"| {kind} | {len(some)} | {len(some) - refused} | {refused} | {max(s for _, s in some):.2f} s |")
    print(f"\n{len(files)} files; the process grew by {pictures['megabytes']:.0f} MB (images), "
          f"{numbers['megabytes']:.0f} MB (IDX)")  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _alone(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
