"""Calls of compiled programs copy their arguments from the host."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.launch.runtime_calls import argument_transfers
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.whatif import Remove


class HostArguments(Rule):
    """Calls of a compiled program wait until its arguments are copied from the host.

    What it finds
    -------------
    Calls of jitted functions with arrays of NumPy: the runtime puts them on the device inside of
    each call, and nothing else runs meanwhile.

    Why it matters
    --------------
    A table, weights or a constant that stays the same is copied again in each call. A new batch has
    to be copied once, but can be on its way while the step before it runs.

    How it is measured
    ------------------
    The idle time during the copies that calls ask for. High and expected are all of it, or half is
    expected if the step fetches batches, which are new in each step; low is half of that, because a
    batch that is copied ahead shares the memory with the step.

    When to ignore
    --------------
    When the arrays are needed for a single call.

    How to verify
    -------------
    No transfers are inside of the calls, or they overlap other work.

    References:
    ----------
    JAX documentation, "jax.device_put".
    """

    id = "host-arguments"
    title = "Put arguments on the device before the call"
    category = "input"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.DISPATCH)

    minimum_share = Limit(0.05, "share", "Small arguments are copied in microseconds.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the step waits for its arguments."""
        transfers = argument_transfers(signals)
        total = total_ns(transfers.idle)
        if self.is_minor(total, signals):
            return
        # A batch that the step fetches is new, so that its copy can only run beside other work.
        is_fed = len(signals.input_waits) > 0
        expected = total // 2 if is_fed else total
        replayed = () if is_fed else (Remove(transfers.idle),)
        events = signals.trace.events
        subject = "No operator runs" if signals.device.is_host_only else "The device idles"
        times = costliest(
            "Longest copies",
            signals.worker,
            transfers.rows,
            events.duration_ns[transfers.rows],
        )
        yield Finding(
            instance=count_per_step(len(transfers.rows), "copy", signals, plural="copies"),
            summary=(
                f"{subject} for {per_step(total, signals)} while calls of compiled functions copy"
                " arguments from the host."
            ),
            saving=Saving(expected // 2, expected, total, transfers.idle, "measured", replayed),
            evidence=(times,),
            remedies=advise("arguments-on-device", "prefetch-to-device"),
        )
