"""Pending reasons, sorted by what a policy can do about them."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.reasons import ReasonCategory, reason_category


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("Resources", ReasonCategory.RESOURCES),
        ("Priority", ReasonCategory.PRIORITY),
        ("JobHeldUser", ReasonCategory.HELD),
        ("JobHeldAdmin", ReasonCategory.HELD),
        ("launch failed requeued held", ReasonCategory.HELD),
        ("job requeued in held state", ReasonCategory.HELD),
        ("Dependency", ReasonCategory.DEPENDENCY),
        ("BeginTime", ReasonCategory.DEPENDENCY),
        ("DependencyNeverSatisfied", ReasonCategory.NEVER),
        ("PartitionTimeLimit", ReasonCategory.NEVER),
        ("AccountNotAllowed", ReasonCategory.NEVER),
        ("QOSNotAllowed", ReasonCategory.NEVER),
        ("BadConstraints", ReasonCategory.NEVER),
        ("ReservationDeleted", ReasonCategory.NEVER),
        ("Reservation r1 was deleted", ReasonCategory.NEVER),
        ("QOSMaxGRESPerJob", ReasonCategory.NEVER),
        ("QOSMaxJobsPerUserLimit", ReasonCategory.LIMIT),
        ("AssocGrpCpuLimit", ReasonCategory.LIMIT),
        ("QOSGrpGRES", ReasonCategory.LIMIT),
        ("PartitionDown", ReasonCategory.DOWN),
        ("PartitionInactive", ReasonCategory.DOWN),
        ("NodeDown", ReasonCategory.DOWN),
        ("ReqNodeNotAvail, UnavailableNodes:d[001-032],f[001-024]", ReasonCategory.DOWN),
        ("ReqNodeNotAvail, Reserved for maintenance", ReasonCategory.RESERVATION),
        ("Reservation", ReasonCategory.RESERVATION),
        ("A word of next year", ReasonCategory.OTHER),
        ("", None),
        (None, None),
    ],
)
def test_reason_category(reason: str | None, category: ReasonCategory | None) -> None:
    assert reason_category(reason) is category


def test_D_3_a_reason_that_lists_down_nodes_is_about_nodes() -> None:
    text = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    assert reason_category(text) is ReasonCategory.DOWN
