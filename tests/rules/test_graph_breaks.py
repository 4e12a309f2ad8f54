from __future__ import annotations

import io

from msgspec.structs import replace

from tb_perfadvisor.ingest.compile_log.reader import read_compile_log
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.launch.compilation import GraphBreaks
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, run_of
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Source, Trace
from tb_perfadvisor.trace.compile_log import GraphBreak
from tests.support.compile_logs import example_log


def steps(breaks: int, *, nested: bool = True) -> Trace:
    """Two steps of 100 us for each piece: 60 us of guards and Python, then 40 us of work."""
    builder = TraceBuilder()
    length = 100 * (breaks + 1)
    for number in range(2):
        at = number * length
        builder.step(number, us(at), us(at + length))
        for piece in range(breaks + 1):
            start = at + 100 * piece
            end = at + length if nested else start + 100
            name = f"Torch-Compiled Region: {piece}/0"
            builder.operator(name, us(start), us(end), launches=False)
            builder.launch(us(start + 60), us(start + 65))
            builder.kernel("triton_poi_fused_gelu_0", us(start + 60), us(start + 100))
    return builder.build()


def test_half_of_what_the_breaks_cost_is_expected() -> None:
    # The device idles 60 us after each of ten breaks; with a whole graph only once per step.
    whole = TraceBuilder()
    for number in range(2):
        at = 500 * number
        whole.step(number, us(at), us(at + 500))
        whole.operator("Torch-Compiled Region: 0/0", us(at), us(at + 500), launches=False)
        whole.launch(us(at + 60), us(at + 65))
        whole.kernel("triton_poi_fused_gelu_0", us(at + 60), us(at + 500))
    checked = check_rule(GraphBreaks, slow=steps(10), fixed=whole.build(), saves="600us")
    (finding,) = checked.findings
    assert "10 breaks per step" in finding.summary
    assert checked.expected_ns == 300_000


def test_launch_bound_does_not_count_it_again() -> None:
    (alone,) = find(LaunchBound, steps(10, nested=False)) or ()
    assert alone.saving is not None
    # Of the 60 us before each of 11 pieces in both steps, launch-bound counts the first only.
    assert alone.saving.high_ns == 2 * 11 * 60_000
    (launch_bound,) = find(LaunchBound, steps(10)) or ()
    assert launch_bound.saving is not None
    assert launch_bound.saving.high_ns == 2 * 60_000


def test_layers_compiled_one_by_one_are_left_alone() -> None:
    assert find(GraphBreaks, steps(10, nested=False)) == ()


def test_just_below_and_just_above_the_limits() -> None:
    assert find(GraphBreaks, steps(2)) == ()  # three is the minimum
    assert len(find(GraphBreaks, steps(3)) or ()) == 1
    # 180 of 400 us.
    assert len(find(GraphBreaks, steps(3), settings={"minimum_share": 0.44}) or ()) == 1
    assert find(GraphBreaks, steps(3), settings={"minimum_share": 0.46}) == ()


def test_without_torch_compile_it_is_not_applicable() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mm", 0, us(10))
    builder.kernel("sgemm", us(10), us(20))
    assert find(GraphBreaks, builder.build()) is None


def log_trace() -> Trace:
    source = Source(path="run/log", format="torch-compile-log")
    return read_compile_log(io.BytesIO(example_log()), source)


def test_a_log_alone_lists_the_lines() -> None:
    (finding,) = find(GraphBreaks, log_trace()) or ()
    assert finding.saving is None
    assert finding.severity == "low"
    assert finding.instance == "1 graph break, the first at project/train.py:11"
    (table,) = finding.evidence
    assert isinstance(table, Table)
    # Both compilations broke off at this line.
    assert table.rows == (
        (
            "project/train.py:11",
            "Failed to trace builtin operator",
            "forward",
            "Avoid calling builtin `print`.",
            2,
        ),
    )


def remedies_for(*breaks: GraphBreak) -> list[str]:
    """The first words of the remedies for a log with these breaks."""
    trace = log_trace()
    assert trace.compile_log is not None
    (finding,) = (
        find(GraphBreaks, replace(trace, compile_log=replace(trace.compile_log, breaks=breaks)))
        or ()
    )
    return [" ".join(remedy.text.split()[:6]) for remedy in finding.remedies]


def test_remedies_fit_the_reasons() -> None:
    traced = GraphBreak("0/0", None, "Failed to trace", hint="Avoid calling builtin `print`.")
    # As in a log of PyTorch's own tests of its backends.
    failed = GraphBreak("1/0", None, "BackendCompilerFailed: backend='x' raised: RuntimeError")
    changed, at_the_end = "Change these lines so that the", "Move what must stay in Python"
    backend = "The compiler's backend failed, so the"
    assert remedies_for(traced) == [changed, at_the_end]
    assert remedies_for(failed) == [backend]
    assert remedies_for(failed, traced) == [backend, changed, at_the_end]


def test_a_log_beside_the_profile_names_the_line_in_what_is_measured() -> None:
    log = log_trace().compile_log
    assert log is not None
    trace = replace(steps(10), source=replace(steps(10).source, rank=0))
    run = replace(run_of(trace), compile_logs=(replace(log, rank=0, start_unix_ns=None),))
    (finding,) = GraphBreaks().check(Signals(run))
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * 300_000  # the same as without the log
    assert "the first is at project/train.py:11" in finding.summary


def test_the_log_of_another_process_is_not_used() -> None:
    log = log_trace().compile_log
    assert log is not None
    run = replace(run_of(steps(10)), compile_logs=(log,))
    (finding,) = GraphBreaks().check(Signals(run))
    assert "torch.compile's log" not in finding.summary
