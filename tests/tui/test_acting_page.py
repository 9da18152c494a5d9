"""What is asked before something is done, what forms accept, and which keys there is room for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.errors import UsageError
from dlrover_lite.core.units import GIB, MIB, MOST_CORES, MOST_MEMORY, Resources
from dlrover_lite.master.nodes.fleet import Fleet
from dlrover_lite.master.nodes.scaling import refusal
from dlrover_lite.protocol.plans import Plan, RolePlan
from dlrover_lite.protocol.questions import ScaleRequest
from dlrover_lite.tui.actions import Aim, why_not
from dlrover_lite.tui.keys import EVERYWHERE, JOB, JOBS, Key
from dlrover_lite.tui.model import Autoscaling, JobRow, NodeRow, RoleNow, Room
from dlrover_lite.tui.pages import acting_page
from dlrover_lite.tui.pages.key_line import KeyShown, line_of, place
from dlrover_lite.tui.text import length, plain
from tests.tui.fixed import ADS, BROKEN, DETAIL, FEED, OLD, ROOM

PS, WORKER, ENDED = DETAIL.nodes[0], DETAIL.nodes[1], DETAIL.nodes[3]


# --- why not ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (None, "No job is chosen"),
        (BROKEN, f"{BROKEN.id} has ended"),
        (msgspec.structs.replace(ADS, directory=""), f"{ADS.id} isn't on this machine"),
        (FEED, f"The master of {FEED.id} belongs to another user, jo"),
    ],
)
@pytest.mark.parametrize(
    "action", ["stop", "hold", "accept", "reject", "scale", "resize", "drain", "kill", "checkpoint"]
)
def test_no_action_on_missing_ended_or_others_jobs(action: str, row: JobRow | None, why: str) -> None:
    assert why_not(action, Aim(row), user="mira") == why


def test_a_job_without_nodes_can_only_be_stopped() -> None:
    assert why_not("stop", Aim(FEED)) == ""
    assert "waits for a plan" in why_not("scale", Aim(FEED))


@pytest.mark.parametrize(
    ("action", "node", "why"),
    [
        ("kill", ENDED, "worker-1 has ended"),
        ("drain", ENDED, "worker-1 has ended"),
        ("drain", None, "No node is chosen"),
        ("drain", PS, "ps-0 can't be drained: it is the only parameter server"),
        ("drain", WORKER, ""),
        ("drain", msgspec.structs.replace(WORKER, state="draining"), "worker-0 is about to leave already"),
        ("kill", msgspec.structs.replace(WORKER, state="draining"), ""),
        ("kill", msgspec.structs.replace(WORKER, state="ending"), "worker-0 is being killed already"),
        ("resize", msgspec.structs.replace(WORKER, state="ending"), "worker-0 is about to leave"),
        ("resize", WORKER, ""),
        ("scale", None, ""),
        ("checkpoint", None, ""),
    ],
)
def test_reasons_why_nodes_can_not_be_changed(action: str, node: NodeRow | None, why: str) -> None:
    assert why_not(action, Aim(ADS, DETAIL, node)) == why


def test_a_leaving_worker_is_no_peer_for_draining() -> None:
    leaving = msgspec.structs.replace(DETAIL.nodes[2], state="draining")
    detail = msgspec.structs.replace(DETAIL, nodes=(PS, WORKER, leaving))
    assert "the only worker" in why_not("drain", Aim(ADS, detail, WORKER))


@pytest.mark.parametrize(
    ("autoscaling", "hold", "accept", "reject"),
    [
        (Autoscaling("off"), "off for", "off for", "off for"),
        (Autoscaling("on"), "", "doesn't ask", "Nothing is suggested"),
        (Autoscaling("suggest"), "", "Nothing is suggested", "Nothing is suggested"),
        (Autoscaling("suggest", decision=3), "", "", ""),
        (Autoscaling("suggest", "by hand", decision=3), "", "is paused", ""),
        (Autoscaling("suggest", decision=3, under_way=True), "", "under way already", ""),
        (Autoscaling("on", decision=3, under_way=True), "", "under way already", ""),
        (None, "isn't known", "isn't known", "isn't known"),
    ],
)
def test_pausing_accepting_and_rejecting_follow_the_autoscaling_state(
    autoscaling: Autoscaling | None, hold: str, accept: str, reject: str
) -> None:
    detail = msgspec.structs.replace(DETAIL, autoscaling=autoscaling)
    for action, why in (("hold", hold), ("accept", accept), ("reject", reject)):
        found = why_not(action, Aim(ADS, detail))
        assert (why in found) if why else not found
        assert why_not(action, Aim(ADS)) == f"Open {ADS.id} first"


# --- questions --------------------------------------------------------------------------------------------------------


def test_a_question_says_what_its_action_does() -> None:
    assert "finds its rows in memory" in (text := acting_page.kill(ADS, DETAIL, PS).consequence)
    assert "goes back to checkpoint 12 of 13:57" in text
    without = msgspec.structs.replace(DETAIL, checkpoints=None)
    assert "the job fails" in acting_page.kill(ADS, without, PS).consequence
    assert "still to do (it has 64)" in acting_page.kill(ADS, DETAIL, WORKER).consequence
    assert "is lost" in acting_page.stop(ADS, without).consequence
    assert "can be resumed" in acting_page.stop(ADS, DETAIL).consequence
    assert "if it takes any" in acting_page.stop(OLD, None).consequence
    assert "1 worker stays" in acting_page.drain(ADS, DETAIL, WORKER).consequence
    assert "Its 4,096 slots move" in acting_page.drain(ADS, DETAIL, PS).consequence


# --- forms ------------------------------------------------------------------------------------------------------------


def test_a_form_says_what_is_possible() -> None:
    workers, servers = acting_page.scale_fields(ROOM)
    assert (workers.value, workers.note) == ("2", "at most 7; each 0.5 cores, 440 MiB")  # of 4 cores, less 0.5
    assert (servers.value, servers.note) == ("1", "at most 6; each 0.5 cores, 151 MiB")
    assert "4 cores and 4 GiB" in acting_page.scale_facts(ROOM)
    by_machine = msgspec.structs.replace(ROOM, cores=None, machine_cores=2.0)
    assert acting_page.scale_fields(by_machine)[0].note.startswith("at most 3;")
    assert "2 cores and 4 GiB" in acting_page.scale_facts(by_machine)
    assert acting_page.scale_fields(msgspec.structs.replace(by_machine, machine_cores=0.5))[0].note.startswith(
        "at most 2;"
    )
    by_memory = msgspec.structs.replace(ROOM, cores=None, machine_cores=99.0)
    assert acting_page.most_nodes(by_memory, ROOM.workers, ROOM.servers) == (4 * GIB - 151 * MIB) // (440 * MIB)
    unbounded = Room(RoleNow(2, 0.5, MIB), RoleNow(1, 0.5, MIB), MOST_MEMORY, MOST_CORES + 3.0, place="prod/ads")
    assert acting_page.most_nodes(unbounded, unbounded.workers, unbounded.servers) is None
    assert "shows in prod/ads itself" in acting_page.scale_facts(unbounded)
    assert acting_page.scale_asked(unbounded, {"workers": "4000", "servers": "1"}) == (4000, None)
    nobody = Room(RoleNow(0, 0.0, 0), RoleNow(1, 0.5, MIB), GIB, 8.0)
    assert acting_page.scale_fields(nobody)[0].note == ""


@pytest.mark.parametrize(
    ("workers", "servers", "found"),
    [("3", "1", (3, None)), (" 3 ", "", (3, None)), ("2", "4", (None, 4)), ("1", "2", (1, 2))],
)
def test_scale_form_numbers_are_parsed(workers: str, servers: str, found: tuple[int | None, int | None]) -> None:
    assert acting_page.scale_asked(ROOM, {"workers": workers, "servers": servers}) == found


@pytest.mark.parametrize(
    ("workers", "servers", "why"),
    [
        ("2", "1", "That is what it has"),
        ("", "", "That is what it has"),
        ("0", "1", "workers: a job needs one at least"),
        ("2", "-1", "PS: -1 is no number of nodes"),
        ("2.5", "1", "workers: 2.5 is no number of nodes"),
    ],
)
def test_impossible_scale_form_numbers_are_refused(workers: str, servers: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        acting_page.scale_asked(ROOM, {"workers": workers, "servers": servers})
    assert why in caught.value.message


def test_scaling_beyond_room_is_refused_in_the_masters_words() -> None:
    def why(room: Room, workers: str, servers: str = "1") -> tuple[str, str]:
        with pytest.raises(UsageError) as caught:
            acting_page.scale_asked(room, {"workers": workers, "servers": servers})
        return caught.value.message, caught.value.hint

    plan = Plan(ps=RolePlan(1, Resources(0.5, 151 * MIB)), worker=RolePlan(2, Resources(0.5, 440 * MIB)))
    fleet = Fleet(plan, Resources(8.0, 4 * GIB))
    for room, workers in ((ROOM, 8), (ROOM, 9), (msgspec.structs.replace(ROOM, memory=GIB), 3)):
        fleet = msgspec.structs.replace(fleet, capacity=Resources(8.0, room.memory))
        refused = refusal(ScaleRequest(workers=workers), fleet, total=Resources(4.0, 64 * GIB))
        assert refused is not None
        assert why(room, str(workers)) == (refused.message, refused.hint)
    small = msgspec.structs.replace(ROOM, cores=None, machine_cores=2.0)
    assert why(small, "8") == (
        "8 workers need 4.5 cores with the parameter servers; this machine has 2",
        "Ask for at most 3.",
    )
    assert acting_page.scale_asked(small, {"workers": "3", "servers": "1"}) == (3, None)
    assert "From a shell" in why(msgspec.structs.replace(small, machine_cores=0.5), "3")[1]
    assert acting_page.scale_asked(
        msgspec.structs.replace(small, machine_cores=0.5), {"workers": "1", "servers": "1"}
    ) == (1, None)


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.5, 64), st.integers(1, 64))
def test_scale_form_takes_the_most_it_calls_possible_and_no_more(
    workers: int, servers: int, cores: float, gib: int
) -> None:
    room = Room(RoleNow(workers, 0.5, GIB), RoleNow(servers, 0.25, GIB), gib * GIB, cores)
    most = acting_page.most_nodes(room, room.workers, room.servers)
    assert most is not None
    if most > workers:
        assert acting_page.scale_asked(room, {"workers": str(most), "servers": ""}) == (most, None)
    with pytest.raises(UsageError):
        acting_page.scale_asked(room, {"workers": str(most + 1), "servers": ""})


def test_resize_form_sizes_are_parsed() -> None:
    asked = acting_page.resize_asked
    assert asked(WORKER, {"cores": "1.5", "memory": "440MiB"}) == (1.5, None)
    assert asked(WORKER, {"cores": "0.5", "memory": "1 GiB"}) == (None, GIB)
    for cores, memory, why in (
        ("0.5", "440MiB", "That is what it has"),
        ("0", "440MiB", "cores: 0 is no number"),
        ("inf", "440MiB", "cores: inf is no number"),
        ("much", "440MiB", "cores: much is no number"),
        ("0.5", "much", "memory: 'much' is not an amount"),
        ("0.5", "0", "no node can have 0"),
    ):
        with pytest.raises(UsageError) as caught:
            asked(WORKER, {"cores": cores, "memory": memory})
        assert why in caught.value.message


@given(st.integers(1, 1 << 50), st.floats(0.01, 1000.0))
def test_filled_in_values_of_the_resize_form_mean_no_change(memory: int, cores: float) -> None:
    node = NodeRow(id="worker-0", role="worker", state="up", cores=cores, memory=memory)
    values = {field.name: field.value for field in acting_page.resize_fields(node)}
    with pytest.raises(UsageError, match="That is what it has"):
        acting_page.resize_asked(node, values)


# --- the keys at the bottom -------------------------------------------------------------------------------------------


def _shown(keys: tuple[Key, ...], why_not: str = "") -> list[KeyShown]:
    return [KeyShown(key, key.short, why_not if key.acts else "") for key in keys if key.short]


@pytest.mark.parametrize("why_not", ["", "it has ended"])
def test_important_keys_fit_into_80_columns(why_not: str) -> None:
    text = plain(line_of(place(_shown((*JOBS, *EVERYWHERE), why_not), 80), 80))
    assert all(label in text for label in ("Open", "Filter", "Logs", "Scale", "Stop", "More", "Back"))
    job = [one for one in _shown((*JOB, *EVERYWHERE), why_not) if one.key.action not in ("accept", "reject")]
    text = plain(line_of(place(job, 80), 80))
    assert all(label in text for label in ("Decisions", "Logs", "Pause", "Scale", "Kill", "Stop", "More", "Back"))
    assert ("(^k Kill)" in text) == bool(why_not)


@given(st.integers(0, 200), st.sets(st.sampled_from([key.action for key in JOB if key.short])))
def test_key_bar_fits_its_line_and_keys_keep_their_places(width: int, greyed: set[str]) -> None:
    keys = _shown((*JOB, *EVERYWHERE))
    placed = place(keys, width)
    assert length(line_of(placed, width)) == width
    assert sum(one.width for one in placed) <= width
    other = place([one._replace(why_not="no" if one.key.action in greyed else "") for one in keys], width)
    assert [(one.x, one.width) for one in placed] == [(one.x, one.width) for one in other]
    text = plain(line_of(placed, width))
    for one in placed:
        assert text[one.x : one.x + one.width] == f" {one.shown.key.label} {one.shown.label} "


def test_questions_name_what_would_be_lost() -> None:
    assert "what it did after checkpoint 12 of 13:57 would be done again" in acting_page.stop(ADS, DETAIL).consequence
    without = msgspec.structs.replace(DETAIL, checkpoints=None)
    assert "from 4.21 M samples is lost" in acting_page.stop(ADS, without).consequence
    assert (
        "If it takes none, what it has learned from 4.21 M samples is lost" in acting_page.stop(ADS, None).consequence
    )
    unheard = msgspec.structs.replace(without, heard=False)
    assert acting_page.stop(ADS, unheard) == acting_page.stop(ADS, None)


def test_the_form_for_one_node_says_what_there_is_for_it_beside_the_others() -> None:
    worker = DETAIL.nodes[1]
    assert "All together" not in acting_page.resize_facts(worker)
    said = acting_page.resize_facts(
        worker, ROOM
    )  # 4 cores and 4 GiB, of which two workers and a server of 0.5 have some
    assert "beside the others, worker-0 up to 3 cores and 3.42 GiB." in said
