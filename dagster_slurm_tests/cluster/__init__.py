"""A real Slurm in one box: one host, its own daemons, nothing shared with a Slurm that may be installed.

Needs the standard library only, so that it runs before anything is installed with pip.
"""

from __future__ import annotations

from .box import RpcCount, SlurmBox
from .definition import DEFAULT_GROUPS, NodeGroup
from .errors import BoxError

__all__ = ["DEFAULT_GROUPS", "BoxError", "NodeGroup", "RpcCount", "SlurmBox"]
