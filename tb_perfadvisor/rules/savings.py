"""What changes save: faster or less device work, faster input, and fewer waits."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Basis, Saving
from tb_perfadvisor.signals import Cause, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask, exposed_part
from tb_perfadvisor.signals.device.device_work import exclusive_time, exclusive_time_of_each
from tb_perfadvisor.signals.host.idle import closable_idle
from tb_perfadvisor.signals.host.waits import awaited_values, wait_prices
from tb_perfadvisor.signals.input.host_loading import (
    HostLoading,
    host_loading,
    limited,
    loading_apart,
)
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, join, minus, total_ns, union
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.whatif import Async, Remove, Shorten, Simulation, simulation


def at_best_also(signals: Signals, saving: Saving, rows: Int32, gone_ns: Int64) -> Saving:
    """Add parts of other device events to the high end of a saving.

    Only time in which nothing else runs on the device is added, and claimed.

    At best, `gone_ns` of each of these `rows` is saved.
    """
    if not rows.size:
        return saving
    start_ns = signals.trace.events.start_ns[rows]
    gone = intersect(exclusive_time(signals, rows), union(start_ns, start_ns + gone_ns))
    more = minus(gone, saving.claims)
    return replace(
        saving, high_ns=saving.high_ns + total_ns(more), claims=join(saving.claims, more)
    )


def time_without_waiting(signals: Signals) -> Int64:
    """The time of each collective in ns, without waiting for other ranks where that is known."""
    return collectives_of(signals).without_waiting_ns


def faster_collectives(
    signals: Signals, chosen: Mask, target_ns: Float64 | Int64, basis: Basis = "modeled"
) -> Saving:
    """The saving when some collectives take less time, as far as they are exposed.

    Where ranks are missing, a collective may be waiting for them instead of transferring: what it
    takes too long counts for high, but nothing of it is expected.

    `chosen` ones take `target_ns` then, without waiting; shape (collectives,). `basis` is what the
    targets rest on.
    """
    collectives = collectives_of(signals)
    excess_ns = np.where(chosen, np.maximum(time_without_waiting(signals) - target_ns, 0), 0)
    exposed_ns = np.minimum(excess_ns, collectives.exposed_ns)
    is_faster = exposed_ns > 0
    rows = collectives.row[is_faster]
    claims = exposed_part(signals.trace, rows, signals.attribution.intervals[Cause.COMMUNICATION])
    high_ns = min(round(float(exposed_ns.sum())), total_ns(claims))
    is_known = collectives.transfer_ns >= 0
    expected_ns = min(round(float(exposed_ns[is_known].sum())), high_ns)
    saved_ns = np.where(is_known, excess_ns, 0).astype(np.int64)[is_faster]
    then_ns = collectives.duration_ns[is_faster] - saved_ns
    is_on_device = (signals.trace.events.kind[rows] == EventKind.COLLECTIVE).all()
    return Saving(
        expected_ns,
        expected_ns,
        high_ns,
        claims,
        basis,
        (Shorten(rows, then_ns),) if is_on_device and expected_ns else (),
        is_unknown=not is_known[chosen].any(),
        unpriced_ns=high_ns - expected_ns,
    )


_EXACT_NS = 2**31
"""Products of shorter times fit into 64 bits. Two seconds are much for one event."""


def faster_device_work(
    signals: Signals,
    rows: Int32,
    then_ns: Int64,
    *,
    basis: Basis,
    least_then_ns: Int64 | None = None,
    most_then_ns: Int64 | None = None,
) -> Saving:
    """The saving when device events take less time.

    Only time in which nothing else runs on the device is claimed. Where the profile allows it,
    the engine replays the steps with the shorter events, so that a faster device saves nothing
    while it waits for the host.

    Each event is expected to take `then_ns`, 0 if it is not needed; at best `least_then_ns`, by
    default 0; and at worst `most_then_ns`, by default as long as now. All have shape (n,).
    """
    claims = exclusive_time(signals, rows)
    now_ns = signals.trace.events.duration_ns[rows]
    then_ns = np.minimum(then_ns, now_ns)
    least = np.zeros_like(now_ns) if least_then_ns is None else least_then_ns
    most = now_ns if most_then_ns is None else most_then_ns
    inside_ns = exclusive_time_of_each(signals, rows, claims)
    most_ns = total_ns(claims)
    expected_ns = _saved_ns(now_ns, then_ns, inside_ns, most_ns)
    return Saving(
        min(_saved_ns(now_ns, most, inside_ns, most_ns), expected_ns),
        expected_ns,
        max(_saved_ns(now_ns, least, inside_ns, most_ns), expected_ns),
        claims,
        basis,
        (Shorten(rows, then_ns),),
    )


def halfway_to_best(signals: Signals, rows: Int32, best_ns: Int64) -> Saving:
    """The saving when device events come closer to the best time that a model allows.

    High is the best time, expected is half of the way to it, low is 0.
    """
    then_ns = (best_ns + signals.trace.events.duration_ns[rows]) // 2
    return faster_device_work(signals, rows, then_ns, basis="modeled", least_then_ns=best_ns)


def _saved_ns(now_ns: Int64, then_ns: Int64, inside_ns: Int64, most_ns: int) -> int:
    """What is saved of the claimed time: each event saves in proportion to its part in it."""
    whole_ns, saved_ns = np.maximum(now_ns, 1), np.maximum(now_ns - then_ns, 0)
    if int(whole_ns.max(initial=0)) < _EXACT_NS:
        saved_ns = inside_ns * saved_ns // whole_ns
    else:
        saved_ns = (inside_ns * (saved_ns / whole_ns)).astype(np.int64)
    # Events that run at the same time share it.
    return min(int(saved_ns.sum()), most_ns)


REALIZED_SHARE = 0.5
"""The part of the ideal gain from overlapping input with the steps that programs realize. The
ResNet-50 samples of PyTorch lose 59 ms of a step to loading and gain 35 ms with four workers, 0.6
of it: the workers take cores and memory bandwidth from the step."""


def saving_of_doubled_input_rate_ns(stall_ns: int, window_ns: int) -> int:
    """What a pipeline saves at least when it makes batches twice as fast.

    Twice as many workers do that, or half the work in them. Steps that take as long as a batch
    takes to arrive then take half as long, or as long as they take without the stall;
    `REALIZED_SHARE` of the difference counts.

    `stall_ns` is how long the steps wait for input although it is prepared in parallel, and
    `window_ns` how long they take.
    """
    return int(REALIZED_SHARE * min(stall_ns, window_ns // 2))


def bet_on_rate_ns(stall_ns: int, low_ns: int) -> int:
    """What a faster pipeline is expected to save of a stall.

    How much faster it gets is unknown: from twice the rate, of which programs realize a part, to
    one that always keeps up. Of equally plausible rates, the middle is expected.

    Steps wait for input for `stall_ns`, of which at least `low_ns` is saved.
    """
    return (min(low_ns, stall_ns) + stall_ns) // 2


def stall_saving(
    signals: Signals,
    claims: Intervals,
    low_ns: int,
    prices: HostLoading | None,
    *,
    is_parallel: bool,
) -> Saving:
    """The saving of an input pipeline that the step never waits for.

    The step waits for input in `claims`. `low_ns` is the low end as far as the pipeline decides,
    and `prices` are what loading elsewhere brings, if it needs the step's cores. A pipeline that
    `is_parallel` works beside the steps already.
    """
    stall_ns = total_ns(claims)
    if prices is not None:
        best = prices.best
        return Saving(best.low_ns, best.expected_ns, stall_ns, claims, "modeled")
    if loading_apart(signals) is None and not signals.device.is_host_only:
        return pipeline_saving(claims, low_ns, is_parallel=is_parallel, waits=signals.input_waits)
    low_ns, away_ns = limited(signals, stall_ns, low_ns)
    fix = (Remove(signals.input_waits),)
    return Saving(
        low_ns, stall_ns - away_ns, stall_ns, claims, "measured", fix, elsewhere_ns=away_ns
    )


def pipeline_saving(
    claims: Intervals, low_ns: int, *, is_parallel: bool, waits: Intervals = EMPTY
) -> Saving:
    """The saving of a pipeline that feeds a device and works faster or farther ahead.

    The device waits for input in `claims`, the thread that runs the steps in `waits`. A pipeline
    that `is_parallel` works beside the steps already. If it is not, `low_ns` is what it saves at
    least in programs that realize all of it.
    """
    stall_ns = total_ns(claims)
    low_ns = low_ns if is_parallel else int(REALIZED_SHARE * low_ns)
    expected_ns = bet_on_rate_ns(stall_ns, low_ns)
    return Saving(
        low_ns,
        expected_ns,
        stall_ns,
        claims,
        "measured",
        (Remove(waits),) if len(waits) else (),
        realized_share=expected_ns / max(stall_ns, 1),
    )


def loading_saving(signals: Signals, claims: Intervals, fetches: Intervals) -> Saving:
    """The saving of the better one of workers and memory on the CPU, and of workers elsewhere.

    The step waits in `claims` for the fetches of the training thread.
    """
    stall_ns, window_ns = total_ns(claims), signals.attribution.window_ns
    prices = host_loading(signals)
    if prices is not None:
        best = prices.best
        is_proved = prices.is_sized and not prices.is_augmented
        basis: Basis = "modeled" if is_proved or not prices.keeps_in_memory else "heuristic"
        return Saving(best.low_ns, best.expected_ns, best.high_ns, claims, basis)
    low_ns, elsewhere_ns = limited(signals, stall_ns, min(stall_ns, window_ns - stall_ns))
    return Saving(
        low_ns,
        stall_ns - elsewhere_ns,
        stall_ns,
        claims,
        "measured",
        (Remove(fetches),),
        elsewhere_ns=elsewhere_ns,
    )


def saving_without_waits(signals: Signals, chosen: Mask) -> Saving:
    """What the steps would save without some waits.

    High is what they save if no value that the host waits for is needed: by a replay without the
    waits, or else the idle time that they induce. Expected is what the waits cost one by one
    (`wait_prices`). Low is the idle time that waits without a value induce.

    `chosen` has the shape of the worker's `synchronizations`.
    """
    if not chosen.any():
        return Saving(0, 0, 0, EMPTY, "measured")
    values = awaited_values(signals)
    induced = _induced_idle(signals, chosen)
    is_idle = ~values.is_copied & ~values.is_needed_at_once
    low_ns = total_ns(_induced_idle(signals, chosen & is_idle))
    if not signals.device.is_host_only:
        prices = wait_prices(signals, chosen)
        expected_ns, if_free_ns = int(prices.expected_ns.sum()), int(prices.if_free_ns.sum())
        claims, replayed_ns = closable_idle(signals), _replayed_ns(signals, chosen)
        most_ns = total_ns(induced) if replayed_ns is None else replayed_ns
        if replayed_ns is None and expected_ns > low_ns:
            # What else holds the host up is unknown, so the model may hold or not.
            expected_ns = (low_ns + expected_ns) // 2
        return Saving(
            min(low_ns, expected_ns),
            expected_ns,
            min(max(most_ns, if_free_ns), total_ns(claims)),
            claims,
            "modeled" if replayed_ns is None else "simulated",
            priced=prices.expected_from,
        )
    high_ns = total_ns(induced)
    inside_ns = total_ns(intersect(induced, _inside(signals, chosen)))
    # What the host does after the wait would share the cores with the work that it overlaps.
    expected_ns = inside_ns + (high_ns - inside_ns) // 2
    low_ns = min(low_ns, expected_ns)
    return Saving(low_ns, expected_ns, high_ns, induced, "measured", (Remove(induced),))


def _replayed_ns(signals: Signals, chosen: Mask) -> int | None:
    """What a replay without some waits saves; None if the profile cannot be replayed."""
    replay = simulation(signals)
    if not isinstance(replay, Simulation):
        return None
    saved_ns = replay.saved_ns(Async(signals.synchronizations.row[chosen]))
    return saved_ns if saved_ns <= total_ns(closable_idle(signals)) else None


def most_saved_ns(signals: Signals) -> int:
    """An upper bound on what `saving_without_waits` expects, known without a replay."""
    return total_ns(closable_idle(signals)) if len(signals.synchronizations) else 0


def _inside(signals: Signals, chosen: Mask) -> Intervals:
    events, rows = signals.trace.events, signals.synchronizations.row[chosen]
    return events.spans(rows)


def _induced_idle(signals: Signals, chosen: Mask) -> Intervals:
    waits = signals.synchronizations
    start_ns = signals.trace.events.start_ns[waits.row[chosen]]
    idle = minus(signals.host_idle, first_calls(signals).idle)
    return intersect(idle, union(start_ns, waits.until_ns[chosen]))
