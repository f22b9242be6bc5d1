"""The checks of this machine and of a cluster's nodes before a training."""

from raytrain.doctor.checks import CHECKS, Finding, Survey, findings
from raytrain.doctor.examine import examine
from raytrain.doctor.facts import Facts, Gpu

__all__ = ["CHECKS", "Facts", "Finding", "Gpu", "Survey", "examine", "findings"]
