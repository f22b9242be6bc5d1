"""Eight trials, one at a time, which the rule of the median ends early."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import MedianStopping, Scaling

sweep = replace(
    complete,
    experiment=replace(complete.experiment, scaling=Scaling(threads_per_worker=1)),
    scheduler=MedianStopping(grace_epochs=5),
    concurrent=1,
)
