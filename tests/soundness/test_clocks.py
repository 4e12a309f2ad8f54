"""All events on one clock."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.soundness import examined
from tb_perfadvisor.soundness.clocks import CONSTANT_NS, LATENCY_NS
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.device_loops import loop


def lag_ns(trace: Trace) -> int:
    """The smallest lag from a launch to its work."""
    events, rows = trace.events, trace.rows(EventKind.KERNEL, EventKind.COPY)
    launch = events.launched_by[rows]
    known = launch >= 0
    return int((events.start_ns[rows[known]] - events.start_ns[launch[known]]).min())


# In `loop`, the first kernel of a step starts 110 us after its launch, and the copy ends 10 us
# before its call returns. So a clock that is ahead may be so by anything up to the sum.
LAG_NS, SLACK_NS = us(110), us(10)


@pytest.mark.parametrize("shift_ms", [-156.29, -3, 2, 324.72, 823])
def test_a_shifted_clock_is_shifted_back(shift_ms: float) -> None:
    shift_ns = ms(shift_ms)
    trace = examined(loop(12, shift_ns=shift_ns).build())
    assert trace.notes[0].id == "device-clock-shift"
    assert abs(trace.soundness.clock_shift_ns - shift_ns) <= LAG_NS + SLACK_NS
    assert lag_ns(trace) == LATENCY_NS
    side = "ahead of" if shift_ms > 0 else "behind"
    assert f" {side} the host's" in trace.notes[0].message
    # The steps are those of the program again, and the device works 80 % of the time.
    signals = Signals(run_of(trace))
    assert len(signals.steps) == 12
    busy_ns = int((signals.device.busy[:, 1] - signals.device.busy[:, 0]).sum())
    assert busy_ns == 12 * (8 * ms(1) + us(10))
    assert signals.attribution.window_ns / 12 == pytest.approx(ms(10), rel=0.01)


def test_sound_clocks_stay() -> None:
    trace = loop(12).build()
    assert examined(trace).soundness.clock_shift_ns == 0
    assert examined(trace).events is trace.events


def test_one_early_event_is_a_wrong_time_and_no_shift() -> None:
    builder = loop(12)
    builder.launch(ms(50), ms(50) + us(8), key="early")
    builder.kernel("gemm", ms(20), ms(20) + us(1), launched_by="early", stream=9)
    assert examined(builder.build()).soundness.clock_shift_ns == 0


def test_links_stay_when_events_change_places() -> None:
    sound, shifted = loop(12).build(), examined(loop(12, shift_ns=ms(-156)).build())
    events, rows = shifted.events, shifted.rows(EventKind.KERNEL)
    assert (np.diff(events.start_ns) >= 0).all()
    assert int(events.start_ns[0]) == 0
    launches = events.launched_by[rows]
    assert [shifted.name(row) for row in launches.tolist()] == ["cudaLaunchKernel"] * 96
    # The n-th kernel belongs to the n-th launch, as it was recorded.
    assert (np.diff(launches) > 0).all()
    assert shifted.kernels.row.tolist() == rows.tolist()
    copies = shifted.rows(EventKind.COPY)
    assert shifted.copies.row.tolist() == copies.tolist()
    assert len(events) == len(sound.events)


def without_waits(lags_us: list[float]) -> Trace:
    """Kernels of 0.1 ms, each launched a millisecond after the one before, and late by so much."""
    builder = TraceBuilder()
    for number, lag in enumerate(lags_us):
        at = ms(number)
        builder.launch(at, at + us(5), key=f"{number}")
        start = at + us(lag)
        builder.kernel("gemm", start, start + us(100), launched_by=f"{number}")
    return builder.build()


def test_a_constant_lag_is_no_earlier_work() -> None:
    # Without any wait, that the lag never changes tells: 40 ms before each of 100 kernels.
    trace = examined(without_waits([40_000 + (k % 7) for k in range(100)]))
    assert trace.soundness.clock_shift_ns == ms(40) - LATENCY_NS
    assert Signals(run_of(trace)).unrecorded_work is None


def test_a_queue_gets_longer_and_shorter() -> None:
    lags = [40_000 + 100 * (k % 50) + k for k in range(100)]
    assert examined(without_waits(lags)).soundness.clock_shift_ns == 0


def test_a_constant_lag_behind_other_work_is_a_queue() -> None:
    # A kernel of 1 ms is launched each millisecond, 5 ms ahead of the device.
    builder = TraceBuilder()
    for number in range(100):
        builder.launch(ms(number), ms(number) + us(5), key=f"{number}")
        builder.kernel("gemm", ms(number + 5), ms(number + 6), launched_by=f"{number}")
    assert examined(builder.build()).soundness.clock_shift_ns == 0


@pytest.mark.parametrize(("lag_ns", "is_shift"), [(CONSTANT_NS - us(1), False), (us(301), True)])
def test_just_below_and_just_above_the_limit(lag_ns: int, is_shift: bool) -> None:
    trace = examined(without_waits([lag_ns / 1000] * 100))
    assert (trace.soundness.clock_shift_ns != 0) is is_shift
