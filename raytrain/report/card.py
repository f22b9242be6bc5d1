"""The model card of an exported model: a Markdown file beside it, made of what the run knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from raytrain import config, errors
from raytrain.checkpoint.layout import load_state, step_of
from raytrain.data import Field, Images
from raytrain.data.checks import checked_indices
from raytrain.data.transforms import full_range
from raytrain.files import known_json, reason
from raytrain.report.html import public
from raytrain.report.run_evaluation import slow
from raytrain.report.run_page import differing
from raytrain.report.trials import number
from raytrain.run.metrics_log import VALIDATED, read_metrics
from raytrain.run.run import Run
from raytrain.tasks.classification import Classification
from raytrain.tasks.multilabel import MultiLabel
from raytrain.tasks.regression import Regression
from raytrain.tasks.segmentation import Segmentation
from raytrain.tools import inference
from raytrain.tools.export import Parity, inputs_of

_MARK = "<!-- a model card of raytrain export -->"
"""The first line: a file without it is not replaced."""
_EVALUATION_SECONDS = 20.0
"""Most seconds, by the run's own speed, that scores are computed in."""
_CLASSES = 200
_MEANINGS = {
    Classification: "logits of the classes; their softmax is the probabilities",
    MultiLabel: "logits of the classes; the sigmoid of each is its probability",
    Segmentation: "logits of the classes of each pixel",
    Regression: "the predicted numbers",
}
_KINDS = {".onnx": "an ONNX program", ".pt2": "a program of torch.export"}


def place(file: Path) -> Path:
    """Return the place of an exported file's card.

    Raises:
        UserError: a file that is no card has its name.
    """
    card = file.with_suffix(".md")
    try:
        with open(card, "rb") as opened:
            ours = opened.read(len(_MARK)) == _MARK.encode()
    except FileNotFoundError:
        return card
    except OSError as error:
        raise errors.cannot_write(card, reason(error)) from None
    if not ours:
        what = f"the model card would replace {card.name}, which is no card"
        raise errors.UserError(what, f"in {card.absolute().parent}", "give the exported file another name")
    return card


@dataclass
class _Facts:
    """What is known of a run's checkpoint and its data.

    Attributes:
        dtype: of the input as the data stores it.
        sizes: samples by split; empty where the data is not there.
        scores: metrics of the validation split by name.
        counted: the samples that they are of, where that is known.
        rows: a row for each class; empty where they were not computed.
        why: why rows were not computed.
    """

    run: Run
    which: str
    checkpoint: str
    state: dict[str, Any]
    dtype: str
    sizes: dict[str, int] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    counted: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    why: str = ""

    @classmethod
    def of(cls, run: Run, which: str) -> _Facts:
        """Gather them; compute scores where that is quick by the run's own speed, and else read them."""
        path = run.checkpoint(which)
        state = load_state(path)
        image = state.get("input_kind", "image") == "image"
        facts = cls(run, which, path.name, state, "uint8" if image else state.get("input_dtype", "float32"))
        data = run.experiment.data
        data = config.replace(data, "download", False) if getattr(data, "download", False) else data
        try:
            indices = checked_indices(data)
            facts.sizes = {split: len(index) for split, index in indices.items()}
            facts.dtype = indices["val"].input.dtype
            facts.why = slow(run, _EVALUATION_SECONDS)
            if not facts.why:
                facts._evaluate()
                return facts
        except (
            Exception
        ) as error:  # code and data of the user, perhaps on another machine; the rest of the card is good
            facts.why = errors.one_line(str(error) or type(error).__name__)
        facts._read()
        return facts

    def _evaluate(self) -> None:
        result = inference.evaluate(self.run, which=self.which)
        self.rows, self.counted = result.get("per_class", []), result["count"]
        self.scores = {name: value for name, value in result.items() if isinstance(value, float)}

    def _read(self) -> None:
        """Take the scores of the validation after the checkpoint's step from metrics.jsonl."""
        step, counted = step_of(self.checkpoint), self.sizes.get("val")
        file = self.run.path / "metrics.jsonl"
        for row in read_metrics(file, kinds=VALIDATED)[0] if file.is_file() else ():
            if row.get("step") == step:
                values = {name.removeprefix("val_"): number(row[name]) for name in row if name.startswith("val_")}
                self.scores = {name: value for name, value in values.items() if value is not None}
                self.counted = counted


