"""Recorded decisions: made again from their stored inputs, compared, and, where a change is meant, renewed.

    python -m tests.brain.recording              what would be decided otherwise now; ends with 1 if anything would
    python -m tests.brain.recording --accept     keep the inputs, store the choices as they come out now
    python -m tests.brain.recording --record     simulate the jobs again: new inputs and new choices

Names of histories may follow, without ``.jsonl``. ``histories/README.md`` says when to use which.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.brain.healing.health import heal
from dlrover_lite.brain.healing.mitigation import HealInputs
from dlrover_lite.brain.planning.decision import Decision, decide
from dlrover_lite.brain.planning.job_view import RoundInputs
from dlrover_lite.brain.planning.prescale import StartInputs, initial_plan

DIRECTORY = Path(__file__).parent / "histories"
_DIGITS = 7
"""Of recorded numbers: what is decided from is what is stored."""
_SAME = 1e-4
"""Relative: predictions may differ by so much (another processor rounds in another way, and a fit's covariance has been rounded)."""


class Initial(msgspec.Struct, frozen=True, tag="initial"):
    inputs: StartInputs
    choices: Any = None


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    inputs: RoundInputs
    choices: Any = None


class Heal(msgspec.Struct, frozen=True, tag="heal"):
    inputs: HealInputs
    choices: Any = None


Step = Initial | Scale | Heal


class History(msgspec.Struct, frozen=True):
    about: str
    steps: list[Step]


def decided(step: Step) -> tuple[Decision, ...]:
    match step:
        case Initial():
            return (initial_plan(step.inputs),)
        case Scale():
            return decide(step.inputs).decisions
        case Heal():
            return heal(step.inputs)


def recorded(step: Step) -> Step:
    """As it is stored: its inputs rounded, with what is decided from those."""
    rounded = msgspec.convert(_rounded(msgspec.to_builtins(step)), type(step))
    return msgspec.structs.replace(rounded, choices=[_choice(one) for one in decided(rounded)])


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value


def _choice(decision: Decision) -> Any:
    """What counts of a decision: not its words, and not the plans that weren't chosen."""
    found = {
        "job": decision.job,
        "action": decision.action,
        "choice": decision.choice,
        "plan": decision.plan,
        "throughput": decision.predicted and decision.predicted.throughput,
        "memory": decision.memory,
    }
    if (treatment := decision.treatment) is not None:
        found |= {"node": treatment.node, "cause": treatment.cause, "act": treatment.act}
    return _rounded(msgspec.to_builtins({name: value for name, value in found.items() if value is not None}))


def differences(was: Any, now: Any, path: str = "") -> Iterator[str]:
    """In words, one for each place."""
    match was, now:
        case dict(), dict():
            for key in [*was, *(key for key in now if key not in was)]:
                yield from differences(was.get(key), now.get(key), f"{path}.{key}" if path else key)
        case list(), list() if len(was) == len(now):
            for at, (a, b) in enumerate(zip(was, now, strict=True)):
                name = a.get("job") if isinstance(a, dict) and "node" not in a else None
                yield from differences(a, b, f"{path}[{name or at}]")
        case (int() | float(), int() | float()) if not isinstance(was, bool):
            if abs(was - now) > _SAME * max(abs(was), abs(now)):
                yield f"{path} was {was}, and is now {now}"
        case _:
            if was != now:
                yield f"{path} was {_words(was)}, and is now {_words(now)}"


def _words(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()


def load(path: Path) -> History:
    about, *steps = path.read_bytes().splitlines()
    return History(msgspec.json.decode(about, type=str), [msgspec.json.decode(step, type=Step) for step in steps])


def save(path: Path, history: History) -> None:
    """Write a line that says what it is about, and one for each step."""
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (history.about, *history.steps)))


def changes(path: Path) -> list[str]:
    """What would be decided otherwise now, in words that name the file and the step."""
    return [
        f"{path.name}, step {number} ({type(step).__struct_config__.tag}): {text}"
        for number, step in enumerate(load(path).steps, 1)
        for text in differences(step.choices, [_choice(one) for one in decided(step)], "decided")
    ]


def main(arguments: list[str]) -> int:
    names = [one for one in arguments if not one.startswith("--")]
    paths = sorted(DIRECTORY.glob("*.jsonl"))
    if "--record" in arguments:
        from tests.brain.scenarios import SCENARIOS

        for name in names or SCENARIOS:
            scenario = SCENARIOS[name]
            save(DIRECTORY / f"{name}.jsonl", History((scenario.__doc__ or "").strip(), list(scenario())))
            print(f"recorded {name}")
        return 0
    found = []
    for path in (path for path in paths if not names or path.stem in names):
        if texts := changes(path):
            found += texts
            if "--accept" in arguments:
                history = load(path)
                save(path, History(history.about, [recorded(step) for step in history.steps]))
    print("\n".join(found) or "every decision comes out as it was recorded")
    return int(bool(found) and "--accept" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
