"""Write the samples of a source to shards, which `Packed` reads (`data/shards.py` has the format).

Each shard is a range of a split's samples, decided before anything is read, and is written with a record of its own:
threads or tasks write shards in any order, and after a kill the shards that have a record stay. All bytes follow from
the source, the settings and the versions of the libraries.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import threading
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from raytrain import config, errors, files
from raytrain.data import Data, Folds, Images, Index, Manifest, Mixed, decode, tables
from raytrain.data.checks import checked_indices
from raytrain.data.pack_index import index_name, split_values, write_index
from raytrain.data.packed import described
from raytrain.data.shards import FORMAT, MANIFEST, VERSION, manifest_text, parsed, shard_name
from raytrain.machine import host_cpus
from raytrain.order import spread
from raytrain.run.lock import Lock, LockHeld, held
from raytrain.tools.pack_places import FOLDER, PLAN, Place, place_of
from raytrain.tools.pack_samples import ROWS, Job, Part, samples
from raytrain.tools.pack_settings import Settings
from raytrain.training.threads import threads
from raytrain.user_code import sources

SHARD_BYTES, _SHARD_ROWS = 64 << 20, 65_536
"""Bytes of a shard, about, and the most samples of one."""
_MEASURED = 16
"""Samples of which the size of all is estimated, where the source does not tell it."""


Progress = Callable[[int], None]
"""Called with the number of samples that were packed since its last call; from any thread."""


def planned(data: Data, settings: Settings) -> tuple[Job, dict[str, Index]]:
    """Return how a source is packed, and the index of each of its splits.

    Raises:
        UserError: the data is not there, or its samples cannot be packed so.
    """
    data = replace(data.absolute(), folds=Folds())  # a pack has the source's own splits
    encoded = isinstance(data, Images) and data.decodes
    codec = settings.codec
    if codec == "auto":
        codec = "original" if isinstance(data, Images) and encoded and not data.masked else "raw"
    where, name = f"in {type(data).__name__}", settings.codec
    if codec != "raw" and not encoded:
        raise errors.UserError(f"{name} packs encoded images, and this source has arrays", where, "use --codec raw")
    size = settings.size
    if size is not None and codec == "original":
        raise errors.UserError("original keeps the images as they are", "got --size", "use --codec jpeg or raw")
    if codec == "raw" and size is not None:
        if not encoded or not data.resizes:
            raise errors.UserError("the arrays of this source have their own size", where, "leave --size out")
        data, size = config.replace(data, "size", size), None
    size = (size or 256) if codec == "jpeg" else None
    indices = checked_indices(data)
    others = [field for field in indices["train"].fields[1:] if field.kind != "plain"]
    if others and codec != "raw":
        what = f"{codec} packs one encoded image per sample, and {others[0].name!r} is of kind {others[0].kind}"
        raise errors.UserError(what, where, "use --codec raw")
    for split in indices:
        if not split.isidentifier():
            raise errors.UserError(f"a split of a pack cannot be called {split!r}", where, "use letters and digits")
    job = Job(data, codec, size, settings.quality, (), "", "")
    parts: list[Part] = []
    for split, index in indices.items():
        rows = int(max(1, min(_SHARD_ROWS, SHARD_BYTES // max(1.0, _sample_bytes(job, index)))))
        parts += [
            Part(len(parts) + number, split, start, min(start + rows, len(index)))
            for number, start in enumerate(range(0, len(index), rows))
        ]
    recipe, strict = (_recipe(job, indices, parts, how) for how in (data.on_bad_sample, "error"))
    return replace(job, parts=tuple(parts), recipe=recipe, strict=strict), indices


def _recipe(job: Job, indices: dict[str, Index], parts: list[Part], on_bad_sample: str) -> str:
    libraries = "" if job.codec == "original" else decode.libraries()
    prints = {split: index.fingerprint() for split, index in indices.items()}
    named = [VERSION, decode.VERSION, job.codec, job.size, job.quality, libraries, prints, parts]
    fields = next(iter(indices.values())).fields
    named += [on_bad_sample, described(job.data, fields), *_beyond(job.data)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def _beyond(data: Data) -> list[Any]:
    """Return what decides the samples of a source beyond what its indices tell: tables that hold images, and fields and
    code of the user's own classes."""
    found: list[Any] = _tables(data)
    if (own := sources.use(data)) is not None:
        texts = [[name, hashlib.sha256(one.text).hexdigest()] for name, one in own.named.items()]
        found += [config.to_dict(data), texts]
    return found


