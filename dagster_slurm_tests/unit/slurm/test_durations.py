"""Walltimes that Slurm prints and time limits that it is given."""

from __future__ import annotations

import pytest

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.durations import parse_time_limit, parse_walltime, render_time_limit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:09", 9),
        ("9:52", 592),
        ("29:52", 1792),
        ("3:00:00", 10800),
        ("23:59:59", 86399),
        ("1-02:03:04", 93784),
        ("299-23:59:58", 25919998),
    ],
)
def test_E_5_printed_walltimes(text: str, seconds: int) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize(
    "word",
    ["UNLIMITED", "NONE", "Partition_Limit", "NOT_SET", "Unknown", "N/A", "None", "", None, "INVALID"],
)
def test_E_1_E_3_words_are_no_duration(word: str | None) -> None:
    assert parse_walltime(word) is None


@pytest.mark.parametrize(
    "damage", ["9", "9:5", "-9:52", "1:60:00", "1:00:60", "\u0663:00", "1-2", "9" * 5000 + ":00", "1:00 x"]
)
def test_damage_is_no_duration(damage: str) -> None:
    assert parse_walltime(damage) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("90:00", 5400),
        ("1:00:00", 3600),
        ("1-0", 86400),
        ("1-2", 93600),
        ("1-2:30", 95400),
        ("1-2:30:15", 95415),
        ("0:30", 30),
        ("0", None),
        ("-1", None),
        ("UNLIMITED", None),
        ("infinite", None),
        ("00:00:00", None),
        (None, None),
        (30, 1800),
    ],
)
def test_E_6_time_limits_of_sbatch(text: str | int | None, seconds: int | None) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "1.5", "-2", "1-", "1:2:3:4", "1-2-3", ":30", "1 30", True, "٣"])
def test_a_malformed_time_limit_names_the_field(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_time_limit(text, field="shape.time_limit")
    assert caught.value.field == "shape.time_limit"


def test_a_rendered_time_limit_is_unambiguous() -> None:
    assert render_time_limit(93784) == "1-02:03:04"
    assert render_time_limit(30) == "00:00:30"
    assert render_time_limit(None) == "UNLIMITED"
