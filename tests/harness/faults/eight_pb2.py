"""The same eight trials as under PBT, with new values from a Gaussian process."""

from dataclasses import replace

from eight_pbt import sweep as population

from raytrain import PB2

sweep = replace(population, scheduler=PB2(every_epochs=10))
