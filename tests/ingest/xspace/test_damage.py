"""Files with false sizes: each gives an error or a note, and costs no more than a valid file."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.xspace.decode import space
from tb_perfadvisor.ingest.xspace.decode.messages import decode_program
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import Programs
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.trace import Trace
from tests.support.hlo_programs import program
from tests.support.xspaces import SOURCE, Drawing, field, varint

HUGE = varint(2**60)
MIB = 2**20


@contextmanager
def bounded(*, mib: float = 64) -> Iterator[None]:
    """Limit memory: far above the need, far below the claims of the file."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mib * MIB
    finally:
        tracemalloc.stop()


def read(data: bytes) -> Trace:
    return read_xplane(io.BytesIO(data), SOURCE)


def entry(number: int, id_: int, message: bytes) -> bytes:
    """An entry of a map."""
    return field(number, b"\x08" + varint(id_) + field(2, message))


EVENT = b"\x08\x01\x10\xe8\x07\x18\xe8\x07"  # of kind 1, at 1 ns, for 1 ns
NAMES = entry(4, 1, b"\x08\x01" + field(2, b"work"))
STEP_NUM = entry(5, 1, b"\x08\x01" + field(2, b"step_num"))


def host(line: bytes, tables: bytes = NAMES + STEP_NUM) -> bytes:
    """A whole file of one thread."""
    return field(1, field(2, b"/host:CPU") + field(3, field(2, b"python") + line) + tables)


def names(trace: Trace) -> list[str]:
    return [trace.name(row) for row in range(len(trace.events))]


def notes(trace: Trace) -> list[str]:
    return [note.id for note in trace.notes]


def test_undamaged_file_is_read() -> None:
    trace = read(host(field(4, EVENT)))
    assert (names(trace), notes(trace)) == (["work"], [])


def test_plane_that_claims_an_exabyte() -> None:
    with bounded(), pytest.raises(UnreadableProfileError, match="inside its first plane"):
        read(b"\x0a" + HUGE + field(2, b"/host:CPU") + bytes(100))


def test_a_line_that_claims_an_exabyte() -> None:
    data = field(1, field(2, b"/host:CPU") + b"\x1a" + HUGE + bytes(100))
    with bounded(), pytest.raises(UnreadableProfileError, match="no plane of this profile"):
        read(data)


def test_an_event_that_claims_an_exabyte_ends_its_line() -> None:
    with bounded():
        trace = read(host(field(4, EVENT) * 3 + b"\x22" + HUGE + bytes(100)))
    assert names(trace) == ["work"] * 3
    assert notes(trace) == ["broken-line"]


def test_a_stat_that_claims_an_exabyte_ends_its_event() -> None:
    stat = field(4, b"\x08\x01\x20\x07")
    with bounded():
        trace = read(host(field(4, EVENT + stat + b"\x22" + HUGE) + field(4, EVENT)))
    assert names(trace) == ["work"] * 2
    assert sorted(trace.events.step.tolist()) == [-1, 7]


def test_a_text_that_claims_an_exabyte() -> None:
    stat = field(4, b"\x08\x02\x2a" + HUGE)
    tables = NAMES + entry(5, 2, b"\x08\x02" + field(2, b"shape"))
    with bounded():
        assert names(read(host(field(4, EVENT + stat), tables))) == ["work"]


@pytest.mark.parametrize("number", [4, 5])
def test_a_name_that_claims_an_exabyte(number: int) -> None:
    broken = entry(number, 1, b"\x08\x01\x12" + HUGE + b"name")
    with bounded():
        trace = read(host(field(4, EVENT), broken))
    assert names(trace) == ["(unnamed)"]


@pytest.mark.parametrize("id_", [2**31, 2**40, 2**62, 2**64 - 1])
def test_huge_ids_of_kinds_and_stats(id_: int) -> None:
    kind = varint(id_)
    event = b"\x08" + kind + b"\x18\xe8\x07" + field(4, b"\x08" + kind + b"\x20\x05")
    tables = entry(4, id_, field(2, b"train")) + entry(5, id_, field(2, b"step_num"))
    with bounded():
        trace = read(host(field(4, event), tables))
    assert names(trace) == ["train"]
    assert trace.events.step.tolist() == [5]


NESTED = b"\x0b" * 200_000  # 200,000 nested groups


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (NESTED, None),
        (host(field(4, EVENT)) + NESTED, ["truncated-file"]),
        (field(1, field(2, b"/host:CPU") + NESTED), None),
        (host(field(4, EVENT)) + field(1, field(2, b"/x") + NESTED), ["broken-plane"]),
        (host(field(4, EVENT) + NESTED), ["broken-line"]),
        (host(field(4, EVENT + NESTED)), []),
        (host(field(4, EVENT + field(4, NESTED))), []),
        (host(field(4, EVENT), NAMES + entry(4, 2, NESTED)), []),
        (host(field(4, EVENT), NAMES + entry(5, 2, NESTED)), []),
        (host(field(4, EVENT), NAMES + field(6, NESTED)), []),
    ],
)
def test_nested_groups(data: bytes, expected: list[str] | None) -> None:
    with bounded():
        if expected is None:
            with pytest.raises(UnreadableProfileError):
                read(data)
        else:
            trace = read(data)
            assert names(trace) == ["work"]
            assert notes(trace) == expected


