"""Eight trials that TPE proposes, one at a time, so that it is told results in one order."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import TPE, Choice, LogUniform, Scaling

sweep = replace(
    complete,
    experiment=replace(complete.experiment, scaling=Scaling(threads_per_worker=1)),
    axes=(Choice("batch_size", (32, 64)), LogUniform("optimizer.lr", 0.005, 0.2)),
    search=TPE(startup=3),
    concurrent=1,
)
