"""Checkpoints: a training state on disk, that either is there and whole or is not there.

A checkpoint is a folder `step_00000042` with `model.safetensors`, `optimizer.pt`, `state.json` and, written last and
atomically, `manifest.json`, which holds every file's size and sha256. A folder without a manifest is none. Nothing
that is read back can execute code: weights are safetensors, tensors are loaded with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from raytrain import errors

MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.pt", "state.json", "manifest.json"
_PARTS = (MODEL, OPTIMIZER, STATE)


def save(
    folder: Path, step: int, model: dict[str, torch.Tensor], optimizer: dict[str, Any], state: dict[str, Any]
) -> Path:
    """Writes and commits a checkpoint.

    Args:
        folder: the run's `checkpoints`.
        step: optimizer steps done.
        model: the plain module's state dict.
        optimizer: nested containers of tensors and scalars.
        state: JSON values.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: storage refused it; no checkpoint of that step exists then.
    """
    target = folder / f"step_{step:08d}"
    _remove(target)
    target.mkdir(parents=True)
    save_file(_storable(model), target / MODEL)
    torch.save(optimizer, target / OPTIMIZER)
    (target / STATE).write_text(json.dumps(state))
    shutil.copymode(target / STATE, target / MODEL)  # safetensors writes for the owner alone, whatever the umask
    manifest = {name: {"size": (target / name).stat().st_size, "sha256": _sha256(target / name)} for name in _PARTS}
    for name in _PARTS:
        _sync(target / name)
    write_atomically(target / MANIFEST, json.dumps({"step": step, "files": manifest}, indent=2))
    _sync(folder)
    return target


def snapshot(
    state: Any, whole: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor, keep: bool = True
) -> Any:
    """A copy on the host of a tree of tensors and plain values, which training goes on changing.

    Args:
        whole: makes a whole tensor of a rank's part of it.
        keep: whether this rank wants the copy, or only gives its parts to `whole`.
    """
    if isinstance(state, torch.Tensor):
        tensor = whole(state.detach())
        if not keep:
            return None
        return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
    if isinstance(state, Mapping):
        return {name: snapshot(value, whole, keep) for name, value in state.items()}
    return type(state)(snapshot(value, whole, keep) for value in state) if isinstance(state, (list, tuple)) else state


class Background:
    """Writes in a side thread while training goes on, one thing at a time."""

    def __init__(self) -> None:
        self._pool, self._writing = ThreadPoolExecutor(1, "checkpoint"), None

    def start(self, write: Callable[[], None]) -> None:
        """Hands over what is to be written, once that before it is there.

        Raises:
            OSError: that before it could not be written.
        """
        self.wait()
        self._writing: Future[None] | None = self._pool.submit(write)

    def wait(self) -> None:
        """Waits until all is written.

        Raises:
            OSError: it could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Waits, whatever has become of it."""
        self._pool.shutdown()


def verify(path: Path) -> None:
    """Checks a checkpoint against its manifest.

    Raises:
        UserError: it is not committed, or a file is missing, of another size or of another content.
    """
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        expected = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError:
        raise errors.broken_checkpoint(path, "it has no manifest") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.broken_checkpoint(path, f"its manifest is damaged ({error})") from None
    if set(expected) != set(_PARTS):
        raise errors.broken_checkpoint(path, "its manifest is damaged (it names other files)")
    if path.is_symlink():
        raise errors.broken_checkpoint(path, "it is a link")
    for name, (size, sha256) in expected.items():
        file = path / name
        if not file.is_file() or file.is_symlink():
            raise errors.broken_checkpoint(path, f"{name} is missing")
        if file.stat().st_size != size:
            raise errors.broken_checkpoint(path, f"{name} has {file.stat().st_size} bytes instead of {size}")
        if _sha256(file) != sha256:
            raise errors.broken_checkpoint(path, f"{name} has another sha256")


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that verifies, found by looking and not by trusting a pointer."""
    for path in sorted(folder.glob("step_*"), reverse=True):
        try:
            verify(path)
            return path
        except errors.UserError:
            continue
    return None


def load_model(path: Path, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """The module's state dict."""
    return load_file(path / MODEL, device=str(device))


def load_optimizer(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The second argument of `save`.

    Raises:
        UserError: the file holds more than tensors and plain values; none of it has run.
    """
    try:
        return torch.load(path / OPTIMIZER, map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        raise errors.broken_checkpoint(path, f"{OPTIMIZER} holds more than tensors and plain values") from None


def load_state(path: Path) -> dict[str, Any]:
    """The third argument of `save`."""
    return json.loads((path / STATE).read_text())


def prune(folder: Path, keep: int, protect: Iterable[str]) -> None:
    """Removes committed checkpoints but the `keep` newest and those named in `protect`."""
    committed = sorted(path for path in folder.glob("step_*") if (path / MANIFEST).is_file())
    protected = set(protect)
    for path in committed[:-keep]:
        if path.name not in protected:
            _remove(path)


def drop_after(folder: Path, step: int) -> None:
    """Removes what lies beyond `step`: checkpoints that did not verify, or that a resumed run will write again."""
    for path in folder.glob("step_*"):
        if path.name > f"step_{step:08d}":
            _remove(path)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file so that readers see the old or the new text, and a crash leaves one of them."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with open(partial, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    _sync(path.parent)


def _remove(path: Path) -> None:
    """Removes a checkpoint, its manifest first: it is none from then on, whatever happens."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _storable(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous tensors that share no memory, as safetensors wants them (tied weights are stored twice)."""
    seen: set[int] = set()
    result = {}
    for name, tensor in model.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return result


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
