"""Export a trained run: its weights, or a program that takes images as the data stores them."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.utils import _pytree as pytree

from raytrain import errors
from raytrain.checkpoint.layout import load_state
from raytrain.data import Data, Field, Index, Manifest
from raytrain.data.batch import Batch
from raytrain.data.checks import perhaps_moved
from raytrain.data.prepare import Prepare
from raytrain.data.reader import Direct, Epoch
from raytrain.data.transforms import Normalise, center_crop
from raytrain.order import Shard, spread
from raytrain.run.exported import METADATA
from raytrain.run.run import Run
from raytrain.tasks.task import Task
from raytrain.tools.inference import check_input
from raytrain.tools.listing import at_root
from raytrain.tools.output import WEIGHTS, check_onnx, check_output, write_file
from raytrain.user_code.places import line_of, place

TOLERANCE = 1e-4
"""The largest difference of an exported program's outputs to the model's, for outputs of magnitude 1 or less; for
larger ones times the largest magnitude."""
_SAMPLES = 64
_LARGEST = 2**31 - 1
"""Bytes of a protocol buffer, which is what an .onnx file is."""


@dataclass(frozen=True)
class Parity:
    """How an exported program's outputs compare with those of the run's model, both on the CPU in float32.

    Attributes:
        samples: number of samples of the validation split that were compared.
        difference: the greatest absolute difference of an output.
        magnitude: the greatest absolute output of the run's model that is finite.
        fields: those of the data that the program takes, in this order.
    """

    samples: int
    difference: float
    magnitude: float
    fields: tuple[Field, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= TOLERANCE * max(1.0, self.magnitude)


class Deployed(nn.Module):
    """A run's model behind its preprocessing.

    Args:
        model: takes prepared samples.
        fields: those that the task gives the model.
        side: of the central square that the model sees; None for all of an image.
        normalise: of images, by the field's name; other fields are taken as they are stored.
        task: gives the outputs their units.
    """

    def __init__(
        self, model: nn.Module, fields: Sequence[Field], side: int | None, normalise: dict[str, Normalise], task: Task
    ):
        super().__init__()
        self.model, self.fields, self.side, self.task = model, fields, side, task
        self.image = fields[0].name in normalise
        for name, of in normalise.items():
            self.register_buffer(f"{name}_shift", of.shift, persistent=False)
            self.register_buffer(f"{name}_scale", of.scale, persistent=False)

    def forward(self, *stored: torch.Tensor) -> Any:
        """Return the model's outputs for a batch of samples as the data stores them: an array for each field."""
        arrays = {}
        for field, values in zip(self.fields, stored, strict=True):
            if field.kind != "plain":
                values = center_crop(values, self.side)
            if field.kind == "image":
                values = values.to(torch.float32) - getattr(self, f"{field.name}_shift")
                values = values * getattr(self, f"{field.name}_scale")  # the operations of Normalise, in its order
            arrays[field.name] = values
        return self.task.in_units(self.task.forward(self.model, _Traced(arrays, np.empty(0, np.int64))))


class _Noting(dict[str, torch.Tensor]):
    """Arrays by name that know which of them have been taken: all, if not by their names."""

    def __init__(self, arrays: dict[str, torch.Tensor]):
        super().__init__(arrays)
        self.names = set[str]()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def values(self) -> Any:
        self.names |= self.keys()
        return super().values()

    def items(self) -> Any:
        self.names |= self.keys()
        return super().items()


class _Traced(Batch):
    """A batch in a program: arrays of any length."""

    def __len__(self) -> int:
        what = "the forward pass asks for len(batch), which is no number in an exported program"
        raise errors.UserError(what, "", "write batch.input.shape[0], or export .pth or .safetensors")


