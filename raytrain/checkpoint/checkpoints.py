"""Checkpoints: training states on disk. A checkpoint is either complete or does not exist.

A checkpoint is a folder `step_00000042` with `model.safetensors`, `optimizer.pt`, `state.json` and, written last and
atomically, `manifest.json`, which holds every file's size and sha256. A folder without a manifest is no checkpoint.
Reading executes no code: weights are safetensors, and tensors are loaded with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from raytrain import errors
from raytrain.checkpoint import layout, mapped
from raytrain.checkpoint.layout import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    broken,
    load_state,
    name_of,
    remove,
    short,
    verified,
)
from raytrain.checkpoint.storage import Storage
from raytrain.files import sync, write_atomically
from raytrain.watchdog import doing

_CHUNK = 1 << 20
_DTYPES = {
    getattr(torch, long): short
    for long, short in (
        ("float64", "F64"), ("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16"),
        ("int64", "I64"), ("int32", "I32"), ("int16", "I16"), ("int8", "I8"), ("uint8", "U8"), ("bool", "BOOL"),
        ("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"), ("complex64", "C64"),
        ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"),
    )
}  # fmt: skip
"""safetensors' names."""


def holds(dtype: torch.dtype) -> bool:
    """Return whether checkpoints can hold weights of a type."""
    return dtype in _DTYPES


class Loaded(NamedTuple):
    """A checkpoint that was read: its folder, and the arguments of `save`."""

    path: Path
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    state: dict[str, Any]


def save(
    folder: Path, step: int, model: dict[str, torch.Tensor], optimizer: dict[str, Any], state: dict[str, Any]
) -> Path:
    """Write and commit a checkpoint.

    It writes by single system calls of `os`, so that tests can let each of them fail. The manifest's hashes are
    computed from the bytes before they are written, not from what the disk returns.

    Args:
        folder: the run's `checkpoints`, in a directory that must be there: a disk that is gone for the moment must not
            get another directory in its place.
        step: optimizer steps done.
        model: the plain module's state dict.
        optimizer: nested containers of tensors and scalars.
        state: JSON values, all of whose numbers are finite.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: storage refused it; no checkpoint of that step exists then.
    """
    target = folder / name_of(step)
    remove(str(target))
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        os.mkdir(target)
        files = {}
        for name, content in (
            (MODEL, lambda file: _write_tensors(file, model)),
            (OPTIMIZER, lambda file: torch.save(optimizer, file)),
            (STATE, lambda file: file.write(json.dumps(state, allow_nan=False).encode())),
        ):
            files[name] = _write(f"{target}/{name}", content)
        write_atomically(target / MANIFEST, json.dumps({"step": step, "files": files}))
        sync(folder)
    except OSError:
        with contextlib.suppress(OSError):
            remove(str(target))
        raise
    return target


def load(path: Path, device: torch.device | str | None = "cpu") -> Loaded:
    """Read a checkpoint that verified.

    Args:
        device: None for tensors on the CPU that are read from the files as they are used. Those must not be changed.

    Raises:
        UserError: its files are what the manifest says, and no checkpoint's for all that.
    """
    return Loaded(path, load_model(path, device), load_optimizer(path, device), load_state(path))


def loadable(folder: Path, device: torch.device | str | None = "cpu") -> Iterator[Loaded]:
    """The checkpoints that verify and can be read, the newest first."""
    for path in verified(folder):
        with contextlib.suppress(errors.UserError):
            yield load(path, device)


def loadable_at(there: Storage, run: Path, device: torch.device | None) -> Iterator[Loaded]:
    """Yield the checkpoints of a run at a URL that verify and can be read: first newer ones of the mirror that continue
    the run at the URL, then those at the URL. In between, synchronise the mirror."""
    run.mkdir(parents=True, exist_ok=True)
    folder, names = run / "checkpoints", there.committed()
    for name in there.ahead(run, names):
        with contextlib.suppress(errors.UserError):
            layout.verify(folder / name)
            yield load(folder / name, device)
    there.synchronise(run, names)
    for path in there.verified(folder):
        with contextlib.suppress(errors.UserError):
            yield load(path, device)


def load_model(path: Path, device: torch.device | str | None = "cpu") -> dict[str, torch.Tensor]:
    """Return the module's state dict.

    Args:
        device: see `load`.

    Raises:
        UserError: the file is no safetensors.
    """
    try:
        if device is None:
            return mapped.state_dict(path / MODEL, {short: dtype for dtype, short in _DTYPES.items()})
        return load_file(path / MODEL, device=str(device))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise broken(path, f"{MODEL} cannot be read ({short(error)})") from None


def load_optimizer(path: Path, device: torch.device | str | None = "cpu") -> dict[str, Any]:
    """Return the second argument of `save`.

    Args:
        device: see `load`.

    Raises:
        UserError: the file holds more than tensors and plain values; none of it has run.
    """
    try:
        with zipfile.ZipFile(
            path / OPTIMIZER
        ) as archive:  # torch.save does not compress: a compressed entry may be a zip bomb
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise zipfile.BadZipFile("it is compressed")
        if device is None:
            found = mapped.archive(path / OPTIMIZER)
        else:
            found = torch.load(path / OPTIMIZER, map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        raise broken(path, f"{OPTIMIZER} holds more than tensors and plain values") from None
    except Exception as error:  # a damaged archive or pickle raises errors of many types
        raise broken(path, f"{OPTIMIZER} cannot be read ({short(error)})") from None
    if not isinstance(found, dict):
        raise broken(path, f"{OPTIMIZER} holds no dictionary")
    return found


class _File:
    """A file for writing, with the methods that `torch.save` calls.

    It raises an error only at the end, since torch's writer would replace the error, and it joins small pieces.
    """

    def __init__(self, descriptor: int):
        self.size, self.digest, self.error = 0, hashlib.sha256(), None
        self._descriptor, self._pieces = descriptor, bytearray()

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        if len(self._pieces) + len(view) > _CHUNK:
            self.flush()
            self._put(view)
        else:
            self._pieces += view
        return len(view)

    def flush(self) -> None:
        pieces, self._pieces = self._pieces, bytearray()
        self._put(memoryview(pieces))

    def _put(self, view: memoryview) -> None:
        try:
            while len(view) and self.error is None:
                count = os.write(self._descriptor, view[:_CHUNK])
                self.digest.update(view[:count])
                self.size += count
                view = view[count:]
                doing.tick()
        except BaseException as error:
            self.error: BaseException | None = error


def _write(path: str, content: Callable[[_File], object]) -> dict[str, Any]:
    """Write and sync a file; return its entry of the manifest."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        file = _File(descriptor)
        content(file)
        file.flush()
        if file.error is not None:
            raise file.error
        os.fsync(descriptor)
        if os.fstat(descriptor).st_size != file.size:
            raise OSError(errno.EIO, f"{file.size} bytes were written and not all are there", path)
    finally:
        os.close(descriptor)
    return {"size": file.size, "sha256": file.digest.hexdigest()}


def _write_tensors(file: _File, model: dict[str, torch.Tensor]) -> None:
    """Write tensors in the safetensors format, one by one without a copy of all. Tied tensors are written twice."""
    header: dict[str, Any] = {}
    tensors, end = [], 0
    for name, tensor in sorted(
        model.items(), key=lambda item: (-item[1].element_size(), item[0])
    ):  # so that all tensors are aligned
        tensors.append(tensor.detach().cpu().contiguous())
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors:
        file.write(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
