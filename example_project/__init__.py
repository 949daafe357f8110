"""An elastic hyper-parameter search on Slurm, driven by Dagster: the example of dagster_slurm."""
