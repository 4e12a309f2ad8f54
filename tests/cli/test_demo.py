"""`perfadvisor demo` starts TensorBoard with synthetic profiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from tb_perfadvisor.api.training import describe_runs
from tb_perfadvisor.ingest.discovery import discover
from tests.support.command import error, run
from tests.support.waiting import address_in

START_S = 90


def check_described(logdir: Path) -> None:
    """The scalars fit the profile: 72.04 ms per step by its label, recorded after step 3,500."""
    run = logdir / "synthetic_gpu_allreduce_8rank"
    (described,) = describe_runs(run)
    training = described.training
    assert training is not None
    (regime,) = training.regimes
    assert regime.step_ns == pytest.approx(72_038_328, rel=0.01)
    (recording,) = training.recordings
    assert recording.first_step == 3_500
    assert recording.slowdown == pytest.approx(0, abs=0.01)
    costs = {delay.reason: (delay.count, delay.cost_ns) for delay in training.delays}
    # Six evaluations of 20 s, the last at the end, where nothing is logged after it.
    assert costs["evaluation"] == (5, pytest.approx(100e9, rel=0.02))
    assert costs["start"] == (1, pytest.approx(45e9, rel=0.02))
    # TensorBoard reads it, too: its checksums are right.
    (events,) = run.glob("events.out.tfevents.*")
    assert len(list(LegacyEventFileLoader(str(events)).Load())) == 1 + 601 + 6


PROFILES = [
    "synthetic_gpu_allreduce_8rank",
    "synthetic_gpu_allreduce_8rank_fixed",
    "synthetic_tpu_padded",
    "synthetic_tpu_padded_fixed",
]


@pytest.mark.skipif(os.name != "posix", reason="replaces the process")
def test_the_profiles_are_written_and_tensorboard_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_over(path: str, command: list[str]) -> None:
        assert command[1:] == [
            *("-m", "tensorboard.main", "--logdir", str(tmp_path / "demo")),
            *("--host", "127.0.0.1", "--port", "0"),
        ]
        sys.exit(0)

    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "execv", take_over)
    run("demo", "--port", "0")
    check_described(tmp_path / "demo")
    assert [capture.run for capture in discover(tmp_path / "demo").captures] == PROFILES


@pytest.mark.nightly
def test_the_tab_lists_slow_and_fixed_synthetic_profiles(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tb_perfadvisor", "demo", "--port", "0"],
            stdout=stream, stderr=stream,
            env={**os.environ, "PERFADVISOR_CACHE_DIR": str(tmp_path / "cache")},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        address = address_in(log, process, START_S)
        runs: list[str] = []
        while not runs:
            assert time.monotonic() < deadline, "no captures"
            captures_at = f"{address}data/plugin/perf_advisor/api/v1/captures"
            with urlopen(captures_at, timeout=30) as answer:
                captures: list[dict[str, Any]] = json.load(answer)["captures"]
            runs = [capture["run"] for capture in captures]
    finally:
        process.terminate()
        process.wait(30)
    with_scalars = {capture["run"] for capture in captures if capture["has_scalars"]}
    assert with_scalars == {
        "synthetic_gpu_allreduce_8rank",
        "synthetic_gpu_allreduce_8rank_fixed",
    }
    check_described(tmp_path / "cache" / "demo")
    assert sorted(runs) == PROFILES


def test_an_unwritable_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "file"))
    assert "PERFADVISOR_CACHE_DIR" in error("demo")
