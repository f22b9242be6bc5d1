"""Suggestions for mistyped flags and files."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

_ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "base_lr", "max_lr"), "optimizer.lr"),
    **dict.fromkeys(("wd", "weight_decay_rate"), "optimizer.weight_decay"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), "epochs"),
    **dict.fromkeys(("max_steps", "num_steps", "total_steps", "max_iters", "num_training_steps"), "steps"),
    **dict.fromkeys(("val_check_interval", "eval_steps", "eval_every", "eval_interval"), "validate_every_steps"),
    **dict.fromkeys(("max_time", "time_limit"), "max_hours"),
    **dict.fromkeys(("save_steps", "checkpoint_every", "save_every", "save_interval"), "checkpoint.every_steps"),
    **dict.fromkeys(("bs", "train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "micro_batch_size"),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm", "grad_clip"), "clip_norm"),
    **dict.fromkeys(("amp", "fp16", "bf16", "mixed_precision", "use_amp", "half"), "precision"),
    **dict.fromkeys(("gpus", "num_gpus", "devices", "num_devices", "nproc_per_node", "world_size"), "scaling.workers"),
    **dict.fromkeys(("num_nodes", "nnodes", "num_processes", "nproc"), "scaling.workers"),
    **dict.fromkeys(("device", "cuda", "cpu", "gpu", "accelerator"), "scaling.gpus_per_worker"),
    **dict.fromkeys(("data_dir", "data_path", "data_root", "dataset", "train_dir", "datadir"), "data.root"),
    **dict.fromkeys(("output", "output_dir", "outdir", "save_dir", "work_dir", "log_dir", "default_root_dir"), "out"),
    **dict.fromkeys(("strategy", "distributed_backend"), "parallel.strategy"),
    **dict.fromkeys(("pretrained",), "model.weights"),
    **dict.fromkeys(("callbacks", "callback"), "hooks"),
    **dict.fromkeys(("early_stopping", "early_stopping_patience"), "patience"),
}
"""Names of fields in PyTorch's examples, Lightning, Accelerate, timm and torchrun."""
_NOWHERE = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last", "shuffle")
"""Settings of PyTorch's DataLoader, which raytrain does not need: a near name would mean another thing."""
_ALIKE = 0.74
"""The smallest similarity (difflib's ratio) of a mistyped name."""


def flags(given: str, known: Sequence[str]) -> list[str]:
    """Return the dotted paths that an unknown flag or axis may stand for, at most four.

    Args:
        given: the flag, such as `--lr`, or the path of an axis.
        known: all paths.
    """
    path = given.lstrip("-").replace("-", "_").lower().removeprefix("no_")
    if path in _NOWHERE:
        return []
    elsewhere = _ELSEWHERE.get(path) or _ELSEWHERE.get(path.rpartition(".")[2])
    if elsewhere and elsewhere in known:
        return [elsewhere]
    tail = path.rpartition(".")[2]
    same = [one for one in known if one.rpartition(".")[2] == tail]
    longer = [one for one in known if one.rpartition(".")[2].startswith(tail) and len(tail) > 2]
    within = [one for one in known if tail in one.split(".")[:-1]]
    if found := same or longer or within:
        return found[:4]
    head = path.partition(".")[0]
    for among in ([one for one in known if one.startswith(f"{head}.")], known):
        deepest_first = sorted(reversed(among), key=lambda one: -one.count("."))
        tails = {one.rpartition(".")[2]: one for one in deepest_first}
        if close := difflib.get_close_matches(tail, tails, n=1, cutoff=_ALIKE):
            return [tails[close[0]]]
    return []


def files(given: Path | str, folders: Iterable[Path], wanted: str, assigns: str | None = None) -> list[Path]:
    """Return existing files or folders with names like that of a missing one, best first, at most four.

    Args:
        folders: where to look besides the folder of the missing one.
        wanted: the pattern to look for, such as `*.py`, or `*/experiment.json` for the folders of runs.
        assigns: only Python files that assign or import this name at their top level, such as `sweep`.
    """
    given, found = Path(given), {}
    for folder in (given, given.parent, *folders):
        try:
            for path in sorted(folder.glob(wanted)):
                path = path.parent if "/" in wanted else path
                found.setdefault(path.resolve(), path)
        except (OSError, ValueError):  # the folder cannot be read, or its name is not valid
            continue
    paths = [path for path in found.values() if assigns is None or assigns in _assigned(path)]
    inside = [path for path in paths if path.parent == given]
    if inside:
        return inside[:4]
    names = {path.stem: path for path in reversed(paths)}
    return [names[name] for name in difflib.get_close_matches(given.stem, names, n=4, cutoff=_ALIKE)]


def _assigned(path: Path) -> set[str]:
    """Return the names that a Python file assigns or imports at its top level; none if it cannot be read."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return set()
    names = set()
    for node in body:
        if isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names
