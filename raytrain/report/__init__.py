"""What users see of runs, sweeps and jobs."""
