"""A payload that says and prints numbers for some seconds; files in the session's directory tell when."""

import os
import time
from pathlib import Path

from dagster_pipes import open_dagster_pipes

directory = Path(os.environ["DAGSTER_SLURM_SESSION_DIR"])
with open_dagster_pipes() as pipes:
    (directory / "counting").touch()
    for number in range(120):
        pipes.log.info(f"said {number}")
        print(f"printed {number}")
        time.sleep(0.1)
    (directory / "counted").touch()
