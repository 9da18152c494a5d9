"""Hosts that nodes are wanted on, and who leaves first: not who was just given memory for what the others hold."""

from __future__ import annotations

import msgspec

from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.master.nodes.lifecycle import Node
from dlrover_lite.master.nodes.places import Places, given_more_last


def server(number: int, memory: int, host: str = "a") -> Node:
    return Node(f"ps-{number}", "ps", Resources(1.0, memory), host=host)


def test_servers_with_much_more_memory_leave_last_and_others_in_their_order() -> None:
    nodes = [server(0, GIB), server(1, 4 * GIB), server(2, GIB + 50 * MIB), server(3, GIB)]
    assert [node.id for node in given_more_last(nodes)] == ["ps-0", "ps-2", "ps-3", "ps-1"]
    nodes[0] = msgspec.structs.replace(nodes[0], wanted=Resources(1.0, 4 * GIB))
    assert [node.id for node in given_more_last(nodes)] == ["ps-2", "ps-3", "ps-0", "ps-1"]


def test_servers_of_hosts_with_too_many_leave_first_all_the_same() -> None:
    nodes = given_more_last([server(0, 4 * GIB, "a"), server(1, GIB, "b"), server(2, 4 * GIB, "b")])
    order = Places({"a": 0, "b": 1}).leave_first(nodes, nodes)
    assert [node.id for node in order] == ["ps-1", "ps-0", "ps-2"]
