"""Sequences of elementwise kernels where one kernel would do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import MOST_SITES
from tb_perfadvisor.rules.finding import Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.host.source_lines import source_line
from tb_perfadvisor.signals.work.elementwise_chains import ElementwiseChains, elementwise_chains
from tb_perfadvisor.trace.tables import Int64

MOST_NAMES = 6


class UnfusedElementwise(Rule):
    """Chains of elementwise kernels write tensors only for the next kernel to read them.

    What it finds
    -------------
    Consecutive elementwise kernels on tensors of the same size, launched by operators that PyTorch
    runs one by one: activations, masks, scales, residuals, hand-written norms. Optimizers, gradient
    sums and the parts of attention do not count.

    Why it matters
    --------------
    Each kernel takes as long as its bytes take through memory. A fused chain reads its inputs and
    writes its result once, whatever it computes in between.

    How it is measured
    ------------------
    From the shapes of the operators' inputs: each intermediate tensor of a chain is written once
    and read once less. Expected is the saved share of the chain's bytes, applied to its time. Low
    is half of that, because consecutive kernels need not depend on each other. High leaves only the
    longest kernel of each chain. Where the profile allows it, replaying the steps refines the
    expected saving. Saved launches are not counted.

    When to ignore
    --------------
    When shapes change in every step, so that compiling takes longer than it saves.

    How to verify
    -------------
    A single kernel replaces the chain; its name is `triton_…` if it was compiled.

    References:
    ----------
    PyTorch tutorial, "Performance Tuning Guide", section on fusing operations; Horace He, "Making
    Deep Learning Go Brrrr From First Principles" (2022).
    """

    id = "unfused-elementwise"
    title = "Fuse chains of elementwise operators"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS, Need.SHAPES, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.05,
        "share",
        "Every model has some such chains, and fusing saves about half of their time.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when chains take a good part of the step."""
        chains = elementwise_chains(signals)
        rows = chains.rows
        now_ns = signals.trace.events.duration_ns[rows]
        then_ns = (now_ns * chains.remaining_share).astype(np.int64)
        count = int(chains.chain.max(initial=-1)) + 1
        longest_ns = np.zeros(count, dtype=np.int64)
        np.maximum.at(longest_ns, chains.chain, now_ns)
        total = np.bincount(chains.chain, weights=now_ns, minlength=count)
        at_best = longest_ns / np.maximum(total, 1)
        saving = faster_device_work(
            signals,
            rows,
            then_ns,
            basis="modeled",
            least_then_ns=(now_ns * at_best[chains.chain]).astype(np.int64),
            most_then_ns=(now_ns + then_ns) // 2,
        )
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into chains of elementwise kernels"
                f" ({count_per_step(count, 'chain', signals)}, {len(rows) / count:.1f} kernels each"
                " on average)."
            ),
            saving=saving,
            evidence=(
                _by_chain(signals, chains, cost_ns, then_ns),
                costliest("Longest elementwise kernels", signals.worker, rows, cost_ns),
            ),
            remedies=advise("compile", "wider-compilation", "fused-operators"),
        )


def _by_chain(signals: Signals, chains: ElementwiseChains, cost_ns: Int64, then_ns: Int64) -> Table:
    """Chains by the operators in them, the costliest first."""
    trace = signals.trace
    names = trace.events.name[chains.operators]
    first = np.flatnonzero(np.diff(chains.chain, prepend=-1))
    kinds: dict[tuple[int, ...], list[int]] = {}
    for chain, chain_names in enumerate(np.split(names, first[1:])):
        kinds.setdefault(tuple(chain_names.tolist()), []).append(chain)
    now = np.bincount(chains.chain, weights=cost_ns).astype(np.int64)
    then = np.bincount(chains.chain, weights=then_ns).astype(np.int64)
    rows: list[tuple[str, str, int, int, int]] = []
    for kind, members in kinds.items():
        steps = [trace.strings[name].removeprefix("aten::") for name in kind[:MOST_NAMES]]
        more = ("…",) if len(kind) > MOST_NAMES else ()
        example = int(chains.rows[first[members[0]]])
        rows.append(
            (
                " → ".join((*steps, *more)),
                source_line(signals, example) or "",
                len(members),
                int(now[members].sum()),
                int(then[members].sum()),
            )
        )
    ranked = sorted(rows, key=lambda row: -row[3])
    return Table(
        "Chains by operator",
        (
            Column("operators", "Operators"),
            Column("source", "Source line"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time now", "ns"),
            Column("fused_ns", "Time if fused", "ns"),
        ),
        tuple(ranked[:MOST_SITES]),
        names_instance=True,
    )
