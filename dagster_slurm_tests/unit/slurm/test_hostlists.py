"""Host lists."""

from __future__ import annotations

import pytest

from dagster_slurm.slurm.hostlists import NODES_LIMIT, expand_hostlist


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("nodeA,nodeB[001,003],nodeC", "nodeA nodeB001 nodeB003 nodeC"),
        ("h[001,003-004,006]", "h001 h003 h004 h006"),
        ("c427-032,c429-002", "c427-032 c429-002"),
        ("c457-[011-012]", "c457-011 c457-012"),
        ("ml-16-node-[001-002]", "ml-16-node-001 ml-16-node-002"),
        ("ml-16-node-001,ml-17-node-003", "ml-16-node-001 ml-17-node-003"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[1-2],n[1-2]", "n1 n2"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[98-101]", "n98 n99 n100 n101"),
        ("n[08-10]x,y", "n08x n09x n10x y"),
        ("n[09-101]", " ".join(["n09", *(f"n{i}" for i in range(10, 102))])),
        ("rack[0-1]node[0-1]", "rack0node0 rack0node1 rack1node0 rack1node1"),
        ("single", "single"),
    ],
)
def test_G_1_G_3_G_5_G_6_lists(text: str, nodes: str) -> None:
    assert sorted(expand_hostlist(text)) == sorted(nodes.split())


@pytest.mark.parametrize("word", ["None assigned", "(null)", "", None, "N/A", "None", "  "])
def test_G_6_words_are_no_nodes(word: str | None) -> None:
    assert expand_hostlist(word) == ()


@pytest.mark.parametrize(
    "damage", ["n[1-", "n]", "n[]", "n[a]", "n[3-1]", "a,,b", "n[0-1][2-3", "a b", "n[1-2]&n1", "@g"]
)
def test_text_that_is_no_list_gives_no_nodes(damage: str) -> None:
    assert expand_hostlist(damage) == ()


def test_a_list_of_any_size_is_answered_at_once() -> None:
    assert expand_hostlist("n[1-999999999]") == ()
    assert expand_hostlist("a[1-9999]b[1-9999]") == ()
    assert len(expand_hostlist(f"n[1-{NODES_LIMIT}]")) == NODES_LIMIT
