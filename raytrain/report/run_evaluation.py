"""The best checkpoint of a run on its validation split: classes, calibration, and the worst samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from raytrain import errors
from raytrain.data.batch import Batch
from raytrain.data.checks import checked_indices, perhaps_moved
from raytrain.data.source import Data
from raytrain.report import run_calibration, run_classes
from raytrain.report.html import safe
from raytrain.report.run_samples import Sample, gallery
from raytrain.report.scatter import Point, scatter
from raytrain.report.trials import number
from raytrain.run.run import Run
from raytrain.tasks.calibration import ExpectedCalibrationError
from raytrain.tasks.classification import Classification
from raytrain.tasks.regression import Regression
from raytrain.tasks.segmentation import Segmentation
from raytrain.tasks.supervised import Supervised
from raytrain.tools import inference

QUICK = 60.0
"""Most seconds that an evaluation may take, by the run's own speed, without being asked for."""
_LATE = 3.0
"""Times the limit after which an evaluation ends, since the run's speed was no guide."""
_WORST, _MOST_POINTS, _MOST_NUMBERS = 12, 2000, 4

Section = tuple[str, str, str]
"""The name, the title and the HTML of a part of a page."""


def sections_of(
    run: Run, command: str, limit: float | None = QUICK, follow: inference.Follow | None = None
) -> list[Section]:
    """Return what the best checkpoint answers on the validation split; a line that says how to get it, where computing
    it takes long or fails; nothing for tasks that compare nothing with a target.

    Args:
        command: the command that writes the page.
        limit: the seconds that it may take by the run's own speed; None: compute it however long that takes.
        follow: as for `inference.evaluate`.
    """
    task = run.experiment.task
    if not isinstance(task, Supervised):
        return []
    again = f"<code>{safe(command)} --evaluate</code>"
    if run.summary["status"] == "unfinished":
        return [_missing(f"The run has not ended: later, {again} fills in classes and samples.")]
    data = run.experiment.data
    try:
        with perhaps_moved(data, "put the data back"):  # a page has no --data.root
            if limit is not None and (why := slow(run, limit)):
                return [_missing(f"Not computed, since {safe(why)}: {again} fills in classes and samples.")]
            began, seen = time.monotonic(), _Seen(task, data, None if limit is None else _LATE * limit)
            result = inference.evaluate(run, watch=seen, follow=follow)
        return _shown(run, result, seen, time.monotonic() - began)
    except Exception as error:  # code and data of the user, perhaps on another machine; the rest of the page is good
        reason = errors.one_line(str(error) or type(error).__name__)
        return [_missing(f"Not computed: {safe(reason)}. Then {again} fills in classes and samples.")]


def _missing(said: str) -> Section:
    return "validation", "Validation", f"<p>{said}</p>"


def slow(run: Run, limit: float) -> str:
    """Return why an evaluation would take long here; an empty text if it would not."""
    speed, device = number(run.summary.get("samples_per_second")), run.summary.get("device")
    if not speed:
        return "the run's speed is unknown"
    if device != "cpu" and not torch.cuda.is_available():
        return f"the run was trained on {device}, which is not here"
    data = run.experiment.data
    if getattr(data, "download", False):
        return "the data may have to be downloaded"
    count = len(checked_indices(data).get("val", ()))
    seconds = count / speed * (number(run.summary.get("workers")) or 1)
    return f"it takes about {seconds:,.0f} s" if seconds > limit else ""


def _shown(run: Run, result: dict[str, Any], seen: _Seen, seconds: float) -> list[Section]:
    """Return the sections of an evaluation."""
    said = f"<p class='muted'>{safe(result['checkpoint'])} on {result['count']:,} samples of the validation split"
    said += f", computed in {seconds:.1f} s.</p>"
    found = [
        ("classes", "Classes", run_classes.shown(result)),
        ("calibration", "Calibration", _charts(seen.calibration())),
        ("predictions", "Predictions", _charts(seen.plots())),
    ]
    if seen.worst:
        index = checked_indices(run.experiment.data)["val"]
        samples = seen.samples(run.classes(), index.input.kind == "image")
        names = index.names(np.array([one.number for one in samples]))
        classes = seen.task.class_names(run.classes())
        title = "Images" if samples[0].image is not None else "Samples"
        found.append(("worst", f"{title} with the highest loss", gallery(samples, names, classes)))
    found = [(name, title, content) for name, title, content in found if content]
    if not found:
        return [("validation", "Validation", f"{said}<p>The task has no rows per class.</p>")]
    name, title, content = found[0]
    return [(name, title, said + content), *found[1:]]


def _charts(content: str) -> str:
    return f'<div class="charts">{content}</div>' if content else ""


