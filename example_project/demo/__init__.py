"""The demonstration behind ``make demo``: a Slurm of its own, Dagster, the example's job, and a clean end."""