def text(run: Run, file: Path, which: str, parity: Parity | None) -> str:
    """Return the card of an exported file.

    Args:
        which: the checkpoint, best or last.
        parity: how a program's outputs compare with the model's; None for weights.
    """
    facts = _Facts.of(run, which)
    with torch.inference_mode():
        module = run.model(which)
    fields = parity.fields if parity else ()
    parts = [
        f"{_MARK}\n# {_safe(file.name)}",
        _what(facts, module, file),
        f"## Input and output\n\n{_input(facts, module, file, fields)}",
        *_classes(facts),
        f"## Scores\n\n{_scores(facts)}",
        f"## Training data\n\n{_data(facts)}",
        f"## Experiment\n\n{_experiment(facts)}",
        f"## Environment\n\n{_environment(run)}",
        f"## Limits\n\n{_limits(facts, file, parity)}",
        f"## Use\n\n```python\n{_use(facts, file, fields)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _what(facts: _Facts, module: torch.nn.Module, file: Path) -> str:
    experiment = facts.run.experiment
    count = sum(parameter.numel() for parameter in module.parameters())
    kind = _KINDS.get(file.suffix, "weights (a state dict)")
    return (
        f"{type(experiment.model).__name__} with {count:,} parameters, trained for the task "
        f"{type(experiment.task).__name__} and exported as {kind} by raytrain. It is the {facts.which} checkpoint "
        f"({facts.checkpoint}) of the run {_safe(facts.run.path.name)}."
    )


def _input(facts: _Facts, module: torch.nn.Module, file: Path, fields: Sequence[Field]) -> str:
    experiment, state = facts.run.experiment, facts.state
    sample, seen = state["sample"], state.get("input_dtype", "float32")
    program, image = file.suffix in _KINDS, state.get("input_kind", "image") == "image"
    shape, dtype = (fields[0].shape, fields[0].dtype) if program else (sample, seen)
    rows = [("input", f"{dtype} {_shape(shape)}" + (", of any size of batch" if program else ""))]
    if image:
        rows.append(("preprocessing", _preparation(facts, sample, program)))
    task = experiment.task
    columns = inputs_of(experiment.data)
    for one in fields[1:]:
        of = f": {', '.join(columns)}" if one.name == "inputs" and columns else ""
        rows.append((one.name, f"{one.dtype} {_shape(one.shape)}{of}"))
    if task.gives_more:
        rows.append(("forward pass", f"the model gets what {type(task).__name__}.forward gives it"))
        return _table(("", ""), rows)
    with torch.inference_mode():
        outputs = module(torch.zeros((1, *sample), dtype=getattr(torch, seen)))
    if isinstance(outputs, torch.Tensor):
        meaning = next((text for kind, text in _MEANINGS.items() if isinstance(task, kind)), "")
        if isinstance(task, Regression) and not program and (task.mean or task.std):
            meaning += f", scaled: times {_numbers(task.std or (1.0,))}, plus {_numbers(task.mean or (0.0,))}"
        form = f"{str(outputs.dtype).removeprefix('torch.')} {_shape(outputs.shape[1:])}"
        rows.append(("output", form + (f": {meaning}" if meaning else "")))
    return _table(("", ""), rows)


def _preparation(facts: _Facts, sample: Sequence[int], program: bool) -> str:
    data, stored = facts.run.experiment.data, facts.state["stored"]
    mean, std = data.normalisation(stored[0])
    scaled = f"divided by {most:g}, " if (most := full_range(facts.dtype)) != 1 else ""
    done = f"the central {sample[1]} x {sample[2]} pixels, {scaled}minus {_numbers(mean)}, over {_numbers(std)}"
    decodes = isinstance(data, Images) and data.decodes
    cut = "a whole image" if data.squashed else "the central square of an image"
    outside = f"{f'{cut}, resized to' if decodes else 'images of'} {stored[1]} x {stored[2]} pixels"
    outside += " (grey of 16 bits is divided by 257 and rounded)" if decodes else ""
    return f"inside: {done}; outside: {outside}" if program else f"yours: {outside}; {done}"


def _classes(facts: _Facts) -> list[str]:
    names = facts.run.experiment.task.class_names(tuple(facts.state["classes"]))
    if not names:
        return []
    listed = ", ".join(_safe(name) for name in names[:_CLASSES])
    more = f" and {len(names) - _CLASSES:,} more" if len(names) > _CLASSES else ""
    return [f"## Classes\n\n{len(names):,}, in the order of the outputs: {listed}{more}"]


def _scores(facts: _Facts) -> str:
    if not facts.scores:
        return f"None are known: {_safe(facts.why or 'the run has no validation of this checkpoint')}."
    of = f"{facts.counted:,} samples" if facts.counted is not None else "all samples"
    how = "computed for this card" if not facts.why else "as the run computed them"
    found = f"On {of} of the validation split, each counted once, {how}.\n\n"
    found += _table(("metric", "value"), [(name, _figure(value)) for name, value in facts.scores.items()])
    if facts.rows:
        names = list(dict.fromkeys(name for row in facts.rows for name in row))
        found += "\n\n" + _table(
            names, [[_figure(row.get(name, "")) for name in names] for row in facts.rows[:_CLASSES]]
        )
        if len(facts.rows) > _CLASSES:
            found += f"\n\nThe first {_CLASSES} of {len(facts.rows):,} classes."
    elif facts.why:
        found += f"\n\nRows per class were not computed: {_safe(facts.why)}."
    return found


def _data(facts: _Facts) -> str:
    data = facts.run.experiment.data
    prints = known_json(facts.run.path / "environment.json").get("data_fingerprint")
    prints = prints if isinstance(prints, dict) else {}
    rows = [("source", type(data).__name__)]
    rows += [("root", public(str(root)))] if (root := getattr(data, "root", "")) else []
    for split in dict.fromkeys((*facts.sizes, *prints)):
        size = f"{facts.sizes[split]:,} samples" if split in facts.sizes else "unknown size"
        rows.append((split, size + (f", fingerprint {prints[split]}" if split in prints else "")))
    return _table(("", ""), rows)


def _experiment(facts: _Facts) -> str:
    """Return the length of the run, and what differs from the defaults."""
    summary, progress = facts.run.summary, facts.state.get("progress", {})
    keys = ("step", "epoch", "seconds")
    rows = [(f"{key} of the checkpoint", _figure(progress[key])) for key in keys if key in progress]
    rows += [(key, _figure(summary[key])) for key in ("status", "precision", "device", "workers") if key in summary]
    changed = differing(facts.run.experiment)
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in changed.items()}
    rows += [(name, public(value)) for name, value in values.items()]
    return _table(("field", "value"), rows)


