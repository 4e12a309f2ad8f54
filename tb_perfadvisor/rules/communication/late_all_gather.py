"""Sharded parameters that arrive after they are needed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import collective_totals, most_exposed
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_collectives import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import began_late, has_role, shard_gathers

_MOST = 0.5
"""Of the exposed time: what takes most of it decides what helps."""


class LateAllGather(Rule):
    """All-gathers of sharded parameters hold up the layers that need them.

    What it finds
    -------------
    Exposed all-gathers of sharded parameters: those that FSDP or ZeRO launch, and in XLA programs
    those that also reduce-scatter their gradients.

    Why it matters
    --------------
    A sharded layer cannot start before its parameters arrive. If they are requested one layer
    earlier, they arrive while the previous layer computes, and cost nothing.

    How it is measured
    ------------------
    The exposed time of all-gathers, without waiting for other ranks. The first all-gather of each
    step does not count, because nothing runs before it. Where ranks are missing, the time may
    include waiting, and nothing is estimated.

    A gather begins late if compute hides less than a tenth of it: then an earlier start helps. The
    others began in time and take longer than the compute beside them: then fewer gathers or more
    compute per gather help.

    When to ignore
    --------------
    When the layers are too small to hide a gather: shard fewer, larger groups of layers instead.

    How to verify
    -------------
    The exposed time of all-gathers falls while their number stays the same.

    References:
    ----------
    Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023),
    section 3.3.
    """

    id = "late-all-gather"
    title = "Prefetch sharded parameters one layer ahead"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.STEPS)

    minimum_share = Limit(0.02, "share", "The first gathers of a step are always exposed.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the all-gathers of a sharded program are exposed."""
        collectives = collectives_of(signals)
        gathers = collectives.of("all-gather") & _of_shards(signals)
        if not gathers.any():
            return
        chosen = gathers.copy()
        chosen[_first_of_steps(signals, np.flatnonzero(gathers))] = False
        overlapped_ns = np.maximum(time_without_waiting(signals) - collectives.exposed_ns, 0)
        saving = faster_collectives(signals, chosen, overlapped_ns)
        if self.is_minor(saving.high_ns, signals):
            return
        exposed_ns = int(collectives.exposed_ns[chosen].sum())
        reason, changes = _advice(signals, chosen)
        yield Finding(
            instance=count_per_step(int(gathers.sum()), "all-gather", signals),
            summary=(
                f"Layers wait {per_step(exposed_ns, signals)} for their parameters"
                f" ({count_per_step(int(gathers.sum()), 'all-gather', signals)}).{reason}"
            ),
            saving=saving,
            evidence=(
                collective_totals("All-gathers in the analyzed steps", signals, {"": gathers}),
                most_exposed("Most exposed all-gathers", signals, chosen),
            ),
            remedies=advise(*changes),
        )


def _advice(signals: Signals, chosen: Mask) -> tuple[str, tuple[str, ...]]:
    """Why the gathers are exposed, in words, and what helps then, the best first."""
    gathers = shard_gathers(signals)
    if gathers is None:
        return "", ("prefetched-shards", "keep-shards")
    count = gathers.forward + gathers.backward
    again = (
        f" {gathers.backward:,} of {count:,} gather again what the forward pass had gathered."
        if gathers.backward
        else ""
    )
    exposed_ns = collectives_of(signals).exposed_ns
    if exposed_ns[chosen & began_late(signals)].sum() >= _MOST * exposed_ns[chosen].sum():
        early = " Most of them begin when the compute before them has already ended."
        if gathers.prefetched == 0:
            early += " No module asks for the parameters of the next one."
        return early + again, ("prefetched-shards", "keep-shards")
    long = " Most of them begin in time, but take longer than the compute beside them."
    return long + again, ("keep-shards", "larger-batch-per-rank", "prefetched-shards")


def _of_shards(signals: Signals) -> Mask:
    """Which collectives are for sharded parameters; shape (n,)."""
    collectives = collectives_of(signals)
    if signals.trace.source.framework == "pytorch":
        return has_role(signals, Role.SHARDS)
    return np.full(len(collectives), collectives.of("reduce-scatter").any())


def _first_of_steps(signals: Signals, gathers: np.ndarray) -> np.ndarray:
    """Indices of the collectives that are the first all-gather of their step."""
    row = collectives_of(signals).row[gathers]
    step = signals.steps.owner[row]
    _, first = np.unique(step, return_index=True)
    return gathers[first]
