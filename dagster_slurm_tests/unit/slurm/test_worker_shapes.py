"""Worker shapes: inheritance, forms, JSON."""

from __future__ import annotations

import datetime
import json
import pickle
from typing import Any

import attrs
import pytest

from dagster_slurm.allocations.config import INHERIT, EffectiveShape, SlurmWorkerAllocationConfig, inherit
from dagster_slurm.errors import ConfigurationError

BASE = EffectiveShape(
    partition="gpu-a",
    account="acc",
    qos="short",
    nodes=2,
    gpus_per_node=4,
    mem="8G",
    time_limit="2:00:00",
    nodelist="n[1-2]",
    exclude="n3",
    extra_options=("--exclusive",),
    head_only=True,
    drain_window_seconds=300,
    ray_start_args=("--object-store-memory=1000000000",),
    ray_resources=(("disk", 1.0),),
)


def test_nothing_stated_inherits_everything_that_can_be() -> None:
    expected = attrs.evolve(BASE, nodelist=None, head_only=False)
    assert inherit(None, BASE) == inherit(SlurmWorkerAllocationConfig(), BASE) == expected


def test_stated_extra_options_replace_the_inherited_ones() -> None:
    other = SlurmWorkerAllocationConfig(extra_options=("--licenses=a:1",))
    assert inherit(other, BASE).extra_options == ("--licenses=a:1",)
    assert inherit(SlurmWorkerAllocationConfig(extra_options=None), BASE).extra_options == ()


def test_without_a_base_defaults_apply() -> None:
    shape = inherit(SlurmWorkerAllocationConfig(partition="cpu"), None)
    assert shape == EffectiveShape(partition="cpu")
    assert (shape.nodes, shape.drain_window_seconds, shape.time_limit_seconds) == (1, 120, None)


def test_a_stated_value_wins_and_none_clears() -> None:
    config = SlurmWorkerAllocationConfig(partition="gpu-b", qos=None, nodes=None, gpus_per_node=0, exclude=None)
    shape = inherit(config, BASE)
    assert (shape.partition, shape.qos, shape.nodes, shape.gpus_per_node, shape.exclude) == ("gpu-b", None, 1, 0, None)
    assert shape.account == "acc"


def test_P_5_a_memory_form_replaces_the_inherited_other_form() -> None:
    shape = inherit(SlurmWorkerAllocationConfig(mem_per_cpu="2G"), BASE)
    assert (shape.mem, shape.mem_per_cpu, shape.mem_per_gpu) == (None, "2G", None)
    assert inherit(SlurmWorkerAllocationConfig(mem="16G"), BASE).mem == "16G"
    assert inherit(SlurmWorkerAllocationConfig(mem_per_cpu=None), BASE).mem == "8G"
    assert inherit(SlurmWorkerAllocationConfig(mem=None), BASE).mem is None


@pytest.mark.parametrize("shape", [SlurmWorkerAllocationConfig, EffectiveShape])
def test_P_5_two_memory_forms_are_refused(shape: type) -> None:
    with pytest.raises(ConfigurationError, match="mem and mem_per_gpu") as caught:
        shape(mem="8G", mem_per_gpu="2G")
    assert caught.value.field == "SlurmWorkerAllocationConfig.mem_per_gpu"


@pytest.mark.parametrize(
    ("stated", "seconds"),
    [
        ("30", 1800),
        ("1:00:00", 3600),
        ("1-2", 93600),
        (datetime.timedelta(hours=30), 108000),
        (datetime.timedelta(milliseconds=1), 1),
        ("UNLIMITED", None),
        ("0", None),
    ],
)
def test_E_6_time_limits(stated: Any, seconds: int | None) -> None:
    assert inherit(SlurmWorkerAllocationConfig(time_limit=stated), None).time_limit_seconds == seconds


