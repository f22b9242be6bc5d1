"""Distillation: classification that also follows the answers of a trained model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raytrain import errors
from raytrain.config import SHARE, above, check
from raytrain.data.batch import Batch
from raytrain.files import expanded, is_url
from raytrain.tasks.classification import Classification
from raytrain.tasks.task import losses

if TYPE_CHECKING:
    import torch
    from torch import nn

    from raytrain.data.source import Index

_TEACHERS: dict[str, nn.Module] = {}
"""The teacher of this process, by its path: a task is a value, and holds no module."""


@dataclass(frozen=True)
class Distillation(Classification):
    """Classification whose loss is (1 - alpha) times the cross entropy to the labels plus alpha times the divergence
    from a teacher's softened answers (Hinton et al., 2015). Validation measures the student alone."""

    teacher: str = ""
    """The model to learn from: a run's directory or URL, of which the best weights count, or a .pt2 file of `raytrain
    export`; on a cluster where each worker finds it. It has the same classes in the same order."""
    temperature: float = 4.0
    """By what the logits of both are divided before they are compared; the divergence is multiplied by its square."""
    alpha: float = 0.5
    """The teacher's part of the loss, from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, temperature=above(0), alpha=SHARE)

    def start(self, open_model: Callable[[str], nn.Module], device: torch.device) -> None:
        """Load the teacher, for as long as the process lives; it is neither trained nor kept in checkpoints."""
        _TEACHERS.clear()
        _TEACHERS[self.teacher] = open_model(self.teacher).to(device)

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the sum over samples of both parts."""
        hard = super().training_loss(outputs, batch)
        teacher = losses().without_gradient(_TEACHERS[self.teacher], batch.input)
        if teacher.shape != outputs.shape:
            what = f"the teacher gives {list(teacher.shape)} and the model {list(outputs.shape)}"
            raise errors.UserError(what, "in task.teacher", "take a teacher of the same classes")
        soft = losses().distilled(outputs, teacher, self.temperature)
        return (1 - self.alpha) * hard + self.alpha * soft

    def check_data(self, index: Index) -> None:
        """Check that there is a teacher."""
        super().check_data(index)
        if not self.teacher:
            raise errors.UserError("Distillation needs a teacher", "in task.teacher", "give a run's directory")
        if not is_url(self.teacher) and not expanded(self.teacher).exists():
            how = "name it with --task.teacher PATH"
            raise errors.UserError("no such run or .pt2 file", f"in task.teacher {self.teacher}", how)

    def absolute(self) -> Distillation:
        """Return the task with the teacher's absolute path."""
        if is_url(self.teacher):
            return self
        return replace(self, teacher=str(expanded(self.teacher).absolute()))
