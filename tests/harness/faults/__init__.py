"""Faults in runs and sweeps."""