class _Seen:
    """What a pass over a split shows of its samples: the worst ones, and what calibration and plots need.

    Args:
        most: seconds after which the pass ends with an error.
    """

    def __init__(self, task: Supervised, data: Data, most: float | None):
        self.task, self.data = task, data
        self.ends = None if most is None else time.monotonic() + most
        self.worst: list[dict[str, Any]] = []
        self.numbers: list[np.ndarray] = []
        metrics = [metric for metric in task.metrics if isinstance(metric, ExpectedCalibrationError)]
        self.metric = next(iter(metrics), ExpectedCalibrationError())
        self.sums: dict[str, torch.Tensor] = {}

    def __call__(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Take the model's outputs of a batch."""
        if self.ends is not None and time.monotonic() > self.ends:
            raise TimeoutError("it takes longer than the run's speed suggested")
        kinds = (Classification, Regression, Segmentation)
        if not isinstance(self.task, kinds):
            return
        wanted = self.task.wanted(batch)
        outputs = self.task.fitted(outputs, wanted)
        losses = self.task.each(outputs, wanted).double().nan_to_num(nan=torch.inf)
        if isinstance(self.task, Classification):
            for name, value in self.metric.sums(outputs, Batch({**batch.arrays, "target": wanted}, batch.ids)).items():
                self.sums[name] = self.sums[name] + value if name in self.sums else value
        elif isinstance(self.task, Regression):
            pairs = [array.double().flatten(1)[:, :_MOST_NUMBERS] for array in _columns(wanted, outputs)]
            self.numbers.append(torch.stack(pairs, 2).cpu().numpy())
        least = self.worst[-1]["loss"] if len(self.worst) == _WORST else -torch.inf
        chosen = losses.topk(min(_WORST, len(losses)))
        for loss, place in zip(chosen.values.tolist(), chosen.indices.tolist(), strict=True):
            if loss > least:
                self.worst.append(
                    {
                        "loss": loss,
                        "number": int(batch.ids[place]),
                        "wanted": wanted[place].cpu(),
                        "output": self._kept(outputs[place]),
                        "input": batch.input[place].float().cpu(),
                    }
                )
        self.worst = sorted(self.worst, key=lambda one: (-one["loss"], one["number"]))[:_WORST]

    def _kept(self, output: torch.Tensor) -> torch.Tensor:
        return output.argmax(0).cpu() if isinstance(self.task, Segmentation) else output.float().cpu()

    def calibration(self) -> str:
        """Return the reliability diagram of a classifier."""
        sums: Mapping[str, np.ndarray] = {name: value.cpu().numpy() for name, value in self.sums.items()}
        return run_calibration.diagram(self.metric, sums) if sums else ""

    def plots(self) -> str:
        """Return the predicted over the true numbers of a regression."""
        if not self.numbers:
            return ""
        pairs = np.concatenate(self.numbers)  # [n, numbers, (true, predicted)]
        every = -(-len(pairs) // _MOST_POINTS)
        note = f"one of {every} of {len(pairs):,} samples" if every > 1 else ""
        found = ""
        for place in range(pairs.shape[1]):
            shown = [(at * every, *pair) for at, pair in enumerate(pairs[::every, place].tolist())]
            points = [Point(true, said, str(at)) for at, true, said in shown if np.isfinite((true, said)).all()]
            named = self.task.names if isinstance(self.task, Regression) else ()
            which = named[place] if named else f"number {place}"
            title = "Predicted and true" + (f", {which}" if pairs.shape[1] > 1 else "")
            found += scatter(title, "true", "predicted", points, equal=True, what="row", note=note)
        return found

    def samples(self, classes: tuple[str, ...], images: bool) -> list[Sample]:
        """Return the samples with the highest loss, the highest first.

        Args:
            images: whether the model's input is an image.
        """
        return [self._sample(one, classes, images) for one in self.worst]

    def _sample(self, one: dict[str, Any], classes: tuple[str, ...], images: bool) -> Sample:
        wanted, output, masks = one["wanted"], one["output"], None
        if isinstance(self.task, Classification):
            shares = output.softmax(0)
            best, label = int(shares.argmax()), int(wanted)
            answer = f"{classes[label]}, taken for {classes[best]}" if best != label else f"{classes[label]}, right"
            facts = (("p(answer)", f"{shares[best]:.4f}"), ("p(label)", f"{shares[label]:.4f}"))
        elif isinstance(self.task, Segmentation):
            counted = wanted >= 0
            right = ((output == wanted) & counted).sum() / counted.sum().clamp_min(1)
            masks, answer = (wanted.numpy(), output.numpy()), f"{right:.1%} of the pixels right"
            facts = ()
        else:
            pairs = [_words(array) for array in (wanted, output)]
            answer, facts = f"{pairs[0]}, predicted {pairs[1]}", (("true", pairs[0]), ("predicted", pairs[1]))
        return Sample(one["number"], one["loss"], facts, answer, self._image(one["input"]) if images else None, masks)

    def _image(self, found: torch.Tensor) -> np.ndarray:
        """Return an image from 0 to 1, from what the model saw."""
        mean, std = (torch.tensor(each).reshape(-1, 1, 1) for each in self.data.normalisation(len(found)))
        return (found * std + mean).numpy()


def _columns(wanted: torch.Tensor, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [n, ...] of at least two axes."""
    shape = (len(wanted), -1)
    return wanted.reshape(shape), outputs.reshape(shape)


def _words(array: torch.Tensor) -> str:
    """Return the first few numbers of a sample."""
    flat = array.double().flatten().tolist()
    return ", ".join(f"{value:.4g}" for value in flat[:_MOST_NUMBERS]) + (", ..." if len(flat) > _MOST_NUMBERS else "")
