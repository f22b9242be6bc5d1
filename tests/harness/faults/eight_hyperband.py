"""Eight trials that wait for each other at HyperBand's rungs."""

from dataclasses import replace

from eight import sweep as complete

from raytrain import HyperBand

sweep = replace(complete, scheduler=HyperBand(reduction_factor=3))
