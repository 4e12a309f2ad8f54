from __future__ import annotations

import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.xspace.reader import looks_like_xplane, read_xplane
from tests.support.night import examples
from tests.support.xspaces import SOURCE, Drawing, Reference, row_of


def small() -> Drawing:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    thread = drawing.line(host, "python", at_ns=100)
    drawing.event(host, thread, "train", 0, 90, step_num=3, _r=1)
    drawing.event(host, thread, "EagerExecute", 5, 20, eager_op=Reference("MatMul"))
    gpu = drawing.plane("/device:GPU:0", core_count=80, compute_cap_major=7, compute_cap_minor=0)
    stream = drawing.line(gpu, "Stream #7(Kernel)", at_ns=100)
    details = Reference("regs:32 shm:0 grid:2,1,1 block:64,1,1")
    drawing.event(gpu, stream, "k", 30, 9, correlation_id=1, kernel_details=details)
    drawing.plane("Task Environment", profile_start_time=1_700_000_000_000_000_000)
    return drawing


def test_times_are_nanoseconds_from_the_first_event() -> None:
    trace = small().read()
    assert trace.events.start_ns[row_of(trace, "train")] == 0
    assert trace.events.start_ns[row_of(trace, "k")] == 30
    # The clock of the lines starts with the profile; the first event comes 100 ns later.
    assert trace.source.origin_unix_ns == 1_700_000_000_000_000_100


def test_wall_clock_lines_need_no_task_environment() -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "t", at_ns=1_700_000_000_000_000_000)
    drawing.event(host, line, "a", 7, 1)
    assert drawing.read().source.origin_unix_ns == 1_700_000_000_000_000_007


def test_rounding_keeps_nesting() -> None:
    # In picoseconds: outer [1500, 3500), inner [1999, 3499). Floors: outer [1, 3), inner [1, 3).
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    line = drawing.line(host, "t")
    drawing.event(host, line, "outer", 1.5, 2.0)
    drawing.event(host, line, "inner", 1.999, 1.5)
    trace = drawing.read()
    assert trace.events.duration_ns.tolist() == [2, 2]
    assert trace.events.parent.tolist() == [-1, 0]


def test_values_given_by_the_caller_are_kept_and_others_filled_in() -> None:
    source = small().read().source
    assert (source.path, source.run, source.host) == ("run/host.xplane.pb", "run", "h")
    assert (source.format, source.framework) == ("xplane", "tensorflow")
    assert source.has_stacks is False
    assert source.has_memory is None
    assert source.has_shapes is None


def test_aggregated_events_have_no_time_and_are_left_out() -> None:
    drawing = small()
    line = drawing.space.planes[0].lines[0]
    line.events.add(metadata_id=1, num_occurrences=5, duration_ps=10**12)
    assert len(drawing.read().events) == 3


def test_events_without_metadata_are_kept() -> None:
    drawing = small()
    drawing.space.planes[0].lines[0].events.add(metadata_id=99, offset_ps=1000, duration_ps=1000)
    trace = drawing.read()
    assert trace.events.duration_ns[row_of(trace, "(unnamed)")] == 1


def test_impossible_times_are_left_out_with_a_note() -> None:
    drawing = small()
    line = drawing.space.planes[0].lines[0]
    line.events.add(metadata_id=1, offset_ps=5, duration_ps=-1)
    line.events.add(metadata_id=1, offset_ps=2**63 - 1, duration_ps=2)
    trace = drawing.read()
    assert len(trace.events) == 3
    (note,) = trace.notes
    assert note.id == "broken-events"
    assert note.message.startswith("2 events")


def test_errors_of_the_profiler_become_notes() -> None:
    drawing = small()
    drawing.space.errors.append("No device found")
    drawing.space.warnings.append("dropped 7 events")
    notes = {note.id: note for note in drawing.read().notes}
    assert notes["profiler-error"].message == "The profiler reported: No device found"
    assert notes["profiler-warning"].severity == "warning"


def test_a_truncated_file_is_read_up_to_the_break() -> None:
    data = small().bytes()
    host_plane_bytes = len(small().space.planes[0].SerializeToString())
    # The first plane is complete, the second is truncated.
    trace = read_xplane(io.BytesIO(data[: host_plane_bytes + 30]), SOURCE)
    assert {trace.name(row) for row in range(len(trace.events))} == {
        "train",
        "EagerExecute: MatMul",
    }
    assert [note.id for note in trace.notes] == ["truncated-file"]


def test_file_truncated_in_its_first_plane_is_reported() -> None:
    with pytest.raises(UnreadableProfileError, match="ends inside its first plane"):
        read_xplane(io.BytesIO(small().bytes()[:40]), SOURCE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"<html>404 not found</html>", "not an XSpace"),
        (b'{"traceEvents": []}', "not an XSpace"),
        (b"\x1f\x8b\x08\x00" + bytes(40), "compressed with gzip"),
        (b"PK\x03\x04" + bytes(40), "ZIP archive"),
        (b"a.json" + bytes(251) + b"ustar" + bytes(250), "tar archive"),
        (b"\xff" * 100, "not an XSpace"),
        # One plane of ten bytes that are not a message.
        (b"\x0a\x0a" + b"\xff" * 10, "no plane of this profile can be decoded"),
    ],
)
def test_other_files_are_refused_with_a_reason(data: bytes, message: str) -> None:
    with pytest.raises(UnreadableProfileError, match=message) as caught:
        read_xplane(io.BytesIO(data), SOURCE)
    assert caught.value.where == "run/host.xplane.pb"
    assert caught.value.hint


def test_empty_capture_has_a_note() -> None:
    drawing = Drawing()
    drawing.plane("/host:CPU")
    trace = drawing.read()
    assert len(trace.events) == 0
    assert [note.id for note in trace.notes] == ["no-events"]


def test_sniffing() -> None:
    assert looks_like_xplane(small().bytes()[:64])
    assert not looks_like_xplane(b"")
    assert not looks_like_xplane(b'{"traceEvents"')
    assert not looks_like_xplane(b"\x1f\x8b\x08\x00\x00\x00\x00\x00")
    assert not looks_like_xplane(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")


DATA = small().bytes()


@examples(30)
@given(
    st.lists(
        st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), min_size=1, max_size=12
    ),
    st.integers(0, len(DATA)),
)
def test_mutated_bytes_raise_nothing_but_our_errors(
    changes: list[tuple[int, int]], length: int
) -> None:
    mutated = bytearray(DATA)
    for at, byte in changes:
        mutated[at] = byte
    for data in (bytes(mutated), bytes(mutated[:length])):
        try:
            trace = read_xplane(io.BytesIO(data), SOURCE)
        except PerfAdvisorError:
            continue
        assert (trace.events.duration_ns >= 0).all()


@examples(50)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_our_errors(data: bytes) -> None:
    looks_like_xplane(data)
    with suppress(PerfAdvisorError):
        read_xplane(io.BytesIO(data), SOURCE)
