"""Cluster files, and their checks."""

from raytrain.cluster.check import check
from raytrain.cluster.document import Finding
from raytrain.cluster.start import Incomplete, nodes, up
from raytrain.cluster.templates import KINDS, text, write

__all__ = ["KINDS", "Finding", "Incomplete", "check", "nodes", "text", "up", "write"]
