"""Captures become runs: order, notes, errors."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.execution.process_pool import open_pool
from tb_perfadvisor.ingest.captures import Capture, Listing, ProfileFile
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture, start_reading
from tests.support.corpus_traces import CORPUS


def trace(**header: Any) -> bytes:
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": [event]}).encode()


def ranked(rank: int, world_size: int, **header: Any) -> bytes:
    return trace(distributedInfo={"rank": rank, "world_size": world_size}, **header)


def put(root: Path, contents: dict[str, bytes]) -> Listing:
    for path, data in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return discover(root)


def test_traces_are_in_order_of_rank(tmp_path: Path) -> None:
    listing = put(
        tmp_path,
        {
            "run/b_1.1795226000001.pt.trace.json": ranked(0, 3, host_name="vm"),
            "run/a_2.1795226000002.pt.trace.json": ranked(2, 3, host_name="vm"),
            "run/c_3.1795226000000.pt.trace.json": ranked(1, 3, host_name="vm"),
        },
    )
    (capture,) = listing.captures
    heard: list[tuple[str, float]] = []
    run = load_capture(listing, capture, lambda what, share: heard.append((what, share)))
    assert [t.source.rank for t in run.traces] == [0, 1, 2]
    assert (run.id, run.name, run.session) == (capture.id, "run", "2026_11_21_01_53_20.000")
    assert run.notes == ()
    assert [t.source.host for t in run.traces] == ["vm", "vm", "vm"]
    assert {t.source.run for t in run.traces} == {"run"}
    assert heard[0] == ("reading run/b_1.1795226000001.pt.trace.json", 0.0)
    # While the second of three files is read, between one and two thirds are.
    second = [share for stage, share in heard if stage.startswith("reading run/c_3")]
    assert second
    assert all(1 / 3 <= share <= 2 / 3 for share in second)
    assert [share for _, share in heard] == sorted(share for _, share in heard)
    assert heard[-1] == ("read", 1.0)


def at(root: Path) -> Listing:
    return Listing(str(root), (), (), scanned_files=0, is_complete=True)


def test_files_read_in_other_processes_make_the_same_run(tmp_path: Path) -> None:
    paths = [f"rank{rank}.1795226000001.pt.trace.json" for rank in range(3)]
    listing = put(tmp_path, {path: ranked(rank, 3) for rank, path in enumerate(paths)})
    (tmp_path / paths[1]).write_bytes(b"<html>gone</html>")
    (capture,) = listing.captures
    with open_pool(2) as executor:
        run = load_capture(listing, capture, reads=start_reading(listing, capture, executor))
    here = load_capture(listing, capture)
    assert [trace.source for trace in run.traces] == [trace.source for trace in here.traces]
    assert run.notes == here.notes
    assert run.traces[1].events.start_ns.tolist() == here.traces[1].events.start_ns.tolist()
    assert run.traces[1].name(0) == "a"


def test_a_process_that_dies_is_an_error_of_its_file(tmp_path: Path) -> None:
    listing = put(tmp_path, {"rank0.1795226000001.pt.trace.json": trace()})
    (capture,) = listing.captures
    with open_pool(2) as executor:
        with pytest.raises(BrokenExecutor):
            executor.submit(os._exit, 9).result()
        for _ in range(2):
            with pytest.raises(UnreadableProfileError, match=r"was ended.*fewer workers"):
                load_capture(listing, capture, reads=start_reading(listing, capture, executor))


def test_missing_ranks_are_a_note(tmp_path: Path) -> None:
    listing = put(tmp_path, {"a_1.1795226000001.pt.trace.json": ranked(1, 12)})
    (note,) = load_capture(listing, listing.captures[0]).notes
    assert (note.id, note.severity) == ("missing-ranks", "warning")
    assert note.message.startswith(
        "The files hold 1 of 12 ranks; missing: 0, 2, 3, 4, 5, 6, 7, 8 and 3 more."
    )


def test_one_bad_file_among_many_is_a_note(tmp_path: Path) -> None:
    listing = put(
        tmp_path,
        {
            "rank0.1795226000001.pt.trace.json": trace(),
            "rank1.1795226000001.pt.trace.json": trace(),
        },
    )
    (tmp_path / "rank1.1795226000001.pt.trace.json").write_bytes(b"<html>gone</html>")
    run = load_capture(listing, listing.captures[0])
    assert [t.source.rank for t in run.traces] == [0]
    note, changed = run.notes
    assert changed.id == "file-changed"  # it was replaced after it was listed
    assert note.id == "unsupported-file"
    assert "rank1.1795226000001.pt.trace.json was left out: this is a web page" in note.message


def test_only_bad_files_is_an_error(tmp_path: Path) -> None:
    paths = ["rank0.1795226000001.pt.trace.json", "rank1.1795226000001.pt.trace.json"]
    listing = put(tmp_path, dict.fromkeys(paths, trace()))
    for path in paths:
        (tmp_path / path).write_bytes(b"")
    with pytest.raises(UnreadableProfileError, match=r"none of its 2 files .* the file is empty"):
        load_capture(listing, listing.captures[0])
    for path in paths:
        (tmp_path / path).unlink()
    with pytest.raises(UnreadableProfileError, match="cannot be opened"):
        load_capture(listing, listing.captures[0])


def test_a_single_bad_file_keeps_its_own_error(tmp_path: Path) -> None:
    capture = Capture("0", ".", "s", "xplane", (ProfileFile("h.xplane.pb", 3, 0),))
    (tmp_path / "h.xplane.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(UnreadableProfileError, match=r"h\.xplane\.pb"):
        load_capture(at(tmp_path), capture)


def test_similar_workers_get_distinct_names(tmp_path: Path) -> None:
    paths = ("one.json", "two.json")
    for path in paths:
        (tmp_path / path).write_bytes(trace(host_name="container"))
    files = tuple(ProfileFile(path, 1, 0) for path in paths)
    run = load_capture(at(tmp_path), Capture("0", ".", "s", "kineto", files))
    assert [t.source.host for t in run.traces] == ["one", "two"]


def test_loading_a_path_skips_unreadable_files(tmp_path: Path) -> None:
    put(tmp_path, {"a/x.pt.trace.json": trace(), "b/h.xplane.pb": b"\xff\xff\xff"})
    assert [run.name for run in load(tmp_path)] == ["a"]


def tool_result(step_ms: float) -> bytes:
    columns = [{"id": name} for name in ("stepnum", "computeTimeMs", "inputTimeMs")]
    row = {"c": [{"v": "0"}, {"v": step_ms}, {"v": 0}]}
    return json.dumps([{"cols": columns, "rows": [row]}]).encode()


def test_tool_results_of_a_host_are_one_worker(tmp_path: Path) -> None:
    session = "run/plugins/profile/s"
    listing = put(
        tmp_path,
        {
            f"{session}/b.overview_page.json": tool_result(20.0),
            f"{session}/b.input_pipeline.json": tool_result(20.0),
            f"{session}/a.input_pipeline.json": tool_result(10.0),
            f"{session}/c.input_pipeline.json": b"[]",
            f"{session}/a.op_profile.json": b"<html>",
        },
    )
    (capture,) = listing.captures
    heard: list[tuple[str, float]] = []
    run = load_capture(listing, capture, lambda what, share: heard.append((what, share)))
    assert [(t.source.host, t.source.path.rsplit("/", 1)[-1]) for t in run.traces] == [
        ("a", "a.input_pipeline.json"),
        ("b", "b.input_pipeline.json"),
    ]
    assert [trace.duration_ns for trace in run.traces] == [10_000_000, 20_000_000]
    assert [share for _, share in heard] == sorted(share for _, share in heard)
    assert dict(reversed(heard)) == {  # where each begins
        f"reading {session}/a.input_pipeline.json": 0,
        f"reading {session}/b.input_pipeline.json": pytest.approx(1 / 3),
        f"reading {session}/c.input_pipeline.json": pytest.approx(2 / 3),
        "read": 1,
    }
    (note,) = run.notes
    assert note.message.startswith(f"{session}/c.input_pipeline.json was left out")
    (note,) = (note for note in run.traces[0].notes if note.id == "unsupported-file")
    assert note.message.startswith(f"{session}/a.op_profile.json was left out: this is not JSON")


def test_recorded_totals_pass_between_processes(tmp_path: Path) -> None:
    listing = put(tmp_path, {"plugins/profile/s/h.input_pipeline.json": tool_result(3.0)})
    (trace,) = load_capture(listing, listing.captures[0]).traces
    with open_pool(1) as executor:
        reads = start_reading(listing, listing.captures[0], executor)
        (other,) = load_capture(listing, listing.captures[0], reads=reads).traces
    assert other.totals == trace.totals


@pytest.mark.corpus
def test_recordings_load_as_their_index_says() -> None:
    (ddp,) = load(CORPUS / "local-torch2.13-cpu" / "ddp_gloo_2rank")
    assert [(t.source.rank, t.source.world_size) for t in ddp.traces] == [(0, 2), (1, 2)]
    assert ddp.notes == ()
    assert len(load(CORPUS / "local-torch2.13-cpu" / "repeat2_plain_json")) == 2
    assert len(load(CORPUS / "quentin-tutorial" / "transformer")) == 2
    (sampled,) = load(CORPUS / "hta" / "trace_filter")
    assert [t.source.rank for t in sampled.traces] == [0, 1]
    assert sampled.notes[0].message.startswith("The files hold 2 of 128 ranks")
    (tpu,) = load(CORPUS / "xprof-test")
    assert (tpu.session, len(tpu.traces)) == ("tpu_inference_2_2cc1243f", 1)


@pytest.mark.corpus
def test_every_corpus_file_is_recognized() -> None:
    listing = discover(str(CORPUS))
    assert listing.is_complete
    rejected = {entry.path: entry.reason for entry in listing.rejected}
    for path, words in (
        ("astra-sim/result_eg/eg.rank_0.pt.trace.json", "ExecutionTrace"),
        ("derived-malformed/empty_file/worker0.1.pt.trace.json", "empty"),
        ("derived-malformed/html_error_page/worker0.1.pt.trace.json", "web page"),
        ("derived-malformed/json_number_list/worker0.1.pt.trace.json", "numbers"),
        ("sagemaker-debugger/8278c748/trace.json", "Horovod"),
        ("xprof-demo-data/trace_viewer_trace.json", "of an unknown profiler"),
        ("xprof-demo-data/plugins/profile/demo_b69c7a7d", "only op_profile"),
    ):
        assert words in rejected[path]
    found = {file.path for capture in listing.captures for file in capture.files}
    kineto = Path(listing.root).rglob("*.pt.trace.json*")
    relative = {path.relative_to(listing.root).as_posix() for path in kineto}
    assert relative - rejected.keys() <= found
    assert not any("local-jax" in path for path in rejected)


@pytest.mark.parametrize("how", ["grows", "is replaced", "is truncated", "is deleted"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, how: str) -> None:
    name = "rank0.1795226000001.pt.trace.json"
    whole = trace()
    listing = put(tmp_path, {name: whole})
    (capture,) = listing.captures
    path = tmp_path / name
    if how == "grows":
        path.write_bytes(whole[:-2] + b"," + whole.split(b"[", 1)[1])
    elif how == "is replaced":
        (tmp_path / "new").write_bytes(trace(record_shapes=1))
        (tmp_path / "new").replace(path)
    elif how == "is truncated":
        path.write_bytes(whole[:-3])
    else:
        path.unlink()
        with pytest.raises(UnreadableProfileError, match="No such file"):
            load_capture(listing, capture)
        return
    run = load_capture(listing, capture)
    assert "file-changed" in [note.id for note in run.notes]


def test_an_unchanged_file_has_no_note(tmp_path: Path) -> None:
    listing = put(tmp_path, {"rank0.1795226000001.pt.trace.json": trace()})
    run = load_capture(listing, listing.captures[0])
    assert run.notes == ()


def test_a_job_holds_the_files_of_one_worker_only() -> None:
    # 4,096 jobs that hold 4,096 files each would take minutes to send.
    files = tuple(ProfileFile(f"rank{rank}.json", 1, 0, rank=rank) for rank in range(4096))
    capture = Capture("0", ".", "s", "kineto", files)
    reads = start_reading(Listing(".", (capture,), (), 4096, True), capture)
    assert len(reads) == 4096
    assert len(pickle.dumps(reads[17])) < 1000


def test_the_snapshot_of_each_rank() -> None:
    files = tuple(ProfileFile(f"rank{rank}.json", 1, 0, rank=rank) for rank in range(3))
    first, other, late = (
        ProfileFile(name, 1, 0, rank=rank) for name, rank in (("b", 2), ("c", 2), ("d", 0))
    )
    capture = Capture("0", ".", "s", "kineto", files, snapshots=(first, other, late))
    assert [worker.snapshot for worker in capture.workers] == [late, None, first]
    alone = Capture("0", ".", "s", "kineto", files[:1], snapshots=(first,))
    assert [worker.snapshot for worker in alone.workers] == [first]
