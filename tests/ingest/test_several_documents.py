"""Several documents in one file, and several files of one rank, are told apart or named."""

from __future__ import annotations

import gzip
import io
import json
from collections import deque
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.anonymize.kineto import anonymize_kineto
from tb_perfadvisor.ingest.anonymize.names import Names
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.ingest.load import load_capture, read_worker
from tb_perfadvisor.trace import LazyTraces, Run, Source, Trace
from tests.support.command import run
from tests.support.kineto_files import event, read


def document(rank: int, count: int = 4, *, tail: bool = False, start: float = 1.7e15) -> str:
    """A trace of some operators, whose name is the last key if there is a tail."""
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    names = [event(f"aten::mm_{rank}", start + 10 * k, 5) for k in range(count)]
    content = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": names}
    return json.dumps(content | ({"traceName": "a.json"} if tail else {}))


def gzipped(*parts: str) -> bytes:
    return b"".join(gzip.compress(part.encode()) for part in parts)


def loaded(root: Path, data: bytes, name: str = "trace.json.gz") -> Run:
    (root / name).write_bytes(data)
    (run,) = load(root)
    return run


def operators(trace: Trace) -> set[str]:
    return {trace.name(row) for row in range(len(trace.events))}


@pytest.mark.parametrize(
    "data",
    [
        gzipped(document(0), document(1)),
        gzipped(document(0, tail=True), document(1, tail=True)),
        (document(0) + document(1)).encode(),
        (document(0, tail=True) + "\n" + document(1)).encode(),
        # Longer than what is decoded at once, and than the beginning that a listing reads.
        gzipped(document(0, 30_000), document(1, 30_000)),
        gzipped(document(1, 5_000, tail=True), document(0, 5_000)),
    ],
)
def test_documents_of_two_ranks_are_two_workers(tmp_path: Path, data: bytes) -> None:
    run = loaded(tmp_path, data)
    assert [trace.source.rank for trace in run.traces] == [0, 1]
    assert [operators(trace) for trace in run.traces] == [{"aten::mm_0"}, {"aten::mm_1"}]
    assert not any(trace.notes for trace in run.traces)
    (note,) = run.notes
    assert (note.id, note.severity) == ("several-documents", "info")
    assert note.message.startswith("trace.json.gz holds 2 documents.")


def test_a_document_is_read_again_when_its_trace_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "trace.json.gz").write_bytes(gzipped(*map(document, range(6))))
    listing = discover(tmp_path)
    (capture,) = listing.captures
    workers = read_worker(listing.root, capture.workers[0], None, keeps_trace=False)
    run = load_capture(listing, capture, reads=[lambda tell: workers])
    assert isinstance(run.traces, LazyTraces)
    assert operators(run.traces[4]) == {"aten::mm_4"}


def test_documents_of_one_rank_without_a_clock_are_not_taken_for_workers(tmp_path: Path) -> None:
    parts = (document(rank, start=start) for start in (1e9, 2e9) for rank in (0, 1))
    assert [trace.source.rank for trace in loaded(tmp_path, gzipped(*parts)).traces] == [0, 1]


def test_documents_that_state_no_rank_are_workers_if_their_times_overlap(tmp_path: Path) -> None:
    first, second, later = (
        json.dumps([event(f"aten::mm_{k}", start, 5) for start in (at, at + 100)])
        for k, at in enumerate((1.7e15, 1.7e15 + 50, 1.7e15 + 5e6))
    )
    run = loaded(tmp_path, f"{first}\n{second}{later}".encode(), "trace.json")
    assert [operators(trace) for trace in run.traces] == [{"aten::mm_0"}, {"aten::mm_1"}]
    assert len({trace.source.host for trace in run.traces}) == 2
    (note,) = run.notes
    assert (note.id, note.severity) == ("several-documents", "warning")
    assert "holds 3 documents. Of these, 1 of another time" in note.message


def test_later_recordings_of_the_same_ranks_are_named(tmp_path: Path) -> None:
    later = 1.7e15 + 3e9
    parts = (document(rank, start=start) for start in (1.7e15, later) for rank in (0, 1))
    run = loaded(tmp_path, gzipped(*parts))
    assert [trace.source.rank for trace in run.traces] == [0, 1]
    assert [trace.source.origin_unix_ns for trace in run.traces] == [1_700_000_000 * 10**9] * 2
    assert "holds 4 documents. Of these, 2 of another time" in run.notes[0].message


