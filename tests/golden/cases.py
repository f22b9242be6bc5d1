"""The experiments whose bits and loss curves a change of structure must not move."""

from __future__ import annotations

from dataclasses import dataclass

_PREAMBLE = """
from raytrain import *
from raytrain import Checkpoint, Scaling
import raytrain, inspect
from dataclasses import fields

def deterministic(reduction="auto"):
    \"\"\"Arguments of an experiment that give the same bits on 1, 2 and 4 workers.\"\"\"
    if "deterministic" in {field.name for field in fields(Experiment)}:
        return {"deterministic": True, "parallel": DDP(reduction=reduction)}
    return {"parallel": raytrain.Deterministic(reduction=reduction)}

NET = CNN(channels=(8, 16), batch_norm=True, dropout=0.2)
PLAIN = CNN(channels=(8, 16))
AUGMENTED = Digits(augment=Augment(crop="random", padding=1, flip=0.5))
MOMENTUM = SGD(lr=0.05, momentum=0.9)
"""


@dataclass(frozen=True)
class Case:
    """One experiment.

    Attributes:
        text: arguments of `Experiment`, as Python source.
        resume_at: the step of the checkpoint from which a second command resumes; None trains in one command.
        resume_flags: flags of that second command.
    """

    name: str
    text: str
    resume_at: int | None = None
    resume_flags: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The experiment file."""
        return f"{_PREAMBLE}\nexperiment = Experiment({self.text})\n"


_EVERY = "checkpoint=Checkpoint(every_steps=5, keep=20)"
CASES = (
    Case("one_worker", "model=NET, data=AUGMENTED, optimizer=MOMENTUM, schedule=Cosine(warmup_epochs=0.5), epochs=2"),
    Case("shared", "model=NET, data=AUGMENTED, optimizer=MOMENTUM, scaling=Scaling(workers=2), epochs=2"),
    Case(
        "torch_ddp",
        "model=NET, data=AUGMENTED, optimizer=AdamW(lr=0.002), parallel=DDP(reduction='torch'), "
        "scaling=Scaling(workers=2), epochs=2",
    ),
    Case(
        "three_ranks",
        "model=PLAIN, data=AUGMENTED, optimizer=MOMENTUM, parallel=DDP(reduction='torch'), batch_size=48, "
        "scaling=Scaling(workers=3), epochs=1",
    ),
    Case(
        "accumulation",
        "model=NET, data=AUGMENTED, optimizer=MOMENTUM, micro_batch_size=8, clip_norm=0.5, "
        "scaling=Scaling(workers=2), epochs=2",
    ),
    Case("bf16", "model=NET, data=AUGMENTED, optimizer=MOMENTUM, precision='bf16', epochs=2"),
    Case("fp16", "model=NET, data=AUGMENTED, optimizer=MOMENTUM, precision='fp16', on_nonfinite='skip', epochs=2"),
    Case(
        "ema",
        "model=NET, data=AUGMENTED, optimizer=Adam(lr=0.002), ema_decay=0.95, scaling=Scaling(workers=2), epochs=2",
    ),
    Case("deterministic_1", "model=NET, data=AUGMENTED, optimizer=MOMENTUM, epochs=2, **deterministic()"),
    Case(
        "deterministic_2",
        "model=NET, data=AUGMENTED, optimizer=MOMENTUM, scaling=Scaling(workers=2), epochs=2, **deterministic()",
    ),
    Case(
        "deterministic_4",
        "model=NET, data=AUGMENTED, optimizer=MOMENTUM, scaling=Scaling(workers=4), epochs=2, "
        "**deterministic(reduction='torch')",
    ),
    Case(
        "mixing",
        "model=PLAIN, data=Digits(augment=Augment(mixup=0.4, cutmix=1.0, flip=0.5)), optimizer=MOMENTUM, "
        "task=Classification(label_smoothing=0.1), scaling=Scaling(workers=2), epochs=2",
    ),
    Case(
        "policies",
        "model=PLAIN, data=Digits(crop=7, augment=Augment(crop='random_resized', policy='randaugment', erase=0.5)), "
        "optimizer=MOMENTUM, schedule=OneCycle(), epochs=2",
    ),
    Case(
        "streaming",
        "model=NET, data=Digits(mode='streaming'), optimizer=MOMENTUM, scaling=Scaling(workers=2), epochs=2",
    ),
    Case(
        "resumed",
        "model=NET, data=AUGMENTED, optimizer=AdamW(lr=0.002), ema_decay=0.95, scaling=Scaling(workers=2), epochs=2, "
        + _EVERY,
        resume_at=30,
    ),
    Case(
        "resumed_elsewhere",
        f"model=NET, data=AUGMENTED, optimizer=MOMENTUM, epochs=2, {_EVERY}, **deterministic()",
        resume_at=15,
        resume_flags=("--scaling.workers", "2"),
    ),
    Case(
        "fsdp",
        "model=PLAIN, data=AUGMENTED, optimizer=AdamW(lr=0.002), parallel=FSDP(block_parameters=500), clip_norm=1.0, "
        "scaling=Scaling(workers=2), epochs=2",
    ),
    Case(
        "pipeline",
        "model=PLAIN, data=AUGMENTED, optimizer=MOMENTUM, parallel=Pipeline(), clip_norm=1.0, "
        "scaling=Scaling(workers=2), epochs=2",
    ),
    Case(
        "tensor",
        "model=MLP(hidden=(32, 32)), data=AUGMENTED, optimizer=MOMENTUM, parallel=TensorParallel(), clip_norm=1.0, "
        "scaling=Scaling(workers=2), epochs=2",
    ),
    Case(
        "model_parallel",
        "model=PLAIN, data=AUGMENTED, optimizer=MOMENTUM, parallel=ModelParallel(), "
        "scaling=Scaling(workers=2), epochs=2",
    ),
    Case("data_parallel", "model=PLAIN, data=AUGMENTED, optimizer=MOMENTUM, parallel=DataParallel(), epochs=2"),
    Case(
        "in_process",
        "model=PLAIN, data=AUGMENTED, optimizer=SGD(lr=0.1), schedule=StepLR(), lr_scaling='linear', lr_batch_size=64, "
        "batch_size=96, patience=1, scaling=Scaling(workers=0), epochs=3",
    ),
)
