"""One job's options, and what is refused in them."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_slurm.allocations.config import EffectiveShape
from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.extra_options import check_extra_options
from dagster_slurm.slurm.options import sbatch_arguments
from dagster_slurm.slurm.replies import squeue_arguments


def render(shape: EffectiveShape | None = None, **changes: Any) -> tuple[str, ...]:
    settings: dict[str, Any] = {"job_name": "wk", "comment": "dagster-slurm run tok", "output": "/s/log", **changes}
    return sbatch_arguments(shape or EffectiveShape(), **settings)


def test_every_job_says_what_no_profile_or_site_shall_decide() -> None:
    assert render() == (
        "--job-name=wk",
        "--comment=dagster-slurm run tok",
        "--output=/s/log",
        "--parsable",
        "--no-requeue",
        "--export=ALL",
        "--signal=B:USR1@120",
        "--nodes=1",
        "--ntasks-per-node=1",
    )


def test_a_whole_shape() -> None:
    shape = EffectiveShape(
        partition="gpu-a",
        account="acc",
        qos="short",
        reservation="r1",
        constraint="a100&nvlink",
        nodes=2,
        gpus_per_node="a100:2",
        cpus_per_task=8,
        mem="8G",
        time_limit="90:00",
        nodelist="n[1-2]",
        exclude="n3",
        extra_options=("--licenses=matlab:1", "--exclusive"),
        drain_window_seconds=300,
    )
    assert render(shape, chdir="/s", cluster="alpha")[6:] == (
        "--signal=B:USR1@300",
        "--chdir=/s",
        "--clusters=alpha",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=a100:2",
        "--cpus-per-task=8",
        "--mem=8G",
        "--time=01:30:00",
        "--partition=gpu-a",
        "--account=acc",
        "--qos=short",
        "--reservation=r1",
        "--constraint=a100&nvlink",
        "--nodelist=n[1-2]",
        "--exclude=n3",
        "--licenses=matlab:1",
        "--exclusive",
    )


def test_P_3_an_estimate_asks_with_the_options_of_the_submission() -> None:
    shape = EffectiveShape(partition="p", mem_per_cpu="2G")
    assert render(shape, test_only=True) == (*render(shape), "--test-only", "--wrap=true")


def test_P_8_zero_gpus_are_stated_and_none_are_not() -> None:
    assert "--gpus-per-node=0" in render(EffectiveShape(gpus_per_node=0))
    assert not any(argument.startswith("--gpus") for argument in render(EffectiveShape()))


def test_P_7_a_percent_sign_in_a_path_is_literal() -> None:
    assert "--output=/scratch/50%%j/log" in render(output="/scratch/50%j/log")
    assert "--job-name=a%b;c" in render(job_name="a%b;c")
    assert "--chdir=/scratch/50%j" in render(chdir="/scratch/50%j")


def test_an_unlimited_walltime_is_stated() -> None:
    assert "--time=UNLIMITED" in render(EffectiveShape(time_limit="0"))


def test_the_warning_before_the_walltime_can_be_changed_and_left_out() -> None:
    assert "--signal=B:USR1@60" in render(signal_window_seconds=60)
    assert not any(argument.startswith("--signal") for argument in render(signal_window_seconds=0))
    assert "--signal=B:USR1@30" in render(EffectiveShape(time_limit="1"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"job_name": "a,b"}, "job_name"),
        ({"job_name": " a"}, "job_name"),
        ({"job_name": 'a"b'}, "job_name"),
        ({"job_name": ""}, "job_name"),
        ({"job_name": "a\nb"}, "job_name"),
        ({"comment": "a\x1fb"}, "comment"),
        ({"comment": "é" * 513}, "comment"),
        ({"output": "/s/a\tb"}, "output"),
        ({"output": "/s/a\\b"}, "output"),
        ({"chdir": "\x00"}, "chdir"),
        ({"cluster": "a\rb"}, "cluster"),
        ({"signal_window_seconds": -1}, "signal_window_seconds"),
        ({"signal_window_seconds": 65_536}, "signal_window_seconds"),
    ],
)
def test_J_5_what_cannot_be_passed_on_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        render(**changes)
    assert caught.value.field == field


def test_a_job_name_that_the_filter_would_split_is_not_asked_for() -> None:
    with pytest.raises(ConfigurationError):
        squeue_arguments("long,zzz")


RESERVED = """
    -Jx -J --job-name=x --job-name --job --comm=x --comment=x --c=x --JOB-NAME=x --job_name=x -HJx -vvJx
    --output=x -ox --out=x --error=x -ex --parsable --pars --signal=USR1 --sig=USR1 --requeue --no-requeue --no-req
    --chdir=/x -D/x --workdir=/x --export=NONE --exp=NONE --export-file=x --test-only --test --array=0-3 -a0-3
    --wait -W --dependency=singleton -dsingleton --clusters=x -Mx --quiet -Q --wrap=true --uid=0 -V -h
    --partition=x -px --time=5 -t5 --mem=8G --mem-per-cpu=1G --nodes=2 -N2 -n4 --gpus-per-node=2 -w -xn1 --ntasks=3
"""
OTHER = """
    --gres=gpu:a100:2 --gpus=4 -G4 --exclusive --exclusive=user --licenses=a:1 -La:1 -H --mail-type=END --nice=10
    --begin=now+1hour --time-min=10 --nodefile=/x -F/x --mem-bind=local --contiguous --no-kill -k --switches=1@10
    --wait-all-nodes=1 --some-site-plugin=x
"""


@pytest.mark.parametrize("option", ["-J x", *RESERVED.split()])
def test_an_option_of_the_session_is_refused_in_every_spelling(option: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_extra_options(["--exclusive", option])
    assert caught.value.field == "extra_options"


@pytest.mark.parametrize(
    "option", ["", "x", "/s/other.sh", "-", "--", ":", "--a b=c", "- J", "-1", "--gres=gpu:1\n", "\x1b[0m", "--=x"]
)
def test_an_argument_that_is_no_single_option_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError):
        check_extra_options([option])


@pytest.mark.parametrize("option", ["--some-site-plugin=x y", *OTHER.split()])
def test_other_options_are_passed_on(option: str) -> None:
    check_extra_options([option])
    assert option in render(EffectiveShape(extra_options=(option,)))
