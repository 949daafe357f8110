"""The payload's modules lie flat in one directory, as they do on the cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import example_project

sys.path.insert(0, str(Path(example_project.__file__).parent / "payload"))
