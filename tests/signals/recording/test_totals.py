"""Traces with only recorded totals: what signals derive from them, and what stays unknown."""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.signals import (
    Cause,
    Need,
    Signals,
    collectives_of,
    ranks_of,
    reference_worker,
    why_missing,
)
from tb_perfadvisor.signals.recording.availability import (
    shows_communication,
    shows_copies,
    shows_host_events,
    shows_input,
)
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import Aspect, KernelTotal, OperatorTotal, Totals, Trace

EVERYTHING = frozenset(Aspect)
# Three steps with a gap after each marker, no device work in the last, a collective in each.
BUILDER = TraceBuilder(framework="tensorflow").device("Tesla T4").device("Tesla T4", index=1)
for step in range(3):
    BUILDER.step(step, ms(10 * step), ms(10 * step + 8))
    if step < 2:
        BUILDER.kernel("sum", ms(10 * step), ms(10 * step + 4))
        BUILDER.collective("sum", ms(10 * step + 4), ms(10 * step + 6))
PLAIN = BUILDER.build()


def summed(shows: frozenset[Aspect] = EVERYTHING, trace: Trace = PLAIN) -> Signals:
    totals = Totals(shows=shows, remedy="Record events.")
    return Signals(run_of(replace(trace, totals=totals)))


def test_no_step_is_excluded_for_missing_totals() -> None:
    assert [step.number for step in Signals(run_of(PLAIN)).steps.excluded] == [2]
    assert len(summed().steps) == 3


def test_time_between_markers_is_not_counted_as_between_steps() -> None:
    assert Signals(run_of(PLAIN)).attribution.total_ns(Cause.BETWEEN_STEPS) > 0
    signals = summed()
    assert signals.attribution.total_ns(Cause.BETWEEN_STEPS) == 0
    assert not signals.shows_step_ends


def test_one_timeline_represents_all_devices() -> None:
    assert Signals(run_of(PLAIN)).device.used == 1
    assert summed().device.used == 2


def test_missing_categories_are_unknown() -> None:
    signals = summed(frozenset())
    seen = (shows_input(signals), shows_communication(signals), shows_copies(signals))
    assert seen == (False, False, False)
    assert not shows_host_events(signals)
    signals = summed()
    seen = (shows_input(signals), shows_communication(signals), shows_copies(signals))
    assert seen == (True, True, True)
    assert shows_host_events(signals)


def test_hints_advise_recording_events() -> None:
    missing = why_missing(summed(frozenset()), Need.COPIES)
    assert missing is not None
    assert (missing.reason, missing.remedy) == (
        "the files do not separate copies from compute",
        "Record events.",
    )
    assert why_missing(Signals(run_of(PLAIN)), Need.COPIES) is None


def test_totals_of_workers_give_no_matched_collectives() -> None:
    traces = [
        replace(PLAIN, totals=Totals(shows=EVERYTHING), source=replace(PLAIN.source, host=host))
        for host in ("a", "b")
    ]
    signals = reference_worker(run_of(*traces))
    assert ranks_of(signals).waiting_ns.tolist() == [-1, -1]
    assert collectives_of(signals).transfer_ns.tolist() == [-1, -1]


def test_kernels_precision_and_memory_come_from_the_recorder() -> None:
    kernel = KernelTotal("gemm", "matmul", 3, 9)
    totals = Totals(shows=EVERYTHING, kernels=(kernel,), peak_allocated_bytes=5)
    signals = Signals(run_of(replace(PLAIN, totals=totals)))
    assert signals.kernels == (kernel,)
    assert signals.compute_shares is None
    assert signals.memory is not None
    assert (signals.memory.peak_allocated_bytes, len(signals.memory.at_ns)) == (5, 0)
    assert summed().memory is None


def test_recorded_operators_are_placed() -> None:
    operators = (
        OperatorTotal("a", "MatMul", True, 3, 30, 30),
        OperatorTotal("b", "MatMul", False, 1, 20, 10),
        OperatorTotal("c", "NoOp", False, 9, 90, 90),
    )
    totals = Totals(shows=EVERYTHING, operators=operators)
    placement = Signals(run_of(replace(PLAIN, totals=totals))).placement
    assert (placement.share_by_count, placement.share_by_time) == (0.75, 0.75)
    pipeline = OperatorTotal("Iterator::Model", "Dataset", False, 1, 1, 1)
    totals = replace(totals, input_stages=(pipeline,))
    placement = Signals(run_of(replace(PLAIN, totals=totals))).placement
    assert (placement.share_by_count, placement.share_by_time) == (None, None)
