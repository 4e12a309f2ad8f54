"""A file decoded in two halves: wherever it is divided, the same as when it is read at once."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.xplane import events, halves, records, wire
from tb_perfadvisor.ingest.xplane.events import EventRun
from tb_perfadvisor.ingest.xplane.halves import middle_of, read_rest
from tb_perfadvisor.ingest.xplane.reader import read_xplane
from tb_perfadvisor.trace import Trace
from tests.support.device_xspaces import gpu_xspace, tpu_xspace
from tests.support.xspaces import SOURCE, Drawing, Reference

DEMO_LOGS = Path(__file__).resolve().parents[3] / "demo_logs"
RECORDED = sorted(DEMO_LOGS.glob("*/**/*.xplane.pb"))
DRAWN = {"gpu": gpu_xspace().bytes(), "tpu": tpu_xspace().bytes()}


class Second:
    """The second half, decoded when it is asked for."""

    def __init__(self, data: bytes, begins_behind: int, *, fails: bool = False) -> None:
        self.begins_behind = begins_behind
        self.runs = None if fails else read_rest(io.BytesIO(data), begins_behind)
        self.count = len(self.runs or ())

    def result(self) -> dict[int, EventRun] | None:
        return self.runs

    @property
    def used(self) -> int:
        """How many runs were taken out."""
        return self.count - len(self.runs or ())


@pytest.fixture(autouse=True)
def _blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short that small files have many."""
    monkeypatch.setattr(events, "_BLOCK_BYTES", 2048)
    monkeypatch.setattr(events, "_MANY_EVENTS_BYTES", 512)


def read(data: bytes, second: Second | None = None) -> Trace:
    return read_xplane(io.BytesIO(data), SOURCE, second)


def assert_equal(one: Any, other: Any, where: str = "trace") -> None:
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        np.testing.assert_array_equal(one, other, err_msg=where)
    elif isinstance(one, Struct):
        for name in one.__struct_fields__:
            assert_equal(getattr(one, name), getattr(other, name), f"{where}.{name}")
    else:
        assert one == other, where


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.relative_to(DEMO_LOGS).parts[0])
def test_recorded_files_divided_anywhere(path: Path) -> None:
    data = path.read_bytes()
    whole = read(data)
    chosen = random.Random(path.name)
    used = 0
    for middle in [chosen.randrange(len(data)) for _ in range(12)]:
        second = Second(data, middle)
        assert_equal(read(data, second), whole)
        used += second.used == second.count > 0
    # What follows the events (names, programs) is a good part of some files.
    assert used >= 4