def _tables(data: Data) -> list[tuple[int, int]]:
    if isinstance(data, Mixed):
        return [one for source in data.sources for one in _tables(source)]
    return tables.stamps(data.root) if isinstance(data, Manifest) else []


def _sample_bytes(job: Job, index: Index) -> float:
    """Return the bytes of a packed sample, on average; estimated where they are not known."""
    if job.codec == "raw":
        return index.sample_bytes
    if job.codec == "original" and index.sizes is not None:
        return float(index.sizes.mean()) + index.sample_bytes - index.input.bytes
    chosen = spread(len(index), _MEASURED)
    found = [one for row in chosen for _, one in samples(job, index, int(row), int(row) + 1)]
    sizes = [sum(map(len, one)) for one in found if not isinstance(one, errors.BadSample)]
    return sum(sizes) / max(1, len(sizes))


def pack(data: Data, dest: str, settings: Settings, started: Callable[[int, int], None], progress: Progress) -> str:
    """Write a pack, and return what was written in one line.

    Args:
        dest: a folder or a URL.
        started: called with the number of all samples and of those that an earlier command has packed.

    Raises:
        UserError: the source cannot be packed, a sample cannot be read, the place cannot be written, holds something
            else, or another command is packing there.
    """
    place = place_of(dest)
    job, indices = planned(data, settings)
    if not held(place.local) and _complete(place, job):
        return f"{dest} has this pack already"
    with _claimed(place):
        if _complete(place, job):  # by a command that has ended meanwhile
            place.clear()
            return f"{dest} has this pack already"
        place.write(PLAN, json.dumps({"recipe": job.recipe}).encode())
        records = {part.number: found for part in job.parts if (found := _record(place, part)) is not None}
        left = [part for part in job.parts if part.number not in records]
        total = sum(len(index) for index in indices.values())
        place.check_room(sum(_sample_bytes(job, indices[part.split]) * (part.stop - part.start) for part in left))
        started(total, total - sum(part.stop - part.start for part in left))
        _write_all(job, indices, left, place, settings.address, progress)
        for part in left:
            records[part.number] = _needed(place, part)
        manifest = _finish(job, indices, records, place)
    skipped = sum(len(split["skipped"]) for split in manifest["splits"].values())
    size = sum(shard["bytes"] for shard in manifest["shards"])
    text = f"wrote {dest}: {total - skipped:,} samples in {len(job.parts):,} shards, {size / 2**20:,.1f} MiB"
    return text + (f"; {skipped:,} that cannot be read are left out, listed in {MANIFEST}" if skipped else "")


def _claimed(place: Place) -> Lock:
    try:
        place.local.mkdir(parents=True, exist_ok=True)
        lock = Lock(place.local)
        for file in place.local.glob("*.partial"):  # of a command that was killed
            file.unlink(missing_ok=True)
        return lock
    except LockHeld as other:
        what = f"another command is packing there ({other.holder})"
        raise errors.UserError(what, place.where, "wait for it, or give another folder") from None
    except OSError as error:
        raise errors.cannot_write(place.where, files.reason(error)) from None


def _complete(place: Place, job: Job) -> bool:
    """Return whether the pack is there.

    Raises:
        UserError: something else is.
    """
    known, plan = place.read(MANIFEST), place.read(PLAN)
    if known is not None:
        if parsed(known, place.where).get("recipe") == job.recipe:
            return True
        what = "another pack is there, of other data or with other settings"
    elif plan is None:
        if not (others := place.others()):
            return False
        what = f"the folder is not empty: {errors.listed(others, 3)}"
    else:
        try:
            if json.loads(plan)["recipe"] in (job.recipe, job.strict):
                return False
        except (ValueError, KeyError, TypeError):
            pass
        what = "a part of another pack is there: of other data, with other settings, or by other versions of libraries"
    raise errors.UserError(what, place.where, "give another folder, or remove it")


def _record_name(part: Part) -> str:
    return f"{FOLDER}/{part.number:05d}.json"


def _record(place: Place, part: Part) -> dict[str, Any] | None:
    """Return the record of a shard that is there whole."""
    text = place.read(_record_name(part))
    try:
        found = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return found if found and place.size(shard_name(part.number)) == found["bytes"] else None


def _needed(place: Place, part: Part) -> dict[str, Any]:
    found = _record(place, part)
    if found is None:
        name = shard_name(part.number)
        raise errors.UserError(f"{name} is gone, which was just written", place.where, "pack again, and leave it there")
    return found