def export(run: Run, file: Path, which: str = "best") -> Parity | None:
    """Write a run's weights or a program, by the file's suffix.

    `.pth` is a state dict for `torch.load`, without any prefix, on the CPU; `.safetensors` has the same tensors. `.pt2`
    (torch.export) and `.onnx` are programs that take a batch of the first field as the data stores it, such as uint8
    images [batch, channels, height, width], crop and normalise it, and return the model's outputs. Where the task's
    `forward` gives the model further fields, they take these too, in the order of the data's fields.

    Returns:
        For a program, how its outputs compare with the model's. The file is written only if `holds`.

    Raises:
        UserError: another suffix, the place cannot be written, the data is not there or does not fit the model, the
            model cannot be traced, or a package is missing.
    """
    check_output(file, WEIGHTS)
    if file.suffix == ".onnx":
        check_onnx()
    model, content = run.model(which), io.BytesIO()
    if file.suffix == ".safetensors":
        content.write(save({name: value.contiguous().clone() for name, value in model.state_dict().items()}))
    elif file.suffix == ".pth":
        torch.save(model.state_dict(), content)
    else:
        return _export_program(run, model, file, which)
    write_file(file, content.getbuffer())
    return None


def _export_program(run: Run, model: nn.Module, file: Path, which: str) -> Parity:
    """Trace, compare and write."""
    with perhaps_moved(run.experiment.data, "a program is compared on the run's data: put them back, or write .pth"):
        data, indices = at_root(run, None)
    index = indices["val"]
    check_input(data, index, run.checkpoint(which))
    prepare, path = Prepare(data, index), run.checkpoint(which)
    stored, expected = _expected(run, index, prepare, model)
    fields = [one for one in index.fields if one.name in stored]
    deployed = Deployed(model, fields, data.input_side, prepare.normalise, run.experiment.task).eval()
    mean, std = data.normalisation(fields[0].shape[0]) if deployed.image else ((), ())
    inputs: list[dict[str, Any]] = [
        {"name": one.name, "dtype": one.dtype, "shape": ["batch", *one.shape]} for one in fields
    ]
    if columns := inputs_of(data):
        inputs = [one | {"columns": list(columns)} if one["name"] == "inputs" else one for one in inputs]
    metadata = {
        "classes": list(run.experiment.task.class_names(tuple(load_state(path)["classes"]))),
        "input": inputs[0],
        **({"inputs": inputs} if len(inputs) > 1 else {}),
        "checkpoint": path.name,
        **({"mean": list(mean), "std": list(std)} if deployed.image else {}),
    }
    arrays = tuple(stored[one.name] for one in fields)
    two = tuple(torch.cat([one, one])[:2] for one in arrays)  # also of a single sample
    write = _onnx if file.suffix == ".onnx" else _pt2
    content, call = write(run, _traced(run, deployed, two), metadata)
    given = zip(*(one.split(5) for one in arrays), strict=True)  # parts of two sizes, mostly
    pairs = [(call(part), wanted) for part, wanted in zip(given, expected.split(5), strict=True)]
    worst = [_distance(found.double(), wanted.double()) for found, wanted in pairs]
    difference = math.nan if any(map(math.isnan, worst)) else max(worst)
    finite = expected[expected.isfinite()].double().abs()
    parity = Parity(len(expected), difference, float(finite.max()) if len(finite) else 0.0, (*fields,))
    if parity.holds:
        write_file(file, content)
    return parity


def inputs_of(data: Data) -> tuple[str, ...]:
    """Return the columns of a table that are in the field `inputs`."""
    return data.inputs if isinstance(data, Manifest) else ()


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the greatest difference; equal infinities, such as logits of classes that a model rules out, have none."""
    return float((found - wanted).abs().masked_fill(found == wanted, 0).max())


def _expected(
    run: Run, index: Index, prepare: Prepare, model: nn.Module
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the fields that the task gives the model, of evenly chosen samples of a split as they are stored, and the
    model's outputs for them.

    Raises:
        UserError: no sample can be read, the task needs more than the fields, or the model returns something else than
            one tensor of floats, or NaN.
    """
    task = run.experiment.task
    chosen = index.take(spread(len(index), _SAMPLES))
    epoch = Epoch(Shard(len(chosen), _SAMPLES, 0, 1), 0, None)
    samples, read = next(Direct(prepare.data, chosen).read(epoch))
    tensors = {name: torch.from_numpy(array) for name, array in read.items()}
    if not len(tensors[index.input.name]):
        raise errors.UserError("no sample of the validation split can be read", run.where, "repair the data")
    arrays = _Noting(prepare.plain(tensors))
    with torch.inference_mode():
        try:
            found = task.forward(model, Batch(arrays, samples))
        except KeyError as error:  # such as of the label, which no deployed model has
            what = f"the forward pass needs more than the data's fields: {error.args[0]}"
            raise errors.UserError(what, f"in {place(type(task).forward)}", "export .pth or .safetensors") from None
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        got = ", ".join(type(one).__name__ for one in pytree.tree_leaves(found)[:4])
        what = f"the model must return one tensor of floats, got {type(found).__name__} of {got}"
        raise errors.UserError(what, f"in {type(run.experiment.model).__name__}", "export .pth or .safetensors")
    if bad := int(found.isnan().reshape(len(found), -1).any(1).sum()):
        what = f"the model's own outputs are not a number for {bad} of {len(found)} validation samples"
        raise errors.UserError(what, run.where, "export another --checkpoint, or .pth or .safetensors")
    return {name: one.clone() for name, one in tensors.items() if name in arrays.names}, task.in_units(found.clone())


