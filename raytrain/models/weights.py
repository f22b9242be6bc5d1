"""Weights to start from: reading a file of a state dict, and fitting it into a module."""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from raytrain import errors
from raytrain.models.base import SUFFIXES

_INSIDE = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model")
"""Keys under which checkpoints hold a state dict, the averaged weights first, as timm takes them."""
_REFUSED = re.compile(r"GLOBAL ([\w.]+)")
"""The class or function in torch's refusal to load more than tensors and plain values."""
_LEAST = 0.5
"""Share of the module's backbone, or of the file, that must fit."""


@dataclass(frozen=True)
class Fit:
    """How a state dict filled a module.

    Attributes:
        source: where the state dict comes from.
        filled: the number of tensors that were filled.
        anew: names of the module's tensors that keep their values: of another shape in the source, or of a new head.
        missing: names of the module's tensors that the source lacks.
        unused: the source's own names of tensors for which the module has no place.
    """

    source: str
    filled: int
    anew: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def line(self, shown: int = 4) -> str:
        """Return what the plan says, with at most `shown` names of each kind."""
        every = self.filled + len(self.anew) + len(self.missing)
        text = f"{self.filled} of {every} tensors start from {self.source}"
        for what, names in (
            ("random, of another shape or a new head", self.anew),
            ("random, not there", self.missing),
            ("unused", self.unused),
        ):
            text += f"; {what}: {errors.listed(names, shown)}" if names else ""
        return text

    @property
    def shortened(self) -> bool:
        """Whether `line` leaves names out."""
        return self.line() != self.line(max(map(len, (self.anew, self.missing, self.unused))))

    def text(self) -> str:
        """Return all names, a line each."""
        lines = [f"{self.filled} tensors start from {self.source}"]
        for what, names in (("anew", self.anew), ("missing", self.missing), ("unused", self.unused)):
            lines += [f"{what}: {name}" for name in names]
        return "\n".join(lines) + "\n"


def read(path: Path) -> dict[str, torch.Tensor]:
    """Return the state dict in a file, which may be a checkpoint that has it under a key. Nothing in the file is
    executed.

    Raises:
        UserError: there is no such file, it holds no state dict, or needs more than tensors and plain values.
    """
    if not os.path.isfile(path):
        near = [*errors.close(path.name, ("none", "cached", "hub")), *_neighbours(path)]
        raise errors.no_such_file(path, "weights file", near)
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            # timm's checkpoints hold their training script's arguments, a Namespace: attributes and no code
            with torch.serialization.safe_globals([argparse.Namespace]):
                found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unreadable(path, str(error).strip() or type(error).__name__) from None
    for key in _INSIDE if isinstance(found, dict) else ():
        if isinstance(found.get(key), dict) and any(isinstance(one, torch.Tensor) for one in found[key].values()):
            found = found[key]
            break
    tensors = isinstance(found, dict) and found and all(isinstance(value, torch.Tensor) for value in found.values())
    if not tensors or not all(isinstance(name, str) for name in found):
        raise misfit(path, "it holds no state dict of tensors")
    return found


def fill(
    module: nn.Module,
    state: dict[str, torch.Tensor],
    source: str,
    head: tuple[str, ...],
    whole: bool,
    new_head: bool,
    assign: bool,
) -> Fit:
    """Load a state dict into a module, in place. Tensors of a head for other classes are left out.

    Layers recognise the names in older files by `_metadata`, so that is kept.

    Args:
        source: for errors and the report.
        head: the names of the module's head, its last layers.
        whole: whether all tensors but the head's must be there.
        new_head: whether to leave the head out.
        assign: put the state dict's tensors in the place of the module's, as for a module on the meta device.

    Raises:
        UserError: tensors are missing or have another shape, under `whole`; else, almost nothing fits.
    """
    own = module.state_dict()
    heads = tuple(f"{name}." if name else "" for name in head)
    moved, names, unused = _renamed(state, own)
    shapes = {name for name, value in moved.items() if name in own and value.shape != own[name].shape}
    if new_head or any(
        name.startswith(heads) for name in shapes
    ):  # not the bias of one head and the weights of another
        shapes |= {name for name in moved if name in own and name.startswith(heads)}
    for name in shapes:
        del moved[name]
    for name in moved.keys() & own.keys():
        moved[name] = moved[name].to(own[name].dtype)
    wrong = sorted(name for name in shapes if not name.startswith(heads))
    loaded = None if whole and wrong else module.load_state_dict(moved, strict=False, assign=assign)
    absent = (
        [] if loaded is None else [name for name in loaded.missing_keys if not name.endswith("num_batches_tracked")]
    )
    lost = [name for name in absent if name not in shapes and not name.startswith(heads)]
    if whole and (lost or wrong):
        example = sorted([*lost, *wrong])[0]
        what = f"{len(lost)} tensors are missing and {len(wrong)} have another shape, for example {example}"
        raise misfit(source, what)
    assert loaded is not None
    gone = {*loaded.missing_keys}
    unused += [names[name] for name in loaded.unexpected_keys]
    here = [name for name in own if name not in gone]
    _check_share(here, own, state, heads, source)
    other = tuple(name for name in own if name in shapes)
    return Fit(source, len(here), other, tuple(name for name in absent if name not in shapes), tuple(unused))


