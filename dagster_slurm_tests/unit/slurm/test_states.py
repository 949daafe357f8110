"""One spelling of every state, and its class."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.states import StateClass, canonical_state, state_class


def test_B_1_a_suffix_of_accounting_is_dropped() -> None:
    assert canonical_state("CANCELLED by 1001") == "CANCELLED"
    assert canonical_state("CANCELLED+") == "CANCELLED"
    assert canonical_state("OUT_OF_ME+") == "OUT_OF_MEMORY"


def test_a_cut_word_that_fits_two_states_is_not_guessed() -> None:
    assert canonical_state("REQUEUE_+") == "REQUEUE_"
    assert state_class("REQUEUE_") is StateClass.UNFAMILIAR


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("PD", "PENDING"),
        ("CF", "CONFIGURING"),
        ("CG", "COMPLETING"),
        ("R", "RUNNING"),
        ("S", "SUSPENDED"),
        ("ST", "STOPPED"),
        ("NF", "NODE_FAIL"),
        ("PR", "PREEMPTED"),
        ("BF", "BOOT_FAIL"),
        ("DL", "DEADLINE"),
        ("OOM", "OUT_OF_MEMORY"),
        ("RH", "REQUEUE_HOLD"),
        ("SE", "SPECIAL_EXIT"),
        ("RV", "REVOKED"),
        ("SI", "SIGNALING"),
        ("RS", "RESIZING"),
        ("RQ", "REQUEUED"),
        ("RF", "REQUEUE_FED"),
        ("RD", "RESV_DEL_HOLD"),
        ("SO", "STAGE_OUT"),
        ("TO", "TIMEOUT"),
        ("CA", "CANCELLED"),
        ("CD", "COMPLETED"),
        ("F", "FAILED"),
    ],
)
def test_C_3_code_and_word_are_the_same_state(code: str, word: str) -> None:
    assert canonical_state(code) == canonical_state(word) == canonical_state(word.lower()) == word
    assert state_class(word) is not StateClass.UNFAMILIAR


@pytest.mark.parametrize("nothing", [None, "", "  ", "(null)", "+"])
def test_no_word_is_no_state(nothing: str | None) -> None:
    assert canonical_state(nothing) is None


def test_C_1_C_4_C_7_classes_of_rare_states() -> None:
    assert state_class("RESV_DEL_HOLD") is StateClass.PENDING
    assert state_class("NODE_FAIL") is StateClass.ENDED
    assert state_class("CONFIGURING") is StateClass.RUNNING
    assert state_class("ENDED") is StateClass.ENDED
    assert state_class("COMPLETING") is StateClass.ENDED


def test_a_word_of_a_later_version_is_kept_and_counts_as_no_end() -> None:
    assert canonical_state("HIBERNATED") == "HIBERNATED"
    assert state_class("HIBERNATED") is StateClass.UNFAMILIAR
