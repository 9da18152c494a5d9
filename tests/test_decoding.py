"""Types that several threads meet for the first time at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.repository.sources import ROOT, files

DECODE_AT_ONCE = """
import sys, threading
import msgspec
from dlrover_lite.core.decoding import convert, from_json, from_msgpack, json_decoder

sys.setswitchinterval(1e-6)


def types(at):
    module = sys.modules[__name__]
    for part in range(40):
        fields = [(f"number_{n}", "int | None", None) for n in range(10)]
        setattr(module, f"Part{part}", msgspec.defstruct(f"Part{part}", fields, module=__name__))
    parts = [(f"part_{part}", f"Part{part} | None", None) for part in range(40)]
    module.Whole = msgspec.defstruct("Whole", parts, module=__name__)
    return msgspec.defstruct("Holder", [("whole", "Whole")], module=__name__), module.Whole


for at in range(60):
    holder, whole = types(at)
    text = b'{"part_0": {"number_1": 1}, "part_39": {"number_2": 3}}'
    together = threading.Barrier(4)
    found = []

    def decode(how):
        together.wait()
        found.append(how())

    ways = (
        lambda: from_json(b'{"whole": ' + text + b"}", holder).whole,
        lambda: from_json(text, whole),
        lambda: convert(msgspec.json.decode(text), whole),
        lambda: json_decoder(whole).decode(text),
    )
    threads = [threading.Thread(target=decode, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(one.part_0.number_1, one.part_39.number_2) for one in found] == [(1, 3)] * 4
"""


def test_threads_that_meet_a_type_at_once_all_decode_it() -> None:
    """Straight by msgspec the process ends with a segmentation fault in one of a few rounds."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DECODE_AT_ONCE)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_decoded_but_by_way_of_types_made_known() -> None:
    straight = (
        "msgspec.convert(",
        "msgspec.json.decode(",
        "msgspec.msgpack.decode(",
        "json.Decoder(",
        "msgpack.Decoder(",
    )
    found = [
        f"{path.relative_to(ROOT)}: {one}"
        for path in files("dlrover_lite")
        if path.name != "decoding.py"
        for one in straight
        if one in path.read_text(encoding="utf-8")
    ]
    assert not found, "use dlrover_lite.core.decoding: several threads may meet a type at once"