def test_two_documents_that_claim_one_rank_at_one_time_are_two_workers(tmp_path: Path) -> None:
    run = loaded(tmp_path, gzipped(document(0), document(0, start=1.7e15 + 5)))
    assert len({trace.source.host for trace in run.traces}) == 2
    (note,) = (note for note in run.notes if note.id == "claimed-rank")
    assert "2 documents claim to be rank 0" in note.message


def test_a_document_that_cannot_be_read_does_not_cost_those_before_it(tmp_path: Path) -> None:
    run = loaded(tmp_path, gzipped(document(0), document(1), json.dumps({"nodes": [{"a": 1}]})))
    assert [trace.source.rank for trace in run.traces] == [0, 1]
    messages = [note.message for note in run.notes]
    assert messages[0].startswith("What follows document 2 of trace.json.gz was left out: ")


def test_only_the_last_document_is_truncated(tmp_path: Path) -> None:
    data = gzipped(document(0, 5_000), document(1, 5_000))
    run = loaded(tmp_path, data[:-1_000])
    assert [[note.id for note in trace.notes] for trace in run.traces] == [[], ["truncated-file"]]


def test_more_documents_than_a_job_has_ranks_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableProfileError, match="more than 256 documents"):
        deque(read_kineto(io.BytesIO(document(0, 1).encode() * 300), Source("x", "")), maxlen=0)


def test_doctor_counts_documents(tmp_path: Path) -> None:
    data = gzipped(document(0, 30_000, tail=True), document(1), document(2))
    (tmp_path / "trace.json.gz").write_bytes(data)
    said = " ".join(run("doctor", tmp_path, status=None).stdout.split())
    assert "trace.json.gz holds 3 documents" in said


def test_an_anonymized_copy_has_all_documents() -> None:
    data = gzipped(document(0, tail=True), document(1))
    copy = b"".join(anonymize_kineto(io.BytesIO(data), Names(b"key"), where="x"))
    traces = read_kineto(io.BytesIO(copy), Source("x", ""))
    assert [operators(trace) for trace in traces] == [{"aten::mm_0"}, {"aten::mm_1"}]


def test_nothing_is_read_after_two_processes_began_to_write_into_one_file() -> None:
    first, second = document(0, 2_000), document(1, 2_000)
    pieces = [
        text[at : at + 4_096] for at in range(0, len(first), 4_096) for text in (first, second)
    ]
    trace = read("".join(pieces).encode())
    assert {trace.name(row) for row in range(len(trace.events))} == {"aten::mm_0"}
    # An event takes some 100 bytes.
    assert 20 < len(trace.events) < 60
    assert {note.id for note in trace.notes} >= {"several-documents", "truncated-file"}


@pytest.mark.parametrize("tail", [True, False])
def test_one_document_is_not_several(tail: bool) -> None:
    assert read(document(0, 5_000, tail=tail).encode()).notes == ()


def written(root: Path, *starts: float) -> Path:
    for place, start in enumerate(starts):
        name = f"host_{100 + place}.17640000000{place}0.pt.trace.json"
        (root / name).write_text(document(0, start=start))
    return root


def test_files_of_one_moment_that_claim_one_rank_are_two_workers(tmp_path: Path) -> None:
    (loaded,) = load(written(tmp_path, 1.7e15, 1.7e15 + 500))
    assert len(loaded.traces) == 2
    assert len({trace.source.host for trace in loaded.traces}) == 2
    (note,) = (note for note in loaded.notes if note.id == "claimed-rank")
    assert "2 files claim to be rank 0" in note.message


def test_two_recordings_of_one_rank_are_no_two_workers(tmp_path: Path) -> None:
    assert len(discover(written(tmp_path, 1.7e15, 1.7e15 + 5e6)).captures) == 2


def test_doctor_tells_which_rank_is_claimed_twice(tmp_path: Path) -> None:
    written(tmp_path, 1.7e15, 1.7e15 + 500)
    assert "2 of these files claim to be rank 0" in run("doctor", tmp_path, status=None).stdout
