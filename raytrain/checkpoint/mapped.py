"""The tensors of a checkpoint's files without a copy in memory: only what is used of them is read.

The files are mapped for reading, so a tensor must never be changed in place. The system can take the pages back at any
time.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import warnings
from pathlib import Path
from typing import Any

import torch

_SMALL = 1 << 16
"""Bytes of a tensor that is worth a mapping. Smaller ones are copied, so that they may be changed in place."""
_LARGEST_HEADER = 100 << 20
"""Bytes, as safetensors allows them."""


def state_dict(path: Path, dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file.

    Args:
        dtypes: PyTorch's dtypes by safetensors' names.

    Raises:
        ValueError, KeyError, TypeError, RuntimeError: it is none.
    """
    content = _content(path)
    size = int.from_bytes(content[:8].numpy().tobytes(), "little")
    if not 0 < size <= min(len(content) - 8, _LARGEST_HEADER):
        raise ValueError("it has no header")
    header = json.loads(content[8 : 8 + size].numpy().tobytes())
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        dtype, shape, (start, end) = dtypes[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if not 0 <= start <= end <= len(content) - 8 - size or end - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} is not where the header says")
        found[name] = _typed(content[8 + size + start : 8 + size + end], dtype).view(shape)
    return found


def archive(path: Path) -> Any:
    """Return what `torch.save` wrote to a file, of tensors and plain values.

    Raises:
        Exception: as torch.load.
    """
    content = _content(path)

    def placed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            storage: Any = value.untyped_storage()
            start = storage._checkpoint_offset
            flat = _typed(content[start : start + storage.nbytes()], value.dtype)
            found = flat.as_strided(value.shape, value.stride(), flat.storage_offset() + value.storage_offset())
            return found.clone() if found.nbytes < _SMALL else found  # of a storage that large ones share
        if isinstance(value, dict):
            return {name: placed(one) for name, one in value.items()}
        return type(value)(map(placed, value)) if isinstance(value, list | tuple) else value

    return placed(torch.load(path, map_location="meta", weights_only=True))


def arrays(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return a state dict as arrays, which processes map from Ray's object store: the inverse of `from_arrays`."""
    found = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    return {name: (one.view(-1).view(torch.uint8).numpy(), one.dtype, one.shape) for name, one in found.items()}


def from_arrays(found: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the state dict, whose tensors must not be changed in place."""
    return {name: _tensor(content).view(dtype).view(shape) for name, (content, dtype, shape) in found.items()}


def _content(path: Path) -> torch.Tensor:
    """Return a file as uint8 [bytes]."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it is empty")
        found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _tensor(found)


def _tensor(content: Any) -> torch.Tensor:
    """Return a buffer's bytes as uint8 [bytes]."""
    if not len(content):
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(content, dtype=torch.uint8)


def _typed(content: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return bytes as numbers."""
    if len(content) < _SMALL or content.storage_offset() % dtype.itemsize:
        content = content.clone()
    return content.view(dtype)
