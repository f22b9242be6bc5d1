"""Whether the workers of a run can decode its images on their GPUs."""

from __future__ import annotations

import inspect

from raytrain.data import Data, Images, Index, Mixed, decode
from raytrain.data.decode_gpu import has_nvjpeg
from raytrain.errors import BadSample, UserError
from raytrain.experiment import Scaling
from raytrain.order import spread

_LOOKED_AT = 32
"""Images whose kind the plan looks up."""


def check(data: Data, index: Index, scaling: Scaling) -> list[str]:
    """Check that there is a decoder, and something for it to decode; return notes for the plan.

    Args:
        index: the training samples.
        scaling: with its GPUs decided.

    Raises:
        UserError: there is none.
    """
    if not data.on_gpu:
        return []
    cpu = "use --data.decode cpu"
    for one in _sources(data):
        name = type(one).__name__
        if one.raw:
            raise UserError("a raw pack has pixels, and no JPEGs to decode", f"in {name}.decode", "leave decode out")
        if "decoder" not in inspect.signature(one.read).parameters:
            what = f"{name} has a read of its own, which takes no decoder of the GPU"
            raise UserError(what, f"in {name}.decode", "leave decode out, or let `read` be that of Images")
    if data.mode == "resident":
        what = "resident samples are decoded on CPUs before the run, and data.decode is gpu"
        raise UserError(what, "in data.mode", f"leave out --data.mode resident, or {cpu}")
    left, of = _for_cpu(data, index) if isinstance(data, Images) else (0, 0)
    if of and left == of:
        what = f"data.decode is gpu, and none of {of} images looked at is a JPEG that a GPU decodes"
        raise UserError(what, "in data.decode", cpu)
    if not scaling.gpus_per_worker:
        what = "data.decode is gpu, and the workers have no GPU"
        raise UserError(what, "in scaling.gpus_per_worker", f"give each worker one, or {cpu}")
    if not has_nvjpeg():
        what = "data.decode is gpu, and the torchvision here is built without nvJPEG"
        raise UserError(what, "in data.decode", f"install torchvision for CUDA, or {cpu}")
    return [f"of {of} images looked at, {left} are decoded on the CPU: they are no JPEGs for a GPU"] if left else []


def _sources(data: Data) -> list[Data]:
    """Return the sources of a mixture, or the data alone."""
    return [one for source in data.sources for one in _sources(source)] if isinstance(data, Mixed) else [data]


def _for_cpu(data: Images, index: Index) -> tuple[int, int]:
    """Return how many of some images are left to the CPU, and how many these are."""
    chosen = spread(len(index), _LOOKED_AT)
    try:
        pixels = [decode.pixels_for_gpu(raw) for raw in data.encoded(index, chosen)]
    except BadSample:  # the plan names it, or it may be skipped
        return 0, 0
    return pixels.count(0), len(pixels)