def _check_share(
    here: list[str],
    own: dict[str, torch.Tensor],
    state: dict[str, torch.Tensor],
    heads: tuple[str, ...],
    source: str,
) -> None:
    """Check that most of the module's backbone was filled, or most of the file was used.

    Raises:
        UserError: neither.
    """
    below = [name for name in own if not name.startswith(heads)] or list(own)
    filled = sum(own[name].numel() for name in here if name in {*below})
    if filled >= _LEAST * max(1, sum(own[name].numel() for name in below)):
        return
    if filled and filled >= _LEAST * sum(value.numel() for value in state.values()):
        return
    first = next((name for name in below if name not in {*here}), below[0])
    name, value = next(iter(state.items()))
    examples = f"the model has {first} {list(own[first].shape)}, the file {name} {list(value.shape)}"
    raise misfit(source, f"they fill {len([*filter({*below}.__contains__, here)])} of {len(below)} tensors: {examples}")


def _renamed(
    state: dict[str, torch.Tensor], own: dict[str, torch.Tensor]
) -> tuple[OrderedDict[str, torch.Tensor], dict[str, str], list[str]]:
    """Return a state dict under the module's names, its own name of each, and its names without the prefix.

    A prefix such as `module.` (DataParallel), `_orig_mod.` (torch.compile), `model.` (Lightning: the attribute of the
    LightningModule) goes, and one such as `backbone.` comes, if with that the most names and shapes are the module's.
    """
    names = {name.replace("_orig_mod.", ""): name for name in state}
    votes: Counter[tuple[str, str]] = Counter()
    for add in _common(own):
        for name, original in names.items():
            for strip in _prefixes(name):
                wanted = own.get(add + name[len(strip) :])
                votes[strip, add] += wanted is not None and wanted.shape == state[original].shape
    strip, add = max(votes, key=lambda pair: (votes[pair], -len(pair[0]) - len(pair[1])), default=("", ""))

    renamed = {add + name[len(strip) :]: original for name, original in names.items() if name.startswith(strip)}
    moved = OrderedDict((name, state[original]) for name, original in renamed.items())
    metadata: Any = getattr(state, "_metadata", None)
    if metadata is None:
        metadata = getattr(own, "_metadata", None)
    else:
        layers = {f"{layer}." if layer else "": value for layer, value in metadata.items()}
        metadata = {(add + n[len(strip) :]).removesuffix("."): v for n, v in layers.items() if n.startswith(strip)}
    moved._metadata = metadata  # type: ignore[attr-defined]
    return moved, renamed, [original for name, original in names.items() if not name.startswith(strip)]


def _prefixes(name: str) -> Iterator[str]:
    """Yield the prefixes of a dotted name, the empty one first: of `a.b.weight` these are ``, `a.` and `a.b.`."""
    yield ""
    parts = name.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count]) + "."


def _common(own: dict[str, torch.Tensor]) -> list[str]:
    """Return the prefixes that at least a tenth of a module's names have: the places for another model's weights."""
    counts = Counter(prefix for name in own for prefix in _prefixes(name))
    return [prefix for prefix, count in counts.items() if prefix == "" or count >= max(2, len(own) / 10)]


def _neighbours(path: Path) -> list[Path]:
    """Return files of weights beside a missing one with names like its own."""
    try:
        names = {one.name: one for one in path.parent.iterdir() if one.suffix in SUFFIXES or one.is_dir()}
    except OSError:
        return []
    return [names[name] for name in errors.close(path.name, names)]


def _unreadable(path: Path, message: str) -> errors.UserError:
    """Return the error for a file that torch or safetensors refuses."""
    if "Weights only load failed" not in message:
        return misfit(path, message.splitlines()[0])
    refused = _REFUSED.search(message)
    if refused is None:
        return misfit(path, "it is no file of torch.save")
    what = f"the file needs {refused[1]}, and loading that may run code"
    how = f"save its tensors alone, where you trust it: torch.save(torch.load({str(path)!r}, weights_only=False)"
    return errors.UserError(what, path, how + "[...], FILE), with the key of its state dict")


def misfit(source: Path | str, reason: str) -> errors.UserError:
    """Return the error for weights that do not fit."""
    return errors.UserError(
        f"the weights do not fit: {reason}", source, "give a state dict of that model (.pth or .safetensors)"
    )
