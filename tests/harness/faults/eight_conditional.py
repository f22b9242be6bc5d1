"""Eight trials of a conditional space: an optimizer with axes of its own."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import SGD, AdamW, Choice, LogUniform, Uniform

sweep = replace(
    complete,
    axes=(
        Choice("batch_size", (32, 64)),
        Choice("optimizer", (SGD(), AdamW())),
        LogUniform("optimizer.lr", 0.005, 0.1),
        Uniform("optimizer.momentum", 0.0, 0.9, step=0.1, when=("optimizer", "SGD")),
    ),
    first=({"optimizer": "SGD", "optimizer.momentum": 0.9},),
    constraints=("val_loss < 2.5",),
)
"""No trial breaks the constraint."""
