"""What a master says where `kubectl describe` shows it: few events, each with a truthful reason, and none where that isn't allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlrover_lite.backends.k8s.nodes.master_events import EVENT_SECONDS, MasterEvents
from tests.backends.support import until
from tests.k8s.cluster import ApiServer, needs_cluster
from tests.k8s.pods_by_hand import ByHand, pods_by_hand
from tests.k8s.proxy import Fault, Proxy

SENTENCE = "decision 3 is carried out: 2 more workers end it 40 s sooner"


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[Proxy]:
    found = Proxy(api_server)
    yield found
    found.stop()


@pytest.fixture
def by_hand(proxy: Proxy, tmp_path: Path) -> Iterator[ByHand]:
    with pods_by_hand(proxy, tmp_path / "job") as found:
        yield found


def test_what_comes_between_two_events_is_told_by_the_second() -> None:
    events = MasterEvents()
    assert events.take(0.0) == []
    events.add("one", "decision")
    assert events.take(0.0) == [("Decided", "one")]
    events.add("two", "decision")
    events.add("three", "decision")
    assert events.take(EVENT_SECONDS - 1) == []
    assert events.take(EVENT_SECONDS) == [("Decided", "two; three")]
    assert events.take(10 * EVENT_SECONDS) == []


def test_each_line_is_in_an_event_with_the_reason_that_it_has() -> None:
    events = MasterEvents()
    events.add("checkpoint 3 is complete in 0.20 s: 10 rows", "checkpoint")
    events.add(SENTENCE, "decision")
    events.add("was killed and is started again (restart 1)", "")
    for number in range(4, 10):
        events.add(f"checkpoint {number}", "checkpoint")
    told = dict(events.take(0.0))
    assert list(told) == ["Checkpoint", "Decided", "Noted"]
    assert told["Decided"] == SENTENCE and told["Noted"].startswith("was killed")
    assert told["Checkpoint"].startswith("2 before these") and told["Checkpoint"].endswith("checkpoint 9")


def test_a_thousand_decisions_a_minute_are_few_short_events() -> None:
    events, told = MasterEvents(), []
    for at in range(1000):
        events.add(f"decision {at}", "decision")
        told += [message for _, message in events.take(0.06 * at)]
    assert len(told) <= 1 + 60 / EVENT_SECONDS
    assert told[0] == "decision 0" and all(len(one) < 200 for one in told)
    assert "before these are in `dlrover-lite story`" in told[1] and told[1].endswith("decision 500")


def posted(proxy: Proxy) -> int:
    return sum(one.startswith("POST") and one.endswith("/events") for one in proxy.requests)


@needs_cluster
def test_a_decision_is_an_event_on_the_stateful_set(by_hand: ByHand) -> None:
    by_hand.backend.tell(SENTENCE, "decision")
    found = until(lambda: by_hand.admin.list("Event")["items"], "the event")
    (event,) = found
    assert (event["message"], event["reason"], event["type"]) == (SENTENCE, "Decided", "Normal")
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("StatefulSet", "ads-1", by_hand.settings.owner_uid)


@needs_cluster
def test_without_the_right_it_is_said_once_and_pods_are_made_all_the_same(
    by_hand: ByHand, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlrover_lite.backends.k8s.nodes.master_events.EVENT_SECONDS", 0.0)
    proxy.faults.append(Fault("POST", "/events", 403, "Forbidden"))
    for number in range(3):
        by_hand.backend.tell(f"{SENTENCE} ({number})")
        by_hand.launch(f"worker-{number}")
        by_hand.start(f"ads-1-worker-{number}")  # made by the same thread, after the event
    assert posted(proxy) == 1
    said = [line for line in by_hand.said if "kubectl describe" in line]
    assert len(said) == 1 and "Forbidden" in said[0]
