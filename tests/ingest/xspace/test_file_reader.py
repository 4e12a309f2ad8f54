"""The trace does not depend on the kind of stream or on block sizes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import fields

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.xspace.decode import events
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING, FileReader
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.trace import Trace
from tests.support.xspaces import SOURCE, Drawing, Reference, field


def drawn() -> Drawing:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    thread = drawing.line(host, "python", at_ns=100)
    for number in range(40):
        # Lengths of one, two and three bytes; stats before, after and between unused fields.
        shape = f"({','.join(['f32[8]'] * (number % 20) ** 2)})"
        drawing.event(
            host,
            thread,
            f"op{number % 7}:Op",
            10 * number,
            5,
            device=Reference("CPU:0"),
            shape=shape,
            iter_num=number,
        )
        drawing.event(
            host, thread, "cuLaunchKernel", 10 * number + 1, 1, device=7, correlation_id=number
        )
    gpu = drawing.plane("/device:GPU:0", core_count=80)
    stream = drawing.line(gpu, "Stream #7(Kernel)", at_ns=100)
    for number in range(40):
        drawing.event(gpu, stream, f"kernel{number % 3}", 10 * number + 2, 4, correlation_id=number)
    return drawing


def same(expected: Trace, other: Trace) -> None:
    assert expected.strings == other.strings
    assert expected.notes == other.notes
    for table in ("events", "kernels", "operators"):
        for item in fields(getattr(expected, table)):
            first, second = (
                getattr(getattr(trace, table), item.name) for trace in (expected, other)
            )
            np.testing.assert_array_equal(first, second, err_msg=f"{table}.{item.name}")


WHOLE = drawn().read()


def test_drawn_file_has_every_kind_of_field() -> None:
    assert len(WHOLE.events) == 120
    assert len(WHOLE.operators.row) == 40
    assert int((WHOLE.events.launched_by >= 0).sum()) == 40


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("block_bytes", [1, 50, 300, 5000])
def test_blocks_of_any_size_and_any_number_of_threads(
    block_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(events, "_CHUNK", 3)
    same(read_xplane(io.BytesIO(drawn().bytes()), SOURCE, threads), WHOLE)


@pytest.mark.parametrize("threads", [0, 2])
def test_threads_keep_the_budget(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_ITEMS_OF_EVENT", 10**6)
    with pytest.raises(UnreadableProfileError, match="hold more than"):
        read_xplane(io.BytesIO(drawn().bytes()), SOURCE, threads)


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(drawn().bytes())
    with path.open("rb") as stream:
        same(read_xplane(stream, SOURCE), WHOLE)


class _OneWay(io.BytesIO):
    """A stream without seeking, as from a network or an archive."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise io.UnsupportedOperation("seek")


def test_a_stream_that_goes_forward_only() -> None:
    same(read_xplane(_OneWay(drawn().bytes()), SOURCE), WHOLE)


