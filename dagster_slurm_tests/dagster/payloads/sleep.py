"""A payload that runs until it is stopped; its process id is in a file of the session's directory."""

import os
import time
from pathlib import Path

directory = Path(os.environ["DAGSTER_SLURM_SESSION_DIR"])
(directory / "payload.new").write_text(str(os.getpid()))
(directory / "payload.new").rename(directory / "payload.pid")
print("sleeping", flush=True)
while True:
    time.sleep(1)
