"""Arrays that are gathered from all devices although each uses a part or a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.gathered_parts import (
    Use,
    gathered_parts,
    with_smaller_exchanges,
)
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.units import format_share

_CHANGES: Mapping[Use, str] = {
    "part": "exchange-parts",
    "sum": "reduce-over-devices",
    "part of sum": "reduce-scatter-gradients",
}


class GatheredForPart(FasterOperations):
    """Devices gather whole arrays, of which each uses a part or only the sum.

    What it finds
    -------------
    All-gathers of which each device takes a part by its own number, and all-gathers whose parts are
    added up over the devices. The embedded program shows what becomes of the gathered array.

    Why it matters
    --------------
    An all-gather brings all parts to all devices. If each device keeps its own heads, rows or
    experts, an all-to-all sends each device only these. If the parts are added up, an all-reduce
    sends two parts instead of all, and a reduce-scatter one.

    How it is measured
    ------------------
    The all-gather, or what waits for it, takes the share of its time that the bytes of the smaller
    exchange have in its own. So does what adds up the parts, or nothing at best. High assumes that
    half of what is sent overlaps with work; low is half of what the exchange is expected to save.

    When to ignore
    --------------
    When something outside of this program uses the whole array.

    How to verify
    -------------
    The all-gather is gone, and a shorter exchange took its place.

    References:
    ----------
    JAX documentation, "jax.lax.all_to_all" and "jax.lax.psum_scatter".
    """

    id = "gathered-for-part"
    title = "Exchange only what each device uses"

    minimum_share = Limit(0.03, "share", "Less is within the variation of collectives.")

    noun = "operation"

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The all-gathers, what waits for them, and what adds up the parts."""
        return with_smaller_exchanges(signals)

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """The exchanges that are enough."""
        return tuple(dict.fromkeys(_CHANGES[found.use] for found in gathered_parts(signals)))

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest array that is gathered."""
        found = gathered_parts(signals)
        worst = max(found, key=lambda one: one.running.program.shape_of(one.gathered).padded_bytes)
        program = worst.running.program
        shape, line = program.shape_of(worst.gathered), program.lines.get(worst.by, "")
        where = f" in {line}" if line else ""
        use = "each takes its own part" if worst.use == "part" else "each adds up the parts"
        return f"{shape}{where}", (
            f"{cost} goes into gathering {shape} and the like on each of {program.devices} devices,"
            f" of which {use}{where}. Sending what is used takes {format_share(worst.share)} of the"
            " bytes."
        )
