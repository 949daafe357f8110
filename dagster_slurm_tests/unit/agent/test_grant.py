"""What Ray gets of an allocation, from the environment that Slurm sets."""

from __future__ import annotations

import pytest

from dagster_slurm.agent.grant import (
    MEBIBYTE,
    SMALLEST_OBJECT_STORE_BYTES,
    Grant,
    Host,
    device_count,
    granted_cpus,
    granted_gpus,
    granted_memory,
    per_node_counts,
    ray_share,
    read_grant,
    without_step_variables,
)

GIBIBYTE = 1024 * MEBIBYTE
HOST = Host(
    cpus=64,
    memory_bytes=256 * GIBIBYTE,
    shared_memory_bytes=128 * GIBIBYTE,
    shared_memory_free_bytes=128 * GIBIBYTE,
)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", (8,)),
        ("8(x2),4", (8, 8, 4)),
        ("2,4(x3)", (2, 4, 4, 4)),
        ("", ()),
        (None, ()),
        ("8(x2", ()),
        ("eight", ()),
    ],
)
def test_counts_of_all_nodes(text: str | None, counts: tuple[int, ...]) -> None:
    assert per_node_counts(text) == counts


def test_cpus_come_from_the_allocation_not_from_the_step() -> None:
    environ = {"SLURM_JOB_CPUS_PER_NODE": "8(x2),4", "SLURM_CPUS_ON_NODE": "1"}
    assert [granted_cpus(environ, index, 64) for index in range(3)] == [8, 8, 4]


def test_cpus_without_the_allocations_list() -> None:
    assert granted_cpus({"SLURM_CPUS_ON_NODE": "6"}, 0, 64) == 6
    assert granted_cpus({"SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": "6"}, 1, 64) == 6
    assert granted_cpus({}, 0, 64) == 64


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (None, None),
        ("", 0),
        ("NoDevFiles", 0),
        ("none", 0),
        ("-1", 0),
        ("0", 1),
        ("0,1,3", 3),
        ("0-3", 4),
        ("0,2-3", 3),
        ("3-0", 0),
        ("GPU-8f3a,GPU-77aa", 2),
        ("MIG-1c", 1),
    ],
)
def test_O_11_device_lists_and_words(text: str | None, count: int | None) -> None:
    assert device_count(text) == count


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, 0),
        ({"SLURM_GPUS_ON_NODE": "2"}, 2),
        ({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 2),
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"SLURM_JOB_GPUS": "2,3"}, 2),
        ({"SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"SLURM_GPUS_ON_NODE": "(null)", "SLURM_JOB_GPUS": "0"}, 1),
    ],
)
def test_O_10_ray_gets_the_granted_gpus_and_never_more_than_are_visible(environ: dict[str, str], gpus: int) -> None:
    assert granted_gpus(environ) == gpus


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "4096"}, 4 * GIBIBYTE),
        ({"SLURM_MEM_PER_NODE": "0"}, HOST.memory_bytes),
        ({"SLURM_MEM_PER_NODE": "999999999"}, HOST.memory_bytes),
        ({"SLURM_MEM_PER_CPU": "1024"}, 8 * GIBIBYTE),
        ({"SLURM_MEM_PER_GPU": "2048"}, 4 * GIBIBYTE),
        ({"DAGSTER_SLURM_GRANT_MEM_PER_NODE": "2048", "SLURM_MEM_PER_NODE": "64"}, 2 * GIBIBYTE),
        ({"SLURM_MEM_PER_NODE": "16G"}, 32 * GIBIBYTE),
        ({}, 32 * GIBIBYTE),
    ],
)
def test_memory_of_the_grant(environ: dict[str, str], expected: int) -> None:
    assert granted_memory(environ, 8, 2, HOST) == expected


def test_memory_by_gpu_without_a_gpu_falls_back_to_the_share_of_cpus() -> None:
    assert granted_memory({"SLURM_MEM_PER_GPU": "2048"}, 8, 0, HOST) == 32 * GIBIBYTE


def test_O_4_the_nodes_name_is_slurms_and_only_else_the_hosts() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "q1-dy-c1-1", "SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "2"}
    found = read_grant(environ | {"SLURM_JOB_CPUS_PER_NODE": "8,4"}, HOST, "ip-10-0-90-6")
    assert (found.slurm_job_id, found.node, found.node_index, found.node_count, found.cpus) == (
        "7",
        "q1-dy-c1-1",
        1,
        2,
        4,
    )
    assert read_grant({}, HOST, "ip-10-0-90-6").node == "ip-10-0-90-6"


def grant(memory_bytes: int, *, cpus: int = 8, gpus: int = 2) -> Grant:
    return Grant("7", "n1", 0, 1, cpus, gpus, memory_bytes)


def test_the_object_store_and_the_rest_fit_into_the_grant() -> None:
    share = ray_share(grant(32 * GIBIBYTE), HOST, takes_work=True)
    assert (share.cpus, share.gpus) == (8, 2)
    assert share.object_store_bytes == int(0.3 * 32 * GIBIBYTE)
    assert share.object_store_bytes + share.memory_bytes < 32 * GIBIBYTE


def test_object_stores_of_a_full_host_fit_into_its_shared_memory() -> None:
    small_shm = Host(
        cpus=64, memory_bytes=256 * GIBIBYTE, shared_memory_bytes=GIBIBYTE, shared_memory_free_bytes=GIBIBYTE
    )
    stores = [ray_share(grant(64 * GIBIBYTE), small_shm, takes_work=True).object_store_bytes for _ in range(4)]
    assert sum(stores) <= GIBIBYTE


def test_a_shared_memory_that_others_have_filled_is_respected_down_to_rays_minimum() -> None:
    full = Host(cpus=64, memory_bytes=256 * GIBIBYTE, shared_memory_bytes=GIBIBYTE, shared_memory_free_bytes=0)
    assert ray_share(grant(GIBIBYTE), full, takes_work=True).object_store_bytes == SMALLEST_OBJECT_STORE_BYTES


def test_the_users_object_store_wins() -> None:
    share = ray_share(grant(32 * GIBIBYTE), HOST, takes_work=True, object_store_bytes=GIBIBYTE)
    assert share.object_store_bytes == GIBIBYTE


def test_a_tiny_grant_still_gives_a_positive_memory() -> None:
    assert ray_share(grant(64 * MEBIBYTE), HOST, takes_work=True).memory_bytes == MEBIBYTE


def test_a_head_that_takes_no_work_has_no_cpus_and_no_gpus() -> None:
    share = ray_share(grant(32 * GIBIBYTE), HOST, takes_work=False)
    assert (share.cpus, share.gpus) == (0, 0)


def test_P_1_step_variables_stay_out_of_ray_and_payloads() -> None:
    dropped = {
        "SLURM_JOB_ID": "1",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURMD_NODENAME": "n1",
        "SBATCH_RESERVATION": "old",
        "SRUN_DEBUG": "3",
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
        "PMI2_RANK": "0",
        "PMIX_SERVER_URI": "x",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_AUTH_TOKEN": "secret",
        "DAGSTER_SLURM_NODE_IP": "10.0.0.1",
        "DAGSTER_SLURM_GRANT_MEM_PER_CPU": "50",
        "DAGSTER_SLURM_WORK_FILE": "/other/work.json",
    }
    kept = {
        "PATH": "/bin",
        "DAGSTER_SLURM_BOX": "/box",
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURMY": "1",
        "RAY_memory_usage_threshold": "0.9",
    }
    assert without_step_variables(dropped | kept) == kept