def _write_all(
    job: Job, indices: dict[str, Index], parts: list[Part], place: Place, address: str | None, progress: Progress
) -> None:
    if address is not None and parts:
        importlib.import_module("raytrain.tools.pack_cluster").write(job, indices, parts, place, address, progress)
        return
    stop, pool = threading.Event(), ThreadPoolExecutor(max(1, min(len(parts), host_cpus())))
    with threads(1):  # each thread of the pool computes by itself
        try:
            futures = [
                pool.submit(write_shard, job, indices[part.split], part, place, progress, stop) for part in parts
            ]
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done() and not future.cancelled():
                    future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def write_shard(
    job: Job, index: Index, part: Part, place: Place, progress: Progress, stop: threading.Event | None = None
) -> None:
    """Write a shard and its record; leave it if `stop` is set meanwhile.

    Raises:
        UserError: a sample cannot be read and `on_bad_sample` is `error`, or the place cannot be written.
    """
    partial = place.local / f"{part.number:05d}.{uuid.uuid4().hex}.partial"
    try:
        place.local.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb", buffering=1 << 20) as file:
            record = _fill(job, index, part, file, progress, stop)
            file.flush()
            os.fsync(file.fileno())
        if record is None:
            return
        place.adopt(shard_name(part.number), partial)
    except OSError as error:
        raise errors.cannot_write(f"{place.where}/{shard_name(part.number)}", files.reason(error)) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    place.write(_record_name(part), json.dumps(record).encode())


def _fill(
    job: Job, index: Index, part: Part, file: BinaryIO, progress: Progress, stop: threading.Event | None
) -> dict[str, Any] | None:
    """Write the samples of a shard to a file, and return its record; None if `stop` was set."""
    lengths, crcs, bad = [], [], []
    digest, told = hashlib.sha256(), part.start
    for row, found in samples(job, index, part.start, part.stop):
        if row - told >= ROWS:
            progress(row - told)
            told = row
            if stop is not None and stop.is_set():
                return None
        if isinstance(found, errors.BadSample):
            if job.data.on_bad_sample == "error":
                raise errors.bad_sample(found.path, found.reason)
            bad.append([row, found.path, found.reason])
            continue
        crc = 0
        for piece in found:
            file.write(piece)
            digest.update(piece)
            crc = zlib.crc32(piece, crc)
        crcs.append(crc)
        lengths.append(sum(len(piece) for piece in found))
    progress(part.stop - told)
    return {"bytes": sum(lengths), "sha256": digest.hexdigest(), "lengths": lengths, "crcs": crcs, "bad": bad}


def _finish(job: Job, indices: dict[str, Index], records: dict[int, dict[str, Any]], place: Place) -> dict[str, Any]:
    """Write the index of each split, and then the manifest."""
    splits: dict[str, Any] = {}
    for split, index in indices.items():
        parts = [part for part in job.parts if part.split == split]
        places = {name: np.concatenate(arrays) for name, arrays in _places(parts, records).items()}
        bad = [one for part in parts for one in records[part.number]["bad"]]
        if bad:
            if len(bad) == len(index):
                raise errors.all_samples_bad(bad[0][1], bad[0][2])
            index = index.take(np.setdiff1d(np.arange(len(index)), [row for row, _, _ in bad]))
        file = place.local / index_name(split)
        write_index(file, index, places)
        known = {"file": file.name, "bytes": file.stat().st_size, "sha256": files.digest(file)}
        splits[split] = {
            "samples": len(index),
            "index": known,
            **split_values(index),
            "skipped": [[path, reason] for _, path, reason in bad],
        }
        place.adopt(file.name, file)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "codec": job.codec,
        "settings": {"size": job.size, "quality": job.quality} if job.codec == "jpeg" else {},
        "recipe": job.recipe,
        "source": described(job.data, next(iter(indices.values())).fields),
        "splits": splits,
        "shards": [
            {"file": shard_name(part.number), "split": part.split, "samples": len(records[part.number]["lengths"])}
            | {name: records[part.number][name] for name in ("bytes", "sha256")}
            for part in job.parts
        ],
    }
    place.write(MANIFEST, manifest_text(manifest).encode())
    place.clear()
    return manifest


def _places(parts: list[Part], records: dict[int, dict[str, Any]]) -> dict[str, list[np.ndarray]]:
    """Return shard, offset, length and crc of the samples of some shards, an array for each shard."""
    lengths = [np.array(records[part.number]["lengths"], np.int64) for part in parts]
    return {
        "shard": [np.full(len(one), part.number, np.int32) for part, one in zip(parts, lengths, strict=True)],
        "offset": [np.cumsum(one) - one for one in lengths],
        "length": lengths,
        "crc": [np.array(records[part.number]["crcs"], np.uint32) for part in parts],
    }
