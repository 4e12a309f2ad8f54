from __future__ import annotations

import json
import pickle
import sqlite3
from pathlib import Path

import pytest

from tb_perfadvisor.ingest.discovery import discover

# What FlightRecorder::dump writes (torch/csrc/distributed/c10d/FlightRecorder.hpp), shortened.
FLIGHT_RECORDER = {
    "version": "2.10",
    "nccl_version": "2.27.5",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 3}},
    "entries": [
        {"record_id": 0, "collective_seq_id": 1, "p2p_seq_id": 0, "profiling_name": "nccl:barrier"}
    ],
}


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("a pickle was executed",))


def database(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def refused(folder: Path) -> str:
    listing = discover(folder)
    assert listing.captures == ()
    (rejected,) = listing.rejected
    return rejected.reason


@pytest.mark.parametrize("name", ["nccl_trace_rank_3", "comm_lib_trace_rank_0", "dump_rank_1.json"])
def test_dumps_of_the_flight_recorder(tmp_path: Path, name: str) -> None:
    is_json = name.endswith(".json")
    data = json.dumps(FLIGHT_RECORDER).encode() if is_json else pickle.dumps(FLIGHT_RECORDER, 2)
    (tmp_path / name).write_bytes(data)
    assert "flight recorder" in refused(tmp_path)
    assert "torchfrtrace" in refused(tmp_path)


def test_a_pickle_is_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({**FLIGHT_RECORDER, "evil": Evil()}, 2))
    assert "flight recorder" in refused(path)
    assert capsys.readouterr().out == ""


def test_databases_are_told_apart_by_their_tables(tmp_path: Path) -> None:
    database(tmp_path / "nvvp.sqlite", "CREATE TABLE CUPTI_ACTIVITY_KIND_MARKER (id INT)")
    database(tmp_path / "77_results.db", "CREATE TABLE rocpd_kernel_dispatch_00ab (start INT)")
    database(tmp_path / "mlflow.db", "CREATE TABLE experiments (name TEXT)")
    reasons = {each.path: each.reason for each in discover(tmp_path).rejected}
    assert reasons.keys() == {"77_results.db"}
    assert "database of AMD's rocprof" in reasons["77_results.db"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.nsys-rep", b"\x00\x01binary", "nsys export --type sqlite FILE.nsys-rep"),
        ("a.ncu-rep", b"NVR\x00\x01", "Nsight Compute"),
        ("a.pftrace", b"\x0a\x10\x01", "Perfetto"),
        ("out_results.json", b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "rocprof"),
        # tblextr.py of rocprof 1
        (
            "results.json",
            b'{"traceEvents":[{"args":{"name":"2 CPU HIP API"},"ph":"M","pid":2}]}',
            "rocprof",
        ),
        ("x_kernel_trace.csv", b'"Kind","Agent_Id","Queue_Id","Kernel_Name"\n', "rocprof"),
        ("results.stats.csv", b'"Name","Calls","TotalDurationNs","AverageNs"\n', "rocprof"),
    ],
)
def test_files_of_other_recorders(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert words in refused(tmp_path)
    assert words in refused(tmp_path / name)


def test_files_of_no_recorder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_bytes(b"epoch,loss\n1,0.5\n")
    (tmp_path / "train.log").write_bytes(b"epoch 1\n")
    listing = discover(tmp_path)
    assert (listing.captures, listing.rejected) == ((), ())
