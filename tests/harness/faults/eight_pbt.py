"""Eight trials that copy weights from each other on the way."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import PBT, LogUniform, Uniform

sweep = replace(
    complete,
    axes=(LogUniform("optimizer.lr", 0.005, 0.2), Uniform("optimizer.momentum", 0.0, 0.9)),
    scheduler=PBT(every_epochs=10),
)
