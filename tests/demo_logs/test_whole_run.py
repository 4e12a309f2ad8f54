"""The demo of a whole run shows what its script did, by what it wrote down."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.api.training import DescribedRun, describe_runs
from tb_perfadvisor.training.pauses import Delay
from tests.demo_logs.test_labels import ABSOLUTE_PATH, MAX_FILE_BYTES

RUN = Path(__file__).resolve().parents[2] / "demo_logs" / "pytorch_whole_run"


@pytest.fixture(scope="module")
def label() -> dict[str, Any]:
    return dict(json.loads((RUN / "run.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def run() -> DescribedRun:
    (described,) = describe_runs(RUN)
    return described


@pytest.fixture(scope="module")
def delays(run: DescribedRun) -> dict[str, Delay]:
    assert run.training is not None
    return {delay.reason: delay for delay in run.training.delays}


def test_files_are_small_and_anonymous() -> None:
    for file in RUN.iterdir():
        content = file.read_bytes()
        assert len(content) < MAX_FILE_BYTES
        text = gzip.decompress(content) if file.suffix == ".gz" else content
        assert not ABSOLUTE_PATH.search(text), file.name


def test_profiles_are_placed_where_they_were_recorded(
    run: DescribedRun, label: dict[str, Any]
) -> None:
    assert run.training is not None
    assert (run.training.first_step, run.training.last_step) == (0, label["steps"])
    recordings = sorted(run.training.recordings, key=lambda recording: recording.start_ns)
    # Two steps of warm-up, and points each ten steps.
    at = [(begin + 2) // 10 * 10 for begin in label["profiled_at"]]
    assert [recording.first_step for recording in recordings] == at


def test_steps_became_slower_with_the_store(
    run: DescribedRun, label: dict[str, Any], delays: dict[str, Delay]
) -> None:
    assert run.training is not None
    recordings = sorted(run.training.recordings, key=lambda recording: recording.start_ns)
    before, after = recordings[1].step_ns, recordings[2].step_ns
    # 16 samples, each 1.1 ms later than before: at least 17.6 ms per step.
    assert before is not None
    assert after is not None
    assert 17_600_000 < after - before < 26_000_000
    steps = label["steps"] - label["slow_input_from"]
    assert delays["slower"].cost_ns == pytest.approx(steps * (after - before), rel=0.15)


def test_restart_costs_the_time_away_and_the_repeated_steps(
    label: dict[str, Any], delays: dict[str, Delay]
) -> None:
    crashed, restored = label["restart"]
    assert delays["restart"].first_step == crashed
    # Four seconds away, and 90 steps of about 11 ms once more.
    assert delays["restart"].cost_ns == pytest.approx(4e9 + (crashed - restored) * 11e6, rel=0.1)


def test_evaluation_and_checkpoints_are_told_apart(
    label: dict[str, Any], delays: dict[str, Delay]
) -> None:
    assert delays["evaluation"].every_steps == label["evaluated_every"]
    pauses = delays["pause"]
    # Steps 600 and 1,800; at 1,200 the run evaluates, too.
    assert pauses.first_step == label["saved_every"]
    assert pauses.cost_ns >= 2 * 1_500_000_000


def test_the_slow_store_is_found_in_the_later_profiles(run: DescribedRun) -> None:
    reports = sorted(run.reports, key=lambda report: report.recorded.start_unix_ns)  # type: ignore[union-attr]
    shares = [report.overview.input_wait_share or 0.0 for report in reports]
    # 21 of 29 ms, where it was 3 of 12 ms.
    assert 0 < max(shares[:2]) < 0.4 < 0.65 < min(shares[2:])
    assert all(report.whole_run is not None for report in reports)
