"""Benchmarks of raytrain against its peers: `python benchmarks/run.py`."""