def test_equal_time_limits_are_equal_shapes() -> None:
    spellings = ["60", "60:00", "1:00:00", "0-1", datetime.timedelta(hours=1)]
    shapes = {inherit(SlurmWorkerAllocationConfig(time_limit=text), None) for text in spellings}
    assert len(shapes) == 1
    unlimited = EffectiveShape(time_limit="0")
    assert unlimited == EffectiveShape(time_limit="infinite")
    assert unlimited != EffectiveShape(time_limit=None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partition", ""),
        ("partition", "a\nb"),
        ("account", 5),
        ("constraint", "a\x7f"),
        ("nodes", 0),
        ("nodes", -1),
        ("nodes", True),
        ("nodes", "2"),
        ("nodes", 1.0),
        ("gpus_per_node", -1),
        ("gpus_per_node", "a100:"),
        ("gpus_per_node", "two"),
        ("gpus_per_node", "2,2"),
        ("cpus_per_task", 0),
        ("mem", "8 G"),
        ("mem", "-8G"),
        ("mem", "1.5G"),
        ("mem_per_cpu", 8),
        ("time_limit", 30),
        ("time_limit", 3600.0),
        ("time_limit", "1h"),
        ("time_limit", datetime.timedelta(0)),
        ("time_limit", datetime.timedelta(seconds=-5)),
        ("extra_options", "--exclusive"),
        ("extra_options", ("--comment=x",)),
        ("extra_options", ("--exclusive\n",)),
        ("head_only", "no"),
        ("drain_window_seconds", -1),
        ("drain_window_seconds", 65_536),
        ("ray_start_args", ("a\x00",)),
        ("ray_resources", {"disk": -1}),
        ("ray_resources", {"disk": float("inf")}),
        ("ray_resources", {"disk": float("nan")}),
        ("ray_resources", {"disk": "1"}),
        ("ray_resources", {"": 1}),
        ("ray_resources", 5),
    ],
)
def test_a_value_that_cannot_be_used_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SlurmWorkerAllocationConfig(**{field: value})
    assert caught.value.field == f"SlurmWorkerAllocationConfig.{field}"


@pytest.mark.parametrize(
    ("stated", "kept"), [(2, 2), ("2", 2), ("a100:2", "a100:2"), (0, 0), ("a100:1,v100:1", "a100:1,v100:1")]
)
def test_gpu_counts(stated: int | str, kept: int | str) -> None:
    assert EffectiveShape(gpus_per_node=stated).gpus_per_node == kept


@pytest.mark.parametrize(("stated", "kept"), [("8g", "8G"), ("8GB", "8G"), ("500", "500"), ("0", "0"), (" 1T ", "1T")])
def test_memory_sizes(stated: str, kept: str) -> None:
    assert EffectiveShape(mem=stated).mem == kept


def test_a_short_walltime_is_not_all_warning() -> None:
    assert EffectiveShape(time_limit="1").signal_window_seconds == 30
    assert EffectiveShape(time_limit="1:00:00").signal_window_seconds == 120
    assert EffectiveShape().signal_window_seconds == 120


def test_json_round_trip_keeps_equality_hash_and_digest() -> None:
    read = EffectiveShape.from_json(json.loads(json.dumps(BASE.to_json())))
    assert read == BASE
    assert hash(read) == hash(BASE)
    assert read.digest == BASE.digest
    assert EffectiveShape.from_json(EffectiveShape().to_json()) == EffectiveShape()


def test_the_digest_is_stable() -> None:
    # A changed digest makes every recorded shape unknown: change this value only together with a migration.
    assert EffectiveShape().digest == "44136fa355b3678a"
    assert EffectiveShape(ray_resources={"a": 1}).digest == EffectiveShape(ray_resources=(("a", 1.0),)).digest  # type: ignore[arg-type]
    assert EffectiveShape(nodes=2).digest != EffectiveShape().digest


@pytest.mark.parametrize("data", [{"colour": "red"}, {"nodes": 0}, [], "x", None, {"time_limit": 5}])
def test_damaged_json_is_refused(data: Any) -> None:
    with pytest.raises(ConfigurationError):
        EffectiveShape.from_json(data)


def test_configs_are_values() -> None:
    config = SlurmWorkerAllocationConfig(partition="p", ray_resources={"b": 2, "a": 1}, extra_options=["--exclusive"])  # type: ignore[arg-type]
    assert config == SlurmWorkerAllocationConfig(
        partition="p", ray_resources={"a": 1, "b": 2}, extra_options=("--exclusive",)
    )
    assert config in {config}
    assert pickle.loads(pickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(config)).account is INHERIT
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.partition = "q"  # type: ignore[misc]


def test_what_is_no_object_is_no_shape() -> None:
    with pytest.raises(ConfigurationError, match="is not a worker shape"):
        EffectiveShape.from_json(["partition"])  # type: ignore[arg-type]


def test_what_is_left_out_reads_so() -> None:
    assert "partition=INHERIT" in repr(SlurmWorkerAllocationConfig())