def _traced(run: Run, module: Deployed, two: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    with _failures(run, "torch.export cannot trace the model", ".pth or .safetensors"):
        shapes = (tuple({0: torch.export.Dim("batch")} for _ in two),)
        return torch.export.export(module, two, dynamic_shapes=shapes, preserve_module_call_signature=("model",))


Call = Callable[[tuple[torch.Tensor, ...]], torch.Tensor]
"""Runs the written program on a batch of each field."""


def _pt2(run: Run, program: torch.export.ExportedProgram, metadata: dict[str, Any]) -> tuple[bytes, Call]:
    content = io.BytesIO()
    with _failures(run, "torch.export cannot save the program", ".pth or .safetensors"):
        torch.export.save(program, content, extra_files={METADATA: json.dumps(metadata)})
        content.seek(0)
        loaded = torch.export.load(content).module()

    def call(given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        with torch.inference_mode():
            return loaded(*given)

    return content.getvalue(), call


def _onnx(run: Run, program: torch.export.ExportedProgram, metadata: dict[str, Any]) -> tuple[bytes, Call]:
    """Return the file and what runs it. The imports are of packages that only this needs."""
    names = [one["name"] for one in metadata.get("inputs", [metadata["input"]])]
    with _failures(run, "torch.onnx cannot translate the model", ".pt2, .pth or .safetensors"):
        translated = torch.onnx.export(program, (), dynamo=True, input_names=names, output_names=["outputs"])
    assert translated is not None
    model: Any = translated.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    if model.ByteSize() > _LARGEST:
        raise errors.UserError("an .onnx file holds at most 2 GiB", f"in {run.where}", "export .pt2")
    content, runtime = model.SerializeToString(), importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    with _failures(run, "ONNX Runtime cannot run the program", ".pt2, .pth or .safetensors"):
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def call(given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        feed = {name: one.numpy() for name, one in zip(names, given, strict=True)}
        with _failures(run, "ONNX Runtime cannot run the program", ".pt2, .pth or .safetensors"):
            return torch.from_numpy(session.run(None, feed)[0])

    return content, call


@contextlib.contextmanager
def _failures(run: Run, what: str, others: str) -> Iterator[None]:
    """Silence an exporter, which prints and logs whole graphs besides what it raises, and turn what it raises into one
    line."""
    logged = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    except errors.UserError:
        raise
    except Exception as error:  # exporters refuse in many types what they cannot take
        while type(error).__name__ == "ConversionError" and isinstance(error.__cause__, Exception):
            error = error.__cause__  # of torch.onnx: only the innermost one names the operation
        said = [line.strip() for line in str(error).strip().splitlines()] or [""]
        reason = " ".join([said[0], *(line for line in said[1:2] if line.startswith("- "))])  # a list has the reason
        raise errors.UserError(
            f"{what}: {type(error).__name__}: {reason}",
            line_of(error) or f"in {type(run.experiment.model).__name__}",
            f"correct what it names in the model, or export {others}",
        ) from None
    finally:
        logging.disable(logged)
