"""Gradients that are reduced in 32 bits while the model computes in 16."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import collective_totals, most_exposed
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_collectives import faster_collectives, time_without_waiting
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.ranks.exposed_communication import has_role
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import Precision
from tb_perfadvisor.units import format_share

_REDUCING = frozenset({"all-reduce", "reduce-scatter"})


class FullPrecisionGradients(Rule):
    """Gradients are reduced in 32 bits although the model computes in 16.

    What it finds
    -------------
    Exposed all-reduces and reduce-scatters of 32-bit gradients in a program that computes mostly in
    16 bits. Those of tensor-parallel layers do not count, nor those of inference.

    Why it matters
    --------------
    Gradients that were computed in 16 bits carry no more information in 32, and take twice as long
    to send.

    How it is measured
    ------------------
    Half of the time that these collectives take without waiting, as far as it is exposed. Low is 0:
    no profile shows whether training converges with fewer bits. Where ranks are missing, that time
    may include waiting, and nothing is estimated.

    When to ignore
    --------------
    When training does not converge with 16-bit reductions: with very many ranks, or when gradients
    of many micro-batches are accumulated.

    How to verify
    -------------
    The bytes reduced per step fall by half. Compare the loss curves as well.

    References:
    ----------
    PyTorch, "DDP Communication Hooks"; Micikevicius et al., "Mixed Precision Training" (2018).
    """

    id = "full-precision-gradients"
    title = "Send gradients in 16 bits"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.KERNEL_PRECISION)
    is_preview = False

    minimum_16_bit_share = Limit(
        0.5, "share", "A program that computes less in 16 bits is not a 16-bit program."
    )
    minimum_share = Limit(0.01, "share", "A smaller gain is not worth the numerical risk.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 32-bit reductions are exposed in a 16-bit program."""
        shares = signals.compute_shares
        narrow = 0.0 if shares is None else shares.get(Precision.BITS_16, 0.0)
        if narrow < self.minimum_16_bit_share or workload(signals).has(Part.FORWARD_ONLY):
            return
        collectives = collectives_of(signals)
        chosen = collectives.of(*_REDUCING) & collectives.is_32_bit
        chosen &= has_role(signals, Role.GRADIENTS, Role.SHARDS, Role.UNKNOWN)
        saving = faster_collectives(signals, chosen, time_without_waiting(signals) / 2)
        if self.is_minor(saving.high_ns, signals):
            return
        exposed_ns = int(collectives.exposed_ns[chosen].sum())
        yield Finding(
            instance=count_per_step(int(chosen.sum()), "reduction", signals),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into sending gradients in 32 bits, although"
                f" {format_share(narrow)} of compute time is in 16 bits."
            ),
            saving=replace(saving, low_ns=0),
            evidence=(
                collective_totals("32-bit reductions", signals, {"": chosen}, has_bytes=True),
                most_exposed("Most exposed reductions", signals, chosen),
            ),
            remedies=advise("narrow-gradients", "narrow-tensors"),
        )
