"""What Slurm's commands are asked and what their replies mean; one import for the layers above.

`listing` is squeue, `accounting` sacct, `submission` sbatch, its estimates and the controller's ping.
"""

from __future__ import annotations

from dagster_slurm.slurm.accounting import (
    AccountingReply,
    AccountingRow,
    parse_accounting,
    sacct_arguments,
)
from dagster_slurm.slurm.commands import ReplyFault, fault_of
from dagster_slurm.slurm.listing import (
    ListedJob,
    Listing,
    parse_listing,
    squeue_arguments,
    squeue_by_id_arguments,
)
from dagster_slurm.slurm.submission import (
    Ambiguous,
    Refused,
    Submitted,
    TestOnlyReply,
    parse_ping,
    parse_submission,
    parse_test_only,
)

__all__ = [
    "AccountingReply",
    "AccountingRow",
    "Ambiguous",
    "ListedJob",
    "Listing",
    "Refused",
    "ReplyFault",
    "Submitted",
    "TestOnlyReply",
    "fault_of",
    "parse_accounting",
    "parse_listing",
    "parse_ping",
    "parse_submission",
    "parse_test_only",
    "sacct_arguments",
    "squeue_arguments",
    "squeue_by_id_arguments",
]
