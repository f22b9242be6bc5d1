"""Eight trials, one at a time, of which ASHA stops the worse ones early: it compares with those that came before."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import ASHA, Scaling

sweep = replace(
    complete,
    experiment=replace(complete.experiment, scaling=Scaling(threads_per_worker=1)),
    scheduler=ASHA(grace_epochs=10, reduction_factor=2),
    concurrent=1,
)
