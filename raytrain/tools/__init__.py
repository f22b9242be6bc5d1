"""What works on an experiment or a run besides training."""
