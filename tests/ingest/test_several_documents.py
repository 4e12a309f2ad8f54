"""Several documents in one file, and several files of one rank, are told apart or named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tb_perfadvisor.api import load
from tb_perfadvisor.ingest.discovery import discover
from tests.support.command import run
from tests.support.kineto_files import event, read


def document(rank: int, count: int = 4, *, tail: bool = False, start: float = 1e15) -> str:
    """A trace of some operators, whose name is the last key if there is a tail."""
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    names = [event(f"aten::mm_{rank}", start + 10 * k, 5) for k in range(count)]
    content = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": names}
    return json.dumps(content | ({"traceName": "a.json"} if tail else {}))


def gzipped(*parts: str) -> bytes:
    return b"".join(gzip.compress(part.encode()) for part in parts)


@pytest.mark.parametrize(
    "data",
    [
        gzipped(document(0), document(1)),
        gzipped(document(0, tail=True), document(1, tail=True)),
        (document(0) + document(1)).encode(),
        (document(0, tail=True) + "\n" + document(1)).encode(),
        # Longer than what is decoded at once.
        gzipped(document(0, 5_000), document(1, 5_000)),
    ],
)
def test_only_the_first_of_several_documents_is_read(data: bytes) -> None:
    trace = read(data)
    names = {trace.name(row) for row in range(len(trace.events))}
    assert names == {"aten::mm_0"}
    assert trace.source.rank == 0
    assert [note.id for note in trace.notes] == ["several-documents"]


def test_arrays_one_after_another() -> None:
    first, second = (json.dumps([event(f"aten::mm_{k}", 10 * k, 5)]) for k in range(2))
    trace = read(f"{first}\n{second}".encode())
    assert [trace.name(row) for row in range(len(trace.events))] == ["aten::mm_0"]
    assert [note.id for note in trace.notes] == ["several-documents"]


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
    (loaded,) = load(written(tmp_path, 1e15, 1e15 + 500))
    assert len(loaded.traces) == 2
    assert len({trace.source.host for trace in loaded.traces}) == 2
    (note,) = (note for note in loaded.notes if note.id == "claimed-rank")
    assert "2 files claim to be rank 0" in note.message


def test_two_recordings_of_one_rank_are_no_two_workers(tmp_path: Path) -> None:
    assert len(discover(written(tmp_path, 1e15, 1e15 + 5e6)).captures) == 2


def test_doctor_tells_which_rank_is_claimed_twice(tmp_path: Path) -> None:
    written(tmp_path, 1e15, 1e15 + 500)
    assert "2 of these files claim to be rank 0" in run("doctor", tmp_path, status=None).stdout
