"""What the bench scripts share: figures, targets, interleaving."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dlrover_lite.core.processes.identity import identify, wait_for_end

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("common", BENCH / "common.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "common", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("target", "value", "ok"),
    [
        (">= 1.5", 1.5, True),
        (">= 1.5", 1.4, False),
        ("<= 4", 4.1, False),
        (">= 3,000", 3001, True),
        ("0.7 to 0.9", 0.9, True),
        ("0.7 to 0.9", 0.91, False),
        ("", 1, None),
    ],
)
def test_figures_are_compared_with_their_targets(
    common: ModuleType, target: str, value: float, ok: bool | None
) -> None:
    assert common.Figure("a.b", value, "x", target).ok is ok


def test_figure_is_written_as_json(common: ModuleType) -> None:
    line = common.Figure("train.ratio", 1.12, "x", ">= 1.0", baseline=3.0).as_json()
    wanted = {"figure": "train.ratio", "value": 1.12, "unit": "x", "target": ">= 1.0", "ok": True, "baseline": 3.0}
    assert wanted.items() <= json.loads(line).items()


def test_medians_are_taken_of_interleaved_rounds(common: ModuleType) -> None:
    calls: list[str] = []
    values = iter([99, 1, 5, 3])

    def first() -> float:
        calls.append("a")
        return next(values)

    def second() -> float:
        calls.append("b")
        return 2.0

    assert common.medians({"a": first, "b": second}, rounds=3) == {"a": 3, "b": 2.0}
    assert sorted(calls) == ["a"] * 4 + ["b"] * 4
    assert calls[2:4] != calls[4:6]  # the order turns around


def test_table_of_figures_marks_missed_targets(common: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    common.print_table([json.loads(common.Figure("cli.help_ratio", 5.0, "x", "<= 4").as_json())])
    assert capsys.readouterr().out.splitlines()[1].split() == ["cli.help_ratio", "5", "x", "<=", "4", "NO", "-"]


def test_a_process_is_talked_with_by_lines(common: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nimport dlrover_lite\nprint(sys.argv[1], input())\nsys.exit(3)\n")
    with common.start_process(str(script), "hello") as process:
        process.stdin.write("you\n")
        process.stdin.flush()
        assert common.line_of(process) == "hello you"
        with pytest.raises(SystemExit, match="exit code 3"):
            common.line_of(process)


@pytest.mark.parametrize(("code", "whole"), [(0, True), (1, False)])
def test_figures_of_a_failed_script_count_but_the_run_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, whole: bool
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    figures = {"figure": "a.b", "value": 1.5}
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nprint('{json.dumps(figures)}')\nprint('a table')\nsys.exit({code})\n")
    assert importlib.import_module("all").run(script, quick=False) == ([figures], whole)


_STARTER = """\
import sys, time
sys.path.insert(0, {bench!r})
from common import line_of, start_process
print(line_of(start_process({script!r})), flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="nothing else tells a process that the one that started it has ended"
)
def test_processes_of_a_bench_end_with_it_however_it_ends(tmp_path: Path) -> None:
    script = tmp_path / "its_process.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n")
    code = _STARTER.format(bench=str(BENCH), script=str(script))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        its = identify(int(bench.stdout.readline()))
        bench.kill()
    assert its is None or wait_for_end(its, 60)
