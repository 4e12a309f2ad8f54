"""What it saves that the training thread no longer loads its own batches."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Basis, Saving
from tb_perfadvisor.rules.savings.input_rate import REALIZED_SHARE, bet_on_rate_ns
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.host_loading import HostLoading, host_loading
from tb_perfadvisor.signals.input.loading_apart import limited, loading_apart
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, total_ns
from tb_perfadvisor.whatif import Remove


def stall_saving(
    signals: Signals,
    claims: Intervals,
    low_ns: int,
    prices: HostLoading | None,
    *,
    is_parallel: bool,
) -> Saving:
    """The saving of an input pipeline that the step never waits for.

    Args:
        signals: The worker's facts.
        claims: When the step waits for input.
        low_ns: The low end as far as the pipeline decides.
        prices: What loading elsewhere brings, if it needs the step's cores.
        is_parallel: Whether the pipeline works beside the steps already.
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

    Args:
        claims: When the device waits for input.
        low_ns: What it saves at least, in programs that realize all of it if not `is_parallel`.
        is_parallel: Whether it works beside the steps already.
        waits: When the thread that runs the steps waits for input.
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
