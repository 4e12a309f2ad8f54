"""What it saves that the training thread no longer loads its own batches."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Basis, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.host_loading import HostLoading, host_loading
from tb_perfadvisor.signals.input.loading_apart import limited
from tb_perfadvisor.trace.intervals import Intervals, total_ns
from tb_perfadvisor.whatif import Remove


def stall_saving(
    signals: Signals, claims: Intervals, low_ns: int, prices: HostLoading | None
) -> Saving:
    """The saving of an input pipeline that the step never waits for.

    Args:
        signals: The worker's facts.
        claims: When the step waits for input.
        low_ns: The low end as far as the pipeline decides.
        prices: What loading elsewhere brings, if it needs the step's cores.
    """
    stall_ns = total_ns(claims)
    if prices is not None:
        best = prices.best
        return Saving(best.low_ns, best.expected_ns, stall_ns, claims, "modeled")
    low_ns, away_ns = limited(signals, stall_ns, low_ns)
    fix = (Remove(signals.input_waits),)
    return Saving(
        low_ns, stall_ns - away_ns, stall_ns, claims, "measured", fix, elsewhere_ns=away_ns
    )


def loading_saving(signals: Signals, claims: Intervals, fetches: Intervals) -> Saving:
    """The saving of the better one of workers and memory on the CPU, and of workers elsewhere.

    Args:
        signals: The worker's facts.
        claims: When the step waits for the fetches.
        fetches: The fetches of the training thread.
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