def test_texts_of_both_halves_are_one() -> None:
    drawing = Drawing()
    line = drawing.line(drawing.plane("/host:CPU"), "python")
    for number in range(400):
        stats = {"eager_op": f"Op{number % 7}"} if number % 3 else {}
        drawing.event(drawing.space.planes[0], line, "EagerExecute", number * 10, 9, **stats)
    data = drawing.bytes()
    whole = read(data)
    assert "EagerExecute: Op5" in whole.strings
    second = Second(data, len(data) // 2)
    assert_equal(read(data, second), whole)
    assert second.used == 1


@pytest.mark.parametrize("untimed", [set(), {0, 1}, {30}, {350}, {30, 31, 350, 399}])
def test_stats_stay_with_their_events(untimed: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    # Events that sum up others have no time of their own, and no place among those that have.
    monkeypatch.setattr(events, "_CHUNK", 8)
    drawing = Drawing()
    plane = drawing.plane("/host:CPU")
    line = drawing.line(plane, "python")
    for number in range(400):
        shape = {"shape": Reference(f"(f32[{number % 7}])")} if number % 5 else {}
        drawing.event(plane, line, "MatMul:MatMul", number * 10, 9, **shape)
        if number in untimed:
            line.events[-1].num_occurrences = 3
    data = drawing.bytes()
    whole, second = read(data), Second(data, len(data) // 2)
    assert_equal(read(data, second), whole)
    assert second.used == 1
    timed = [number for number in range(400) if number not in untimed]
    assert (whole.events.start_ns + timed[0] * 10).tolist() == [number * 10 for number in timed]
    shapes = {
        int(whole.events.start_ns[row]) // 10 + timed[0]: whole.text(int(shape))
        for row, shape in zip(whole.operators.row, whole.operators.shapes, strict=True)
    }
    assert shapes == {number: f"[[{number % 7}]]" for number in timed if number % 5}


def test_the_first_half_is_decoded_before_the_second_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Devices come before hosts in this file, but are added after them.
    drawing = Drawing()
    for name, line_name in (("/device:GPU:0", "Stream #7(Kernel)"), ("/host:CPU", "python")):
        plane = drawing.plane(name)
        line = drawing.line(plane, line_name)
        for number in range(1500):
            drawing.event(plane, line, "event", number * 10, 9)
    data = drawing.bytes()
    decoded: list[int] = []
    at_asking: list[int] = []

    class Asked(Second):
        def result(self) -> dict[int, EventRun] | None:
            at_asking.append(sum(decoded))
            return super().result()

    whole, second = read(data), Asked(data, 2 * len(data) // 3)
    add = events.EventDecoder._add

    def counting(self: events.EventDecoder, spans: wire.Spans) -> None:
        decoded.append(len(spans))
        add(self, spans)

    monkeypatch.setattr(events.EventDecoder, "_add", counting)
    assert_equal(read(data, second), whole)
    (first,) = at_asking
    assert first > 1500
    # Near the middle it is not sure which events are decoded elsewhere.
    assert sum(decoded) - first < 200


@pytest.mark.parametrize("found", [None, 1, 5])
def test_what_begins_out_of_step_is_decoded_again(
    found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = RECORDED[0].read_bytes()
    monkeypatch.setattr(events, "find_start", lambda *_: found)
    for middle in (len(data) // 3, len(data) // 2):
        assert_equal(read(data, Second(data, middle)), read(data))


def test_another_process_that_fails_changes_nothing() -> None:
    data = RECORDED[0].read_bytes()
    assert_equal(read(data, Second(data, len(data) // 3, fails=True)), read(data))


@pytest.mark.parametrize("name", sorted(DRAWN))
@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8),
    middle=st.integers(0, 10**6),
)
def test_damaged_files(name: str, changes: list[tuple[int, int]], middle: int) -> None:
    data = bytearray(DRAWN[name])
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        whole = read(bytes(data))
    except PerfAdvisorError as error:
        with pytest.raises(type(error)):
            read(bytes(data), Second(bytes(data), middle % len(data)))
        return
    assert_equal(read(bytes(data), Second(bytes(data), middle % len(data))), whole)


def test_the_middle_is_that_of_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    data = RECORDED[0].read_bytes()
    assert middle_of(io.BytesIO(data)) is None  # not worth it
    monkeypatch.setattr(halves, "_WORTH_BYTES", 1000)
    middle = middle_of(io.BytesIO(data))
    assert middle is not None
    file = halves.Parts(io.BytesIO(data), where="")
    spans = [span for plane in halves._outlines(file) for span in plane.lines]
    before = sum(min(end, middle) - begin for begin, end in spans if begin < middle)
    assert abs(2 * before - sum(end - begin for begin, end in spans)) <= 1
    assert middle_of(io.BytesIO(b"no profile")) is None


def test_a_start_is_sought_behind_what_only_looks_like_one() -> None:
    record = b"\x22\x04\x22\x01\x22\x00"
    buffer = wire.buffer_of(b"\x22\x7f" + record * 40)
    # The first byte begins a record of 127 bytes that ends in no other one.
    found = records.find_start(buffer, 2 + 6 * 40, 0x22)
    assert found is not None
    assert (found - 2) % 6 == 0