def test_nested_shapes() -> None:
    # Of an instruction's shape (field 3), the parts of a tuple (field 4), a hundred thousand deep.
    shape = b""
    for _ in range(100_000):
        shape = b"\x22" + varint(len(shape)) + shape if len(shape) < 2**20 else shape
    instruction = field(1, b"fusion.1") + field(3, shape)
    proto = field(1, field(3, field(2, instruction)))
    drawing = Drawing()
    metadata = drawing.plane("/host:metadata")
    drawing.event(
        metadata, drawing.line(metadata, ""), "jit_f(1)", 0, 0, shared={"Hlo Proto": proto}
    )
    with bounded():
        drawing.read()
        programs = Programs(Budget("program", 0))
        programs._bytes["jit_f(1)"] = proto
        assert programs.look_up("jit_f(1)", "fusion.1") is None
        programs._bytes["jit_g(2)"] = program()
        assert programs.look_up("jit_g(2)", "gemm_fusion_dot") is not None


@pytest.mark.parametrize(
    "line",
    [
        b"\x22\x00" * (MIB // 2),  # empty events: twice as many do not fit into the budget
        field(4, EVENT + b"\x22\x00" * MIB),  # one event with a million empty stats
        field(4, EVENT + b"\x08\x01" * MIB),  # one that repeats its kind a million times
        field(4, EVENT) + b"\x08\x01" * (MIB // 64),  # a line that repeats its number
    ],
)
def test_million_empty_fields(line: bytes) -> None:
    with bounded(mib=300):
        trace = read(host(line))
    assert set(names(trace)) <= {"work"}
    assert len(trace.events) <= 1


def test_a_million_names() -> None:
    tables = b"".join(entry(5, id_, field(2, b"a name of some length")) for id_ in range(2, 10**5))
    with bounded(mib=100):
        assert names(read(host(field(4, EVENT), NAMES + tables))) == ["work"]


def test_more_lines_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "_MAX_LINES", 1_000)
    data = field(1, field(2, b"/host:CPU") + b"\x1a\x02\x08\x01" * 1_001)
    with bounded(), pytest.raises(UnreadableProfileError, match="more than 1,000 lines"):
        read(data)


@pytest.mark.parametrize("plane", [b"/host:CPU", b"/device:GPU:0"])
def test_many_lines_of_one_event(plane: bytes) -> None:
    lines = b"".join(
        field(3, b"\x08" + varint(number) + field(2, b"Stream #%d" % number) + field(4, EVENT))
        for number in range(1, 1_001)
    )
    data = field(1, field(2, plane) + lines + NAMES)
    with bounded(mib=16):  # how time grows: benchmarks/scale_inputs.py
        trace = read(data)
    assert len(trace.tracks.thread) == 1_000


def test_too_many_planes() -> None:
    with (
        bounded(),
        pytest.raises(UnreadableProfileError, match="more than 4,096 planes"),
    ):
        read(field(1, field(2, b"/host:CPU")) * 5_000)


def test_a_space_of_empty_planes() -> None:
    # Two bytes a plane, whose place takes a hundred and fifty.
    with (
        bounded(),
        pytest.raises(UnreadableProfileError, match="more than 4,096 planes"),
    ):
        read(b"\x0a\x00" * MIB)


@pytest.mark.parametrize(
    "module",
    [
        field(3, b"\x12\x00" * 50_000),  # instructions
        b"\x1a\x00" * 50_000,  # computations
        field(3, field(2, field(3, b"\x22\x00" * 50_000))),  # shapes in a shape
        field(3, b"\x12\x05\x0a\x01a\x48\x01" * 10_000),  # small instructions
    ],
)
def test_a_program_of_empty_messages_is_refused_before_it_is_decoded(
    module: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tb_perfadvisor.ingest.files.budget.FREE_BYTES", 64 << 10)
    program = field(1, module)
    with pytest.raises(UnreadableProfileError, match="values, which no recording does"):
        decode_program(program, Budget("program", len(program)))


def test_many_errors_give_few_notes() -> None:
    errors = b"".join(field(2, f"error {number}".encode()) for number in range(5_000))
    with bounded():
        trace = read(host(field(4, EVENT)) + errors + field(2, b"x" * MIB))
    assert len(trace.notes) == 20
    assert max(len(note.message) for note in trace.notes) < 600


def test_file_truncated_anywhere() -> None:
    whole = host(field(4, EVENT) * 5) + field(1, field(2, b"Task Environment"))
    for length in range(len(whole)):
        with suppress(PerfAdvisorError):
            trace = read(whole[:length])
            assert names(trace) == ["work"] * 5
            # At the end of a plane, nothing shows that another one is missing.
            first = len(host(field(4, EVENT) * 5))
            assert notes(trace) == ([] if length == first else ["truncated-file"])
