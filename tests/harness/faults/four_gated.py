"""Four trials of two workers, which wait at each validation; ASHA compares them inside epochs.

One at a time: then what it stops depends on nothing but the seed.
"""

from dataclasses import replace

from eight import sweep as complete

from raytrain import ASHA, Scaling

sweep = replace(
    complete,
    experiment=replace(
        complete.experiment,
        scaling=Scaling(workers=2, threads_per_worker=1),
        epochs=6,
        validate_every_steps=10,
    ),
    axes=complete.axes[1:],
    scheduler=ASHA(grace_steps=10, reduction_factor=2),
    trials=4,
    concurrent=1,
    keep=2,
)
