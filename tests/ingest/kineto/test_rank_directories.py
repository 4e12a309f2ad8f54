"""Ranks that each log into a directory of their own are one run, if their files prove it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.ingest.discovery import discover

_BASE_NS = 1_790_000_000_000_000_000
FILE = "host_123.1700000000000000000.pt.trace.json"


def put(root: Path, path: str, rank: int, start_s: float = 0.0, **info: Any) -> None:
    """Write what a rank recorded: the beginning of the file as PyTorch 2.13 writes it."""
    world = info.pop("world_size", 4)
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": [*range(world)]}
    own = {"pg_name": str(rank), "pg_desc": "own", "pg_size": 1, "ranks": [rank]}
    begin_us = (1_000 + start_s) * 1e6
    step = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 1000.0}
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "gloo",
            "rank": rank,
            "world_size": world,
            "pg_config": [group, own],
            **info,
        },
        "baseTimeNanoseconds": _BASE_NS,
        "traceEvents": [
            {**step, "name": f"ProfilerStep#{number}", "ts": begin_us + 1000 * number}
            for number in range(3)
        ],
    }
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(trace).encode()
    file.write_bytes(gzip.compress(text) if path.endswith(".gz") else text)


def found(root: Path) -> list[tuple[str, list[int | None]]]:
    return [(c.run, [file.rank for file in c.files]) for c in discover(root).captures]


@pytest.mark.parametrize(
    ("folders", "run"),
    [
        (("exp/rank0", "exp/rank1", "exp/rank2"), "exp"),
        (("rank_0", "rank_1", "rank_2"), "."),
        (("exp/a/profile", "exp/b/profile", "exp/c/profile"), "exp/profile"),
    ],
)
def test_a_directory_for_each_rank(tmp_path: Path, folders: tuple[str, ...], run: str) -> None:
    for rank, folder in enumerate(folders):
        # Their clocks and their starts differ by some seconds.
        put(tmp_path, f"{folder}/{FILE}", rank, start_s=3.5 * rank)
    assert found(tmp_path) == [(run, [0, 1, 2])]


def test_a_directory_for_each_host(tmp_path: Path) -> None:
    for rank in range(4):
        put(tmp_path, f"exp/node{rank // 2}/rank{rank}.pt.trace.json.gz", rank)
    assert found(tmp_path) == [("exp", [0, 1, 2, 3])]
    report = analyze(tmp_path)
    assert [worker.rank for worker in report.workers] == [0, 1, 2, 3]


def test_several_recordings_in_each_directory(tmp_path: Path) -> None:
    for rank in range(2):
        for turn in range(3):
            name = f"host_1.17000000{turn}0000000000.pt.trace.json"
            put(tmp_path, f"exp/rank{rank}/{name}", rank, start_s=10 * turn + rank)
    assert found(tmp_path) == [("exp", [0, 1])] * 3


def test_runs_at_the_same_time_are_told_apart_by_their_directories(tmp_path: Path) -> None:
    for run in ("lr1", "lr2"):
        for rank in range(2):
            put(tmp_path, f"{run}/rank{rank}/{FILE}", rank)
    assert found(tmp_path) == [("lr1", [0, 1]), ("lr2", [0, 1])]


@pytest.mark.parametrize(
    "second",
    [
        {"rank": 0},
        {"start_s": 120.0},
        {"world_size": 8},
        {"backend": "nccl", "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
        {"rank": 7},
        {"world_size": 1},
    ],
    ids=["same rank", "later", "other world", "other group", "no rank of it", "alone"],
)
def test_names_alone_prove_nothing(tmp_path: Path, second: dict[str, Any]) -> None:
    put(tmp_path, f"exp/rank0/{FILE}", 0)
    put(tmp_path, f"exp/rank1/{FILE}", **{"rank": 1, **second})
    assert [run for run, _ in found(tmp_path)] == ["exp/rank0", "exp/rank1"]


def test_a_rank_that_recorded_more_often_is_not_guessed_at(tmp_path: Path) -> None:
    put(tmp_path, f"exp/rank0/{FILE}", 0)
    put(tmp_path, f"exp/rank1/{FILE}", 1)
    put(tmp_path, "exp/rank1/host_1.1700000900000000000.pt.trace.json", 1, start_s=900)
    assert len(found(tmp_path)) == 3


def test_files_that_do_not_name_their_run_stay_alone(tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / "exp" / f"rank{rank}"
        folder.mkdir(parents=True)
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0}
        text = json.dumps({"schemaVersion": 1, "traceEvents": [{**event, "dur": 1.0}]})
        (folder / FILE).write_text(text)
    assert [run for run, _ in found(tmp_path)] == ["exp/rank0", "exp/rank1"]


def test_without_groups_all_ranks_must_be_there(tmp_path: Path) -> None:
    for rank in range(2):
        put(tmp_path, f"whole/rank{rank}/{FILE}", rank, pg_config=[], world_size=2)
        put(tmp_path, f"part/rank{rank}/{FILE}", rank, pg_config=[], world_size=4)
    assert [run for run, _ in found(tmp_path)] == ["part/rank0", "part/rank1", "whole"]
