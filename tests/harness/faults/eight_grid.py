"""Eight trials of a grid."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import Grid

sweep = replace(
    complete,
    axes=(
        Grid("batch_size", (32, 64)),
        Grid("optimizer.momentum", (0.5, 0.9)),
        Grid("optimizer.lr", (0.01, 0.05)),
    ),
)
