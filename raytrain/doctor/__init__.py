"""What this machine and the nodes of a cluster have, and what of it would hold a training up."""

from raytrain.doctor.checks import CHECKS, Finding, Survey, findings
from raytrain.doctor.examine import examine
from raytrain.doctor.facts import Facts, Gpu

__all__ = ["CHECKS", "Facts", "Finding", "Gpu", "Survey", "examine", "findings"]
