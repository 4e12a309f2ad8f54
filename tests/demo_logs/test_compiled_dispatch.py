"""The same program on the device, launched in three ways: the report must be the same."""

from __future__ import annotations

from io import BytesIO

import pytest
from msgspec.structs import replace

from demo_logs.record.compiled import Dispatch, play, write_compiled
from demo_logs.record.compiled.profile import step_ps
from demo_logs.record.synthetic_tpu import FITTING, PADDED, tpu_attention
from tb_perfadvisor import analyze
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.trace import Source, Trace

WAYS = (
    (Dispatch.AHEAD, True),
    (Dispatch.AHEAD, False),
    (Dispatch.UNMARKED, False),
    (Dispatch.SYNCHRONOUS, True),
    (Dispatch.SYNCHRONOUS, False),
)
LAYERS = 8
"""A step of a millisecond, in which the launch of the next one is no longer noticed."""


def trace_of(length: int, dispatch: Dispatch, *, has_step_line: bool) -> Trace:
    one = tpu_attention(length)
    layers = replace(one, operations=one.operations * LAYERS)
    written = write_compiled(layers, dispatch, has_step_line=has_step_line)
    return read_xplane(BytesIO(written), Source(path="x", format=""))


def findings(report: Report) -> list[tuple[str, str]]:
    return [(finding.rule_id, finding.severity) for finding in report.findings]


@pytest.mark.parametrize(("length", "has_findings"), [(PADDED, True), (FITTING, False)])
def test_step_times_and_findings_do_not_depend_on_how_the_host_launches(
    length: int, has_findings: bool
) -> None:
    one = tpu_attention(length)
    # A step is one run and the gap to the next one.
    step_ns = step_ps(replace(one, operations=one.operations * LAYERS)) / 1000
    reports = [
        analyze(trace_of(length, dispatch, has_step_line=has_line)) for dispatch, has_line in WAYS
    ]
    for report in reports:
        assert report.steps.used == 5
        assert report.overview.step_time_ns == pytest.approx(step_ns, rel=0.01)
        assert report.overview.device_busy_share == pytest.approx(1, abs=0.01)
        assert findings(report) == findings(reports[0])
        assert bool(report.findings) is has_findings


@pytest.mark.parametrize(("dispatch", "has_line"), WAYS)
def test_the_device_does_the_same_at_the_same_times(dispatch: Dispatch, has_line: bool) -> None:
    trace = trace_of(FITTING, dispatch, has_step_line=has_line)
    expected = trace_of(FITTING, Dispatch.AHEAD, has_step_line=True)
    assert since_first(trace) == since_first(expected)
    rows = trace.hlo_events.row
    assert (trace.events.launched_by[rows] >= 0).all()
    assert len(rows) == 5 * LAYERS * len(play(tpu_attention(FITTING).operations).executions)


def since_first(trace: Trace) -> list[int]:
    """When each operation begins, since the first one."""
    start_ns = trace.events.start_ns[trace.hlo_events.row]
    return (start_ns - start_ns.min()).tolist()
