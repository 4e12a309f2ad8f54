"""What belongs to the step in TensorFlow, on real profiles.

Expected numbers are those of the corpus' INDEX.md ("Truths"), worked out from the raw events.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze, load
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
    # Half of the 4.1 % without a name at most are expected to go with the wait.
    assert 0.61 <= first.saving.share_expected <= 0.61 + 0.041 / 2


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


def test_use_of_the_matrix_units_in_a_recorders_sums(corpus: Path, tmp_path: Path) -> None:
    session = corpus / "xprof-demo/plugins/profile/Cloud-TPU"
    # The same recording with a use of 4.1 % in place of 48.8 %.
    edited = tmp_path / "plugins/profile/edited"
    edited.mkdir(parents=True)
    for file in session.iterdir():
        (edited / file.name).write_bytes(file.read_bytes().replace(b'"48.8%"', b'"4.1%"'))
    for path, use in ((session, "48.8 %"), (tmp_path, "4.1 %")):
        report = analyze(path)
        (finding,) = report.findings
        assert (finding.rule_id, finding.severity) == ("low-matrix-unit-use", "low")
        assert f"reach {use} of their peak" in finding.summary
        # tensorflow_stats: Conv2DBackpropInput 3.501, BackpropFilter 2.293 and Conv2D 2.036 s lead.
        table: Any = finding.evidence[0]
        assert [row[0] for row in table.rows[:3]] == [
            "Conv2DBackpropInput",
            "Conv2DBackpropFilter",
            "Conv2D",
        ]
