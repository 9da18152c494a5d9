"""The agent of a pod keeps the contract over TCP; and what only it does: it ends with its pod, and reads its container's control group."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dlrover_lite.backends.host import cgroups
from dlrover_lite.backends.keeper.agent import Silence
from dlrover_lite.core.errors import BackendError
from dlrover_lite.core.units import MIB, Resources
from dlrover_lite.transport.curve import JobKey
from tests.backends.agent_rig import HOST, AgentRig, agent, make_groups
from tests.backends.contract import BackendContract, Scripted
from tests.backends.support import until


@pytest.fixture(scope="class")
def scripted(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    groups = make_groups() if request.cls.has_its_own_group else {}
    if isinstance(groups, str):
        pytest.skip(groups)
    with agent(groups) as rig:
        yield rig.scripted()


class TestAgent(BackendContract):
    """Where other processes are in the same control group: those of each node are looked at."""

    has_its_own_group = False
    limits_each_node = False
    starts_all_nodes = False
    overlooks_unmapped_memory = True


class TestAgentInItsOwnGroup(BackendContract):
    """As in a container."""

    has_its_own_group = True
    limits_each_node = False
    starts_all_nodes = False
    counted_beside = 192 * MIB


def test_an_agent_names_its_host_and_listens_at_its_ip() -> None:
    with agent() as rig:
        (host,) = rig.client().capacity()
        assert host.name == HOST
        assert f"listens at tcp://{rig.ip}:7071" in rig.printed()
        assert not [name for name in os.listdir(rig.scratch / "run") if name.startswith("keeper")]  # noqa: PTH208


def test_nobody_without_the_jobs_key_is_answered() -> None:
    with agent() as rig:
        rig.client().observe()
        with pytest.raises(BackendError, match="did not answer"):
            rig.client(JobKey.generate(), deadline_seconds=0.5).observe()


def test_a_log_is_read_in_parts_also_of_a_node_that_has_ended() -> None:
    with agent() as rig:
        scripted, client = rig.scripted(), rig.client()
        node = scripted.launch("exit:0")
        scripted.event(node, "exited")
        whole = client.read_log(node, 0, 1 << 20)
        assert whole.data == f"node {node} of job\n".encode()
        part = client.read_log(node, 5, 3)
        assert (part.data, part.size) == (whole.data[5:8], len(whole.data))
        assert client.read_log(node, len(whole.data), 100).data == b""
        assert client.read_log(node, 1 << 50, 100).size == len(whole.data)
        with pytest.raises(BackendError, match="no log of 'nobody'"):
            client.read_log("nobody", 0, 100)
        with pytest.raises(BackendError, match="no log of"):
            client.read_log("../recipe", 0, 100)


def test_lines_of_nodes_are_on_the_agents_output_with_their_ids_where_there_are_several() -> None:
    with agent() as rig:
        scripted = rig.scripted()
        first = scripted.launch("exit:0")
        until(lambda: f"\nnode {first} of job\n" in rig.printed(), "the first node's line")
        second = scripted.launch("raise:out of luck")
        until(lambda: f"\n{second}: RuntimeError: out of luck\n" in rig.printed(), "the second node's lines")
        assert rig.printed().count(f"node {first} of job") == 1


def test_an_agent_that_is_told_to_end_has_its_nodes_end_first() -> None:
    with agent(grace_seconds=1000.0) as rig:
        scripted = rig.scripted()
        node = scripted.launch("stay")
        scripted.wait_for_output(node, "node ")
        assert rig.process is not None
        rig.process.send_signal(signal.SIGTERM)
        assert rig.wait() == 0
        assert not rig.alive()


def test_a_deaf_node_is_killed_after_its_grace_when_its_pod_is_ended() -> None:
    with agent(grace_seconds=0.3) as rig:
        scripted = rig.scripted()
        node = scripted.launch("ignore")
        scripted.wait_for_output(node, "deaf")
        assert rig.process is not None
        rig.process.send_signal(signal.SIGTERM)
        assert rig.wait() == 0
        assert f"{node}: killed after 0.3 s of grace" in rig.printed()


def test_an_agent_whose_nodes_have_their_grace_sleeps_whoever_is_silent() -> None:
    with agent(grace_seconds=1000.0, idle_seconds=3.0) as rig:
        assert rig.process is not None
        scripted = rig.scripted()
        node = scripted.launch("ignore")
        scripted.wait_for_output(node, "deaf")
        rig.process.send_signal(signal.SIGTERM)
        until(lambda: "Ending: " in rig.printed(), "the signal to be heeded")
        of_agent, began = psutil.Process(rig.process.pid), time.monotonic()
        before = sum(of_agent.cpu_times()[:2])
        until(lambda: time.monotonic() - began > 4.0, "more than its patience")
        assert sum(of_agent.cpu_times()[:2]) - before < 0.2
        rig.node(node).kill()
        assert rig.wait() == 0


def test_nodes_of_a_pod_that_is_ended_were_preempted() -> None:
    with agent(grace_seconds=1000.0) as rig:
        scripted = rig.scripted()
        deaf, node = scripted.launch("ignore"), scripted.launch("stay")
        scripted.wait_for_output(deaf, "deaf")
        scripted.wait_for_output(node, "node ")
        assert rig.process is not None
        rig.process.send_signal(signal.SIGTERM)
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.detail) == ("Preempted", "the pod is being ended")
        with pytest.raises(BackendError, match="the pod is being ended"):
            scripted.launch("stay")
        scripted.backend.terminate(deaf, grace_seconds=0)
        assert rig.wait() == 0


def test_an_agent_that_is_to_leave_waits_for_its_nodes() -> None:
    with agent() as rig:
        scripted = rig.scripted()
        node = scripted.launch("stay")
        scripted.event(node, "started")
        scripted.backend.leave()
        scripted.backend.leave()
        with pytest.raises(BackendError, match="the pod is about to end"):
            scripted.launch("stay")
        assert scripted.backend.observe() is not None
        scripted.backend.terminate(node, grace_seconds=0)
        assert rig.wait() == 0


def test_a_template_that_is_killed_is_started_again() -> None:
    with agent() as rig:
        scripted = rig.scripted()
        node = scripted.launch("stay")
        scripted.wait_for_output(node, "node ")  # it is called as the template until it runs
        (template,) = [process for process in rig.descendants() if process.name() == "dl:template"]
        template.kill()
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.detail) == ("Preempted", "the process that starts nodes was killed")
        assert scripted.event(scripted.launch("exit:3"), "exited").reason == "UserError"


def test_a_node_that_waited_while_the_template_was_killed_ends_for_its_own_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "slow.py").write_text(f"open({str(tmp_path / 'gate')!r}).read()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with agent(imports={"worker": ["slow"]}) as rig:
        scripted = rig.scripted()
        node = scripted.launch("kill:9")
        template = until(rig.descendants, "the template")[0]
        template.kill()
        until(lambda: "The template is started again" in rig.printed(), "another template")
        (tmp_path / "gate").write_text("")
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.detail) == ("Killed", "SIGKILL, sent by the system or another process")


def test_a_node_over_its_containers_limit_is_killed_and_the_agent_goes_on() -> None:
    groups = make_groups(memory_limit=192 * MIB)
    if isinstance(groups, str):
        pytest.skip(groups)
    with agent(groups) as rig:
        scripted = rig.scripted()
        small = scripted.launch("kill:9", "ps")
        assert scripted.event(small, "exited").reason == "Killed"
        node = scripted.launch(f"allocate:{1024 * MIB}", "ps", follows=small)
        ended = scripted.event(node, "exited")
        assert (ended.reason, ended.exit_code) == ("OOMKilled", -9)
        assert ended.detail.startswith("over its container's memory limit of 192 MiB (peak 19")
        follower = scripted.launch("kill:9", "ps", follows=node)
        assert scripted.event(follower, "exited").reason == "Killed"


def test_an_arena_outlives_its_node_and_grows_past_the_first_limit_when_that_is_raised() -> None:
    groups = make_groups(memory_limit=256 * MIB)
    if isinstance(groups, str):
        pytest.skip(groups)
    small, large = 96 * MIB, 384 * MIB
    with agent(groups) as rig:
        scripted = rig.scripted()
        first = scripted.launch(f"fill:{small},{small}", "ps")
        scripted.wait_for_output(first, f"filled {small} found 0")
        rig.node(first).kill()
        assert scripted.event(first, "exited").reason == "Killed"
        second = scripted.launch(f"fill:{small},{large}", "ps", follows=first)
        scripted.wait_for_output(second, f"filled {small} found {small}")
        until(lambda: scripted.usage(second).shared_memory >= small, "the arena to count for the follower")
        rig.node(second).send_signal(signal.SIGUSR1)  # within the first limit there is no room
        assert scripted.event(second, "exited").reason == "OOMKilled"
        cgroups.write(groups["memory"] / "memory.limit_in_bytes", 768 * MIB)  # as the kubelet does
        third = scripted.launch(f"fill:{small},{large}", "ps", follows=second, memory=768 * MIB)
        scripted.wait_for_output(third, f"filled {small} found ")
        rig.node(third).send_signal(signal.SIGUSR1)
        scripted.wait_for_output(third, f"filled {large} found ")
        assert scripted.usage(third).memory >= large
        scripted.end(third)
        assert cgroups.read_number(groups["memory"] / "memory.usage_in_bytes") < large


def test_a_limit_raised_while_a_node_runs_lets_its_arena_grow() -> None:
    groups = make_groups(memory_limit=256 * MIB)
    if isinstance(groups, str):
        pytest.skip(groups)
    with agent(groups) as rig:
        scripted = rig.scripted()
        node = scripted.launch(f"fill:{64 * MIB},{384 * MIB}", "ps", memory=256 * MIB)
        scripted.wait_for_output(node, "filled")
        (host,) = scripted.backend.capacity()
        assert host.resources.memory == 256 * MIB
        cgroups.write(groups["memory"] / "memory.limit_in_bytes", 768 * MIB)
        scripted.backend.resize(node, Resources(1.0, 768 * MIB))
        rig.node(node).send_signal(signal.SIGUSR1)
        scripted.wait_for_output(node, f"filled {384 * MIB} found {64 * MIB}")
        (host,) = scripted.backend.capacity()
        assert host.resources.memory == 768 * MIB
        with pytest.raises(BackendError, match="limited to 256 MiB of memory"):
            scripted.backend.resize(node, Resources(1.0, 256 * MIB))


def test_a_template_that_cannot_be_started_is_told_of_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "broken.py").write_text(f"open({str(tmp_path / 'gate')!r}).read()\nimport surely_not_installed\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with agent(imports={"worker": ["broken"]}) as rig:
        scripted = rig.scripted()
        node = scripted.launch("stay")
        (tmp_path / "gate").write_text("")  # when it is there to read it
        ended = scripted.event(node, "exited")
        assert ended.reason == "Unknown"
        assert "No module named 'surely_not_installed'" in ended.detail
        with pytest.raises(BackendError, match="No module named 'surely_not_installed'"):
            scripted.launch("stay")


def test_an_agent_without_its_environment_says_what_is_missing() -> None:
    rig = AgentRig()
    try:
        del rig.environment["DLROVER_LITE_POD_IP"]
        rig.start()
        assert rig.wait() == 1
        assert "lacks DLROVER_LITE_POD_IP" in rig.printed()
    finally:
        rig.close()


def test_silence_lasts_from_the_last_request() -> None:
    silence = Silence(600.0, now=100.0)
    silence.note(0, now=500.0)
    assert not silence.is_over(699.9) and silence.is_over(700.0)
    silence.note(1, now=600.0)
    silence.note(1, now=1100.0)
    assert not silence.is_over(1199.9) and silence.is_over(1200.0)


@pytest.mark.parametrize("leaves", [False, True])
def test_an_agent_that_nobody_asks_ends_and_its_nodes_with_it(leaves: bool) -> None:
    with agent(idle_seconds=3.0) as rig:
        scripted = rig.scripted()
        node = scripted.launch("ignore")
        scripted.wait_for_output(node, "deaf")
        if leaves:
            scripted.backend.leave()
        assert rig.wait() == 0
        assert "Nobody has asked for anything for 3 s" in rig.printed()
        assert not rig.alive()
