"""Damaged files are read as far as possible; other formats are named."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files import compression
from tb_perfadvisor.ingest.json_trace import document
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.trace import Source, Trace
from tests.support.kineto_files import event, kernel, named, read, to_bytes
from tests.support.mutation import mutated
from tests.support.night import examples

SOUND = to_bytes(
    [
        event("ProfilerStep#1", 1, 90, "user_annotation"),
        event("aten::mm", 2, 8.5, args={"Input Dims": [[8, 128], []], "External id": 3}),
        event("cudaLaunchKernel", 3, 2, "cuda_runtime", args={"correlation": 5}),
        kernel("volta_sgemm_64x64_nt", 12, 6, correlation=5, grid=[2, 2, 1]),
        event("aten::relu", 20, 4),
    ],
    deviceProperties=[{"id": 0, "name": "Tesla V100"}, {"id": 1, "name": "Tesla V100"}],
    distributedInfo={"rank": 0, "world_size": 2},
)


def names(trace: Trace) -> list[str]:
    return [trace.name(row) for row in range(len(trace.events))]


def notes(trace: Trace) -> list[str]:
    return [note.id for note in trace.notes]


ALL = ["ProfilerStep#1", "aten::mm", "cudaLaunchKernel", "volta_sgemm_64x64_nt", "aten::relu"]


def test_gzip_is_detected_by_content_and_may_have_several_members() -> None:
    half = len(SOUND) // 2
    members = gzip.compress(SOUND[:half]) + gzip.compress(SOUND[half:])
    for data in (SOUND, gzip.compress(SOUND), members, gzip.compress(gzip.compress(SOUND))):
        assert names(read(data)) == ALL
        assert notes(read(data)) == []


def test_truncated_json_is_read_up_to_the_break() -> None:
    cut = SOUND.index(b"aten::relu")
    trace = read(SOUND[:cut])
    assert names(trace) == ALL[:4]
    assert notes(trace) == ["truncated-file"]
    assert trace.source.world_size == 2


def test_truncated_after_a_complete_event() -> None:
    trace = read(SOUND[: SOUND.index(b"]}", SOUND.index(b"aten::relu"))])
    assert names(trace) == ALL
    assert notes(trace) == ["truncated-file"]


def test_truncated_gzip_is_read_up_to_the_break() -> None:
    # This file needs enough events for several blocks.
    many = to_bytes([event(f"aten::op{i * 7919 % 10007}", i, 1) for i in range(4000)])
    packed = gzip.compress(many)
    trace = read(packed[: len(packed) // 2])
    assert 500 < len(trace.events) < 4000
    assert notes(trace) == ["truncated-file"]


def test_truncated_bare_array() -> None:
    trace = read(b'[\n{"ph":"X","cat":"Operator","name":"a","pid":1,"tid":1,"ts":1,"dur":1},\n')
    assert names(trace) == ["a"]
    assert notes(trace) == ["truncated-file"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"aten::relu"', b'"aten::\x01\nrelu"'),
        (b'"aten::relu"', rb'"C:\Users\x\aten::relu"'),
        (b'"aten::relu"', b'"aten::\xff\xferelu"'),
        (b'"dur": 8.5', b'"dur": 8.5, "z": NaN'),
        (b'"dur": 8.5', b'"dur": 8.5, "z": -Infinity'),
        (b'"dur": 8.5', b'"dur": 8.5, "z": 1e999'),
        (b'"dur": 8.5', b'"dur": 8.5, "z": '),
        (b'"dur": 8.5,', b'"dur": 8.5,, "z": 1,'.replace(b",,", b",")),
        (b"[2, 2, 1]", b"[2, 2, 1,]"),
        (b'"correlation": 5}', b'"correlation": 5,}'),
    ],
)
def test_broken_json_is_repaired(before: bytes, after: bytes) -> None:
    damaged = SOUND.replace(before, after)
    assert damaged != SOUND
    trace = read(damaged)
    assert len(trace.events) == 5
    assert names(trace)[:4] == ALL[:4]
    assert "malformed-events" not in notes(trace)
    assert trace.source.world_size == 2


def test_trailing_comma_after_the_last_event() -> None:
    closing = SOUND.rindex(b"]}")
    assert names(read(SOUND[:closing] + b",\n" + SOUND[closing:])) == ALL


def test_events_after_damaged_ones_are_read() -> None:
    body = SOUND[:-1] + b', "baseTimeNanoseconds": 1790857026000000000, "with_stack": 1}'
    trace = read(body.replace(b'"aten::relu"', b'"aten::\x01relu"'))
    assert trace.source.origin_unix_ns == 1790857026000001000  # the first event is at 1 µs
    assert trace.source.has_stacks is True


def test_endless_white_space_ends() -> None:
    # Backtracking took cubic time: hours for this length.
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":1}'
    for tail in (b" " * 400_000 + b"nothing", b",\n" * 200_000 + b"]", b" " * 400_000 + b",]"):
        trace = read(b'{"schemaVersion": 1, "traceEvents": [' + event + tail)
        assert len(trace.events) <= 1


@pytest.mark.parametrize(
    ("duration", "malformed"), [(b"0", 0), (b"0.0", 0), (b"-1", 1), (b"null", 1)]
)
def test_an_event_without_length_is_sound(duration: bytes, malformed: int) -> None:
    trace = read(SOUND.replace(b'"dur": 8.5', b'"dur": ' + duration))
    assert names(trace) == ALL
    assert trace.events.duration_ns.tolist()[1] == 0
    assert [note.message[:12] for note in trace.notes] == ["1 event was "] * malformed


def test_unreadable_event_does_not_affect_others() -> None:
    damaged = SOUND.replace(b'"name": "aten::mm"', b'"name": "aten::mm')
    trace = read(damaged)
    assert names(trace) == [name for name in ALL if name != "aten::mm"]
    assert notes(trace)[0] == "malformed-events"
    assert "1 event was" in trace.notes[0].message


def test_damage_in_one_slice_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_SLICE_BYTES", 200)
    many = [event(f"op{i}", i, 1, args={"list": [{"a": i}, {"b": i}]}) for i in range(50)]
    sound = to_bytes(many)
    assert len(read(sound).events) == 50
    damaged = sound.replace(b'"op25"', b'"op\x0225"').replace(b'"op40"', b'"op40')
    trace = read(damaged)
    assert len(trace.events) == 49
    assert "1 event was" in trace.notes[0].message


def test_odd_values_are_repaired_or_skipped_and_counted() -> None:
    trace = read(
        to_bytes(
            [
                event("fine", 1, 50),
                event("strings", "2.5", "3", args={"External id": "12", "Input Dims": "[[8]]"}),
                event("negative", 10, -5),
                event("running", 12, None),
                event("unplaced", None, 1),
                {"ph": "X", "cat": "cpu_op", "pid": 10, "tid": 10, "ts": 9, "dur": 1},
                kernel("huge", 20, 1, correlation=10159970886766084423, stream="7"),
                "no event",
                7,
            ]
        )
    )
    assert names(trace) == ["fine", "strings", "negative", "running", "huge"]
    strings = named(trace, "strings")
    assert int(trace.events.start_ns[strings]) == 1500
    assert int(trace.events.duration_ns[strings]) == 3000
    assert trace.events.duration_ns[2:4].tolist() == [0, 0]
    (note,) = [note for note in trace.notes if note.id == "malformed-events"]
    # Two durations, one start and one name are missing or wrong; two entries are not events.
    assert note.message.startswith("6 events")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"  \n", "white space"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "git-LFS"),
        (b"[1,2,3]", "list of numbers"),
        (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "export_memory_timeline"),
        (b"PK\x03\x04rest", "ZIP"),
        (b"PK\x05\x06" + bytes(18), "empty ZIP"),
        (b"\x28\xb5\x2f\xfdrest", "zstd"),
        (b"\x50\x2a\x4d\x18" + bytes(8), "zstd"),
        (b"\x04\x22\x4d\x18" + bytes(8), "lz4"),
        (b"a.json" + bytes(251) + b"ustar" + bytes(250), "a tar archive"),
        (gzip.compress(b"a.json" + bytes(251) + b"ustar" + bytes(250)), "a tar archive"),
        (b"\x00\x01\x02\x03", "binary data"),
        (b"step,loss\n1,0.5\n", "text"),
        (b'{"schema": "1.0.2-chakra.0.0.4", "pid": 3, "nodes": [{"id": 1}]}', "ExecutionTrace"),
        (b'[\n{"ph": "i", "name": "CYCLE_START", "ts": 7, "s": "g"}]', "Horovod"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON lines"),
        (
            b'{"displayTimeUnit": "ns", "traceEvents": [{"ph": "M", "pid": 0, "name": '
            b'"process_name", "args": {"name": "/device:GPU:0"}}]}',
            "TensorFlow or JAX",
        ),
        (b'{"traceEvents": [{"ph": "X", "name": "v8", "cat": "v8", "ts": 1, "dur": 2}]}', "Chrome"),
        (
            to_bytes([event("EvaluateScript", 1, 2, "devtools.timeline")]),
            "of an unknown profiler: their categories are 'devtools.timeline'",
        ),
        (to_bytes([event("bare", 1, 2, "")]), "of an unknown profiler."),
        (b"SQLite format 3\0...CREATE TABLE runs", "SQLite database"),
        (b'{"loss": 3}', "no events"),
        (b"null", "text"),
        (b"{", "no events"),
        (b"[" * 100_000, "no events"),
        (b'{"traceEvents":' + b"[" * 100_000, "Chrome"),
        (b"\x1f\x8b\x08", "empty"),
    ],
)
def test_other_formats_are_named(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableProfileError) as caught:
        read(data)
    assert words in caught.value.message
    assert caught.value.where == "run/worker0.pt.trace.json"


def test_empty_profile_is_reported() -> None:
    trace = read(to_bytes([], deviceProperties=[]))
    assert (len(trace.events), notes(trace)) == (0, ["empty-profile"])
    # Categories that only Kineto writes, although nothing uses them.
    spans = [event("PyTorch Profiler (0)", 1, 9, "Trace"), event("other", 1, 9, "mine")]
    assert notes(read(to_bytes(spans)))[0] == "empty-profile"


SIGNS = (b'"', b"}", b"]", b"{", b"[", b",", b"\\", b":", b"null", b"-1", b"1e9")
VALUES = (b'"args": 3', b'"ts": "x"', b'"pid": []', b"9" * 40)


@examples(30)
@given(mutated(SOUND, *SIGNS, *VALUES), st.just(1.0) | st.floats(0, 1), st.booleans())
def test_any_bytes_raise_only_our_errors(data: bytes, share: float, packed: bool) -> None:
    data = data[: round(len(data) * share)]
    with suppress(PerfAdvisorError):
        read(gzip.compress(data, 1) if packed else data)


_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.sampled_from(["7", "0x1f", "stream 7", "1e400", "[[8, 2]]", "-1"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
_KEYS = [
    "correlation",
    "stream",
    "device",
    "External id",
    "Sequence number",
    "Fwd thread id",
    "Input Dims",
    "Input type",
    "grid",
    "block",
    "registers per thread",
    "est. achieved occupancy %",
    "bytes",
    "Collective name",
    "In msg nelems",
    "dtype",
    "Group size",
    "Call stack",
    "Addr",
    "Bytes",
    "Device Id",
    "Device Type",
]


@examples(30)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "ph": st.sampled_from(["X", "i", "M", None, 3]),
                "cat": st.sampled_from(
                    ["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "user_annotation", "x", 5]
                ),
                "name": st.sampled_from(
                    ["a", "[memory]", "gloo:all_reduce", "ncclDevKernel_x", "ProfilerStep#3", 1]
                ),
                "ts": _VALUES,
                "dur": _VALUES,
                "pid": _VALUES,
                "tid": _VALUES,
                "args": st.one_of(st.dictionaries(st.sampled_from(_KEYS), _VALUES), _VALUES),
            }
        ),
        max_size=6,
    ),
    st.dictionaries(
        st.sampled_from(
            [
                "deviceProperties",
                "distributedInfo",
                "baseTimeNanoseconds",
                "host_name",
                "record_shapes",
                "cuda_runtime_version",
                "traceName",
            ]
        ),
        _VALUES,
    ),
)
def test_any_values_raise_only_our_errors(events: list[object], header: dict[str, object]) -> None:
    with suppress(PerfAdvisorError):
        read(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}).encode())


class Endless(io.RawIOBase):
    """An endless file that repeats a piece, and counts the bytes read."""

    def __init__(self, head: bytes, piece: bytes) -> None:
        self._data, self._piece = head, piece
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "the whole file was asked for"
        while len(self._data) < size:
            self._data += self._piece * (1 + size // len(self._piece))
        taken, self._data = self._data[:size], self._data[size:]
        self.count += size
        assert self.count < 200_000_000, "reading does not end"
        return taken


@pytest.mark.parametrize(
    ("head", "piece", "words"),
    [
        (b'{"schemaVersion": 1, "traceEvents": [', b'{"a":', "an event is longer"),
        (b'{"schemaVersion": 1, "traceEvents": [', b" ", "an event is longer"),
        (b'{"schemaVersion": 1, "traceEvents": [{"name": "', b"x" * 1000, "an event is longer"),
        (b'{"schemaVersion": 1, "a": [', b"[[1],2],", "has no events"),
        (b'{"schemaVersion": 1', b', "a": 1', "has no events"),
    ],
)
def test_endless_event_is_given_up(
    head: bytes, piece: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_MAX_HEADER_BYTES", "_MAX_EVENT_BYTES", "_MAX_EFFORT_BYTES"):
        monkeypatch.setattr(document, limit, 6_000_000)
    with pytest.raises(UnreadableProfileError, match=words):
        next(read_kineto(Endless(head, piece), Source(path="x", format="")))


def test_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # 20 MB of one event in a few kilobytes: real traces compress 40 times at most.
    monkeypatch.setattr(compression, "_HARMLESS_BYTES", 10_000_000)
    event = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1},'
    packed = zlib.compressobj(9, wbits=31)
    data = packed.compress(b'{"schemaVersion": 1, "traceEvents": [')
    for _ in range(20):
        data += packed.compress(event * (1_000_000 // len(event)))
    with pytest.raises(UnreadableProfileError, match="inflate to more than"):
        read(data + packed.flush())


@examples(30)
@given(size=st.integers(60, 3000), packed=st.booleans())
def test_result_does_not_depend_on_the_slice_size(size: int, packed: bool) -> None:
    events = [
        event(f"op{i}", i, 1, args={"Input Dims": [[i], []], "list": [{"ph": i}, {"b": i}]})
        for i in range(40)
    ]
    data = to_bytes(events)[:-1] + b', "with_stack": 1, "mine": [{"ph": 1}, {"ph": 2}]}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "_SLICE_BYTES", size)
        trace = read(gzip.compress(data) if packed else data)
    assert names(trace) == [f"op{i}" for i in range(40)]
    assert trace.notes == ()
    assert trace.source.has_stacks is True


def test_absurdly_nested_event_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_MAX_EFFORT_BYTES", 1_000_000)
    deep = b'"args": {"Input Dims": ' + b"[" * 100_000 + b"]" * 100_000 + b"}, "
    nested = SOUND.replace(b'"name": "aten::mm", ', deep + b'"name": "aten::mm", ', 1)
    assert nested != SOUND
    trace = read(nested)
    assert names(trace) == [name for name in ALL if name != "aten::mm"]
    only = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", ' + deep + b'"ts": 1, "dur": 1}]}'
    with pytest.raises(UnreadableProfileError, match="these are Chrome trace events"):
        read(only)


@pytest.mark.parametrize(
    "bad", ["-nan(ind)", "nan(0x8000)", "1.#IND", "-1.#INF", "0x1p-3", "undefined", "NaNQ"]
)
def test_an_argument_that_is_no_json_costs_the_argument(bad: str) -> None:
    # Kineto prints occupancy and warps without asking whether they are finite.
    events = [
        kernel(f"gemm {k}", 10 * k, 8, **{"warps per SM": 4.5, "est. achieved occupancy %": 31})
        for k in range(6)
    ]
    text = to_bytes(events).decode().replace('"warps per SM": 4.5', f'"warps per SM": {bad}', 3)
    text = text.replace('"est. achieved occupancy %": 31', f'"est. x": [{bad}, 2]', 1)
    trace = read(text.encode())
    assert names(trace) == [f"gemm {k}" for k in range(6)]
    assert trace.events.duration_ns.tolist() == [8_000] * 6


def test_an_event_that_is_no_event_is_still_left_out() -> None:
    events = [event(f"aten::{name}", 4 * k, 2) for k, name in enumerate(("mm", "add", "mul"))]
    text = to_bytes(events).decode().replace('"name": "aten::add"', '"name" "aten::add"')
    trace = read(text.encode())
    assert names(trace) == ["aten::mm", "aten::mul"]
    assert any(note.id == "malformed-events" for note in trace.notes)


@pytest.mark.parametrize(
    ("tail", "is_cut"),
    [
        (', "traceName": "C:\\new\\"best".json"\n}', False),
        (', "traceName": "/tmp/a"b]}c.json"}\n', False),
        (', "traceName": "/tmp/a', True),
    ],
)
def test_an_error_after_the_last_event_is_no_truncation(tail: str, is_cut: bool) -> None:
    whole = to_bytes([event("aten::mm", 1, 2), event("aten::add", 4, 2)]).decode()
    trace = read((whole.removesuffix("}") + tail).encode())
    assert names(trace) == ["aten::mm", "aten::add"]
    assert any(note.id == "truncated-file" for note in trace.notes) is is_cut
