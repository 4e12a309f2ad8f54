"""What belongs to the step in TensorFlow, on real profiles.

Expected numbers are those of the corpus' INDEX.md ("Truths"), worked out from the raw events.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.api import load
from tb_perfadvisor.trace import EventKind


def test_a_single_run_of_a_function_that_waits_for_input(corpus: Path) -> None:
    report = analyze(corpus / "sagemaker-debugger/tfprofiler_timeline")
    assert (report.steps.used, report.steps.mean_ns) == (1, 84_553_000)
    assert report.steps.source == "runs of a TensorFlow function"
    # 51.5 of 84.553 ms in IteratorGetNextOp::DoCompute. The overview page beside it: 61.0 %.
    assert report.overview.input_wait_share == pytest.approx(0.61, abs=0.002)
    first = report.findings[0]
    assert first.rule_id == "input-stall"
    assert first.saving is not None
    assert first.saving.share_expected == pytest.approx(0.61, abs=0.002)
    (note,) = (note for note in report.notes if note.id == "other-results")
    assert note.severity == "info"
    assert "agree with the events: 84.6 ms per step, 61.0 % of it waiting for input" in note.message


def test_the_operators_of_its_pipeline_are_input(corpus: Path) -> None:
    (run,) = load(corpus / "sagemaker-debugger/tfprofiler_timeline")
    trace = run.traces[0]
    gathers = [
        EventKind(int(trace.events.kind[row])).name
        for row in range(len(trace.events))
        if trace.name(row).endswith(":GatherV2")
    ]
    # Five runs of the function of ParallelMap, of two each, on threads named tf_Compute.
    assert gathers == ["INPUT_WORK"] * 10