class _OnlyRead:
    """A wrapper of a stream with only the basic methods."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)
        self.read, self.seek = self._stream.read, self._stream.seek

    def seekable(self) -> bool:
        return True


def test_a_stream_that_cannot_read_into_memory() -> None:
    same(read_xplane(_OnlyRead(drawn().bytes()), SOURCE), WHOLE)  # type: ignore[arg-type]


def test_error_if_the_file_becomes_shorter() -> None:
    stream = io.BytesIO(bytes(100))
    file = FileReader(stream, where="run/host.xplane.pb")
    stream.truncate(50)
    for read in (file.read, file.block):
        with pytest.raises(UnreadableProfileError, match="shorter while it was read") as caught:
            read(40, 60)
        assert caught.value.where == "run/host.xplane.pb"


def test_fields_in_any_order() -> None:
    # A message may be split: metadata first, and the lines last, in two parts.
    data = b""
    for plane in drawn().space.planes:
        lines = [WRITING.XPlane(lines=[line]).SerializeToString() for line in plane.lines]
        del plane.lines[:]
        tables = plane.SerializeToString()
        data += field(1, b"".join([tables, *lines]))
    same(read_xplane(io.BytesIO(data), SOURCE), WHOLE)


def test_events_between_the_fields_of_a_line() -> None:
    drawing = drawn()
    data = b""
    for plane in drawing.space.planes:
        lines = b""
        for line in plane.lines:
            events_of = [WRITING.XLine(events=[event]).SerializeToString() for event in line.events]
            del line.events[:]
            body = b"".join(events_of[:9]) + line.SerializeToString() + b"".join(events_of[9:])
            lines += field(3, body)
        del plane.lines[:]
        tables = plane.SerializeToString()
        data += field(1, tables + lines)
    same(read_xplane(io.BytesIO(data), SOURCE), WHOLE)


def many_lines() -> Drawing:
    """Forty threads and forty streams of no, one or two events, and a large one of each."""
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    gpu = drawing.plane("/device:GPU:0", core_count=80)
    for number in range(40):
        thread = drawing.line(host, f"thread {number}", at_ns=100 * number)
        stream = drawing.line(gpu, f"Stream #{number}(Kernel)", at_ns=100 * number)
        derived = drawing.line(gpu, f"Launches {number}", at_ns=100 * number)
        for turn in range(number % 3 if number != 20 else 50):
            shape = f"(f32[{number}])"
            at_ns, call = 10 * turn, 100 * number + turn
            drawing.event(host, thread, f"op{turn % 7}:Op", at_ns, 5, shape=shape)
            drawing.event(host, thread, "cuLaunchKernel", at_ns + 1, 1, correlation_id=call)
            details = f"regs:{number + 1} grid:{turn + 1},1,1 block:32,1,1"
            drawing.event(
                gpu,
                stream,
                f"kernel{turn % 3}",
                at_ns + 3,
                4,
                correlation_id=call,
                kernel_details=details,
            )
            drawing.event(gpu, derived, "step", at_ns + 3, 4, group_id=turn)
    return drawing


@pytest.mark.parametrize("least_together", [1, 10])
def test_lines_together_are_read_as_one_by_one(
    least_together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_LEAST_TOGETHER", 10**9)
    one_by_one = many_lines().read()
    # 26 streams have events: 13 with one, 12 with two, and number 20 with 50.
    assert len(one_by_one.kernels.row) == 13 + 2 * 12 + 50
    assert int((one_by_one.events.launched_by >= 0).sum()) == 87
    assert sorted(set(one_by_one.kernels.registers.tolist()))[:3] == [2, 3, 5]
    monkeypatch.setattr(events, "_LEAST_TOGETHER", least_together)
    same(many_lines().read(), one_by_one)


@pytest.mark.parametrize("batch_events", [1, 7])
def test_batches_of_any_size(batch_events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = described(many_lines().read())
    monkeypatch.setattr(events, "_BATCH_EVENTS", batch_events)
    assert described(many_lines().read()) == expected


def described(trace: Trace) -> list[tuple[object, ...]]:
    """The events and their attributes, without the order of strings."""
    table, tracks, strings = trace.events, trace.tracks, trace.strings
    shapes = dict(zip(trace.operators.row.tolist(), trace.operators.shapes.tolist(), strict=True))
    blocks = dict(zip(trace.kernels.row.tolist(), trace.kernels.grid_blocks.tolist(), strict=True))
    columns = (table.name, table.start_ns, table.kind, table.track, table.launched_by)
    return [
        (
            strings[name],
            start_ns,
            kind,
            strings[tracks.label[track]],
            launched_by,
            strings[shapes[row]] if row in shapes else None,
            blocks.get(row),
        )
        for row, (name, start_ns, kind, track, launched_by) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"\x22\x7f",  # an event that is longer than its line
        b"\x00\x01",  # a field without a number
        b"\x0b",  # a group
        field(4, b"\x10\xe8\x07\x18" + b"\xff" * 9 + b"\x01"),  # a negative duration
        field(4, b"\x08\x01\x28\x03"),  # a count without a time
        b"\x18" + b"\xff" * 8 + b"\x7f",  # a line at the end of time
        field(11, b"shown"),
        field(2, b"renamed"),
    ],
)
def test_damaged_lines_together_are_read_as_one_by_one(
    bad: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = many_lines()
    data = b""
    for plane in drawing.space.planes:
        lines = b""
        for number, line in enumerate(plane.lines):
            body = line.SerializeToString()
            lines += field(3, body + (bad + b"\x08\x07" if number % 5 == 0 else b""))
        del plane.lines[:]
        data += field(1, lines + plane.SerializeToString())
    monkeypatch.setattr(events, "_LEAST_TOGETHER", 10**9)
    one_by_one = read_xplane(io.BytesIO(data), SOURCE)
    monkeypatch.setattr(events, "_LEAST_TOGETHER", 1)
    same(read_xplane(io.BytesIO(data), SOURCE), one_by_one)