def _environment(run: Run) -> str:
    found = known_json(run.path / "environment.json")
    names = ("raytrain", "python", "torch", "ray", "platform", "git_commit", "began")
    return _table(("", ""), [(name, found[name]) for name in names if found.get(name)])


def _limits(facts: _Facts, file: Path, parity: Parity | None) -> str:
    lines = []
    if parity:
        lines.append(
            f"The outputs differ from those of the run's model by at most {parity.difference:.1e} (the greatest output "
            f"is {parity.magnitude:.3g}), on {parity.samples} validation samples, on the CPU in float32. Other devices "
            "and number formats were not compared."
        )
    monitor = facts.run.experiment.task.monitor
    if facts.which == "best":
        lines.append(
            f"The checkpoint was chosen by {_safe(monitor)} on the validation split, so its scores there are likely to "
            "be better than on new data."
        )
    lines.append(
        "It was not tested on data from other sources than the training data, nor on damaged or hostile input."
    )
    if "test" in facts.sizes:
        lines.append(f"The test split ({facts.sizes['test']:,} samples) was not evaluated for this card.")
    return "\n".join(f"- {line}" for line in lines)


def _use(facts: _Facts, file: Path, fields: Sequence[Field]) -> str:
    """Return six lines of Python or fewer, that read the file and call the model."""
    state, name = facts.state, json.dumps(file.name)
    zeros = [f"zeros(({', '.join(map(str, (1, *one.shape)))},)" for one in fields]
    if file.suffix == ".onnx":
        feed = [f'"{one.name}": numpy.{array}, numpy.{one.dtype})' for one, array in zip(fields, zeros, strict=True)]
        return (
            f"import numpy, onnxruntime\nsession = onnxruntime.InferenceSession({name})\n"
            f"batch = {{{', '.join(feed)}}}\n"
            'outputs = session.run(["outputs"], batch)[0]'
        )
    if file.suffix == ".pt2":
        given = [f"torch.{array}, dtype=torch.{one.dtype})" for one, array in zip(fields, zeros, strict=True)]
        return f"import torch\nprogram = torch.export.load({name}).module()\noutputs = program({', '.join(given)})"
    sample = ", ".join(map(str, state["sample"]))
    read = f"torch.load({name})" if file.suffix == ".pth" else f"safetensors.torch.load_file({name})"
    first = "import torch" if file.suffix == ".pth" else "import torch, safetensors.torch"
    lines = [f"{first}\nfrom raytrain import Run\nmodel = Run({json.dumps(public(facts.run.where))}).model()"]
    lines.append(f"model.load_state_dict({read})")
    if not facts.run.experiment.task.gives_more:
        seen = state.get("input_dtype", "float32")
        lines.append(f"outputs = model(torch.zeros(1, {sample}, dtype=torch.{seen}))")
    return "\n".join(lines)


def _shape(shape: Iterable[int]) -> str:
    return f"[{', '.join(['batch', *map(str, shape)])}]"


def _numbers(values: Sequence[float]) -> str:
    return f"{values[0]:.4g}" if len(set(values)) == 1 else f"({', '.join(f'{value:.4g}' for value in values)})"


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def _safe(value: object) -> str:
    """Return a text without line breaks, in which Markdown and HTML have no marks."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", errors.one_line(str(value), 2000))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(_safe, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(map(_safe, head))} |", f"|{'---|' * len(head)}", *lines])
