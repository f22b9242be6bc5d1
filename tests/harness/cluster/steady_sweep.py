"""Twelve equal trials, each of which takes all of a host for a minute, most of which it sleeps."""

from dataclasses import replace

from steady import experiment as base

from raytrain import Grid, Scaling, Sweep

sweep = Sweep(
    experiment=replace(base, scaling=Scaling(workers=1, cpus_per_worker=2, threads_per_worker=1), epochs=12),
    axes=(Grid("optimizer.lr", tuple(round(0.001 * number, 3) for number in range(1, 13))),),
    objective="val_loss",
)
