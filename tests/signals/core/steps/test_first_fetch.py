from __future__ import annotations

import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.launch.first_calls import FirstCall, first_calls
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import total_ns

WITH_PROCESSES = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def iterations(*fetches_ms: float, loader: str = IN_PROCESS) -> Trace:
    """From 100 ms on, each iteration fetches, launches for 1 ms, and computes for 9 ms. The
    first 100 ms import and build the model."""
    builder, at_ms = TraceBuilder(), 100.0
    builder.host(EventKind.PYTHON, "train.py(1): <module>", 0, ms(1))
    for number, fetch_ms in enumerate(fetches_ms):
        if fetch_ms:
            builder.host(EventKind.INPUT_WAIT, loader, ms(at_ms), ms(at_ms + fetch_ms))
        at_ms += fetch_ms
        builder.launch(ms(at_ms), ms(at_ms + 1), key=f"{number}")
        builder.kernel("gemm", ms(at_ms + 1), ms(at_ms + 10), launched_by=f"{number}")
        at_ms += 10
    return builder.build()


def window_ms(trace: Trace) -> tuple[float, float]:
    window = Signals(run_of(trace)).attribution
    return window.window_start_ns / 1e6, window.window_end_ns / 1e6


def test_the_only_batch_of_the_only_iteration_is_a_part_of_it() -> None:
    trace = iterations(30)
    assert window_ms(trace) == (100, 140)
    signals = Signals(run_of(trace))
    assert signals.attribution.total_ns(Cause.INPUT) == ms(30)
    # The process that fetches also computes, so the next batch takes as long.
    assert first_calls(signals).idle.size == 0


def test_without_a_fetch_the_window_begins_with_the_device() -> None:
    assert window_ms(iterations(0)) == (101, 110)


@pytest.mark.parametrize(("later_ms", "begins_ms"), [(9, 131), (10, 100)])
def test_a_first_fetch_that_is_unlike_the_others_is_the_loaders_start(
    later_ms: float, begins_ms: float
) -> None:
    # A third of 30 ms.
    assert window_ms(iterations(30, later_ms, later_ms))[0] == begins_ms


def test_the_first_batch_of_worker_processes_is_start_up() -> None:
    run = run_of(iterations(30, loader=WITH_PROCESSES))
    found = first_calls(Signals(run)).by_kind
    # Until the kernel begins, at 131 ms.
    assert total_ns(found[FirstCall.FIRST_BATCH]) == ms(31)
    analysis = analyze_run(run, Config())
    assert analysis.is_start_up
    assert analysis.first is None
    assert analysis.headline.startswith("This records start-up")
    assert "the first batch" in next(n.message for n in analysis.notes if n.id == "start-up")


def test_later_batches_of_worker_processes_tell_their_rate() -> None:
    signals = Signals(run_of(iterations(30, 25, 25, loader=WITH_PROCESSES)))
    assert signals.attribution.total_ns(Cause.INPUT) == ms(80)
    assert FirstCall.FIRST_BATCH not in first_calls(signals).by_kind
