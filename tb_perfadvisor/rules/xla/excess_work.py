"""Parts of a program that move or compute far more than their results need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.costly_operations import operations_table
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings import at_best_also, faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.program.excess_work import Excess, excess_work
from tb_perfadvisor.signals.program.loop_work import Avoidable
from tb_perfadvisor.signals.tpu.xla_operations import executions
from tb_perfadvisor.trace.names import short_annotation, short_name
from tb_perfadvisor.units import format_bytes, format_share

_MOST_FINDINGS = 3
_LEAST = 0.5
"""Share of the excess: what is written instead also takes time."""


class ExcessWork(Rule):
    """A part of the program moves or computes far more than what crosses its border."""

    id = "excess-work"
    title = "Compute only what the result needs"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS, Need.PROGRAMS, Need.PEAKS)
    is_preview = True

    minimum_share = Limit(
        0.05, "share", "Less is within what another order of the same operations changes."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each source line or mask with much excess, the largest first."""
        together: dict[str, list[Excess]] = defaultdict(list)
        for excess in excess_work(signals):
            masked = f"mask {excess.running.program.module}" if excess.is_masked else ""
            together[masked or _place(signals, excess)].append(excess)
        found = sorted(together.values(), key=lambda parts: -sum(e.excess_ns for e in parts))
        for parts in found[:_MOST_FINDINGS]:
            yield from self._of_parts(signals, parts)

    def _of_parts(self, signals: Signals, parts: Sequence[Excess]) -> Iterable[Finding]:
        remains = np.ones((3, len(signals.trace.hlo.name)))
        for part in parts:
            needed = part.needed_ns / part.time_ns
            then = needed, part.least_ns / part.time_ns, 1 - _LEAST * (1 - needed)
            remains[:, [operation.op for operation in part.operations]] = np.array(then)[:, None]
        operations = [operation for part in parts for operation in part.operations]
        rows = executions(signals, operations)
        then_ns = remains[:, signals.trace.operations(rows)]
        now_ns = signals.trace.events.duration_ns[rows]
        expected, best, worst = (then_ns * now_ns).astype(np.int64)
        saving = faster_device_work(
            signals, rows, expected, basis="modeled", least_then_ns=best, most_then_ns=worst
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        cost, cost_ns = saving.claimed_ns, time_within(signals, rows, saving.claims)
        for part in parts:
            others = executions(signals, [operation for operation, _ in part.around])
            share = np.zeros(len(signals.trace.hlo.name))
            share[[operation.op for operation, _ in part.around]] = [
                gone for _, gone in part.around
            ]
            gone = (
                signals.trace.events.duration_ns[others] * share[signals.trace.operations(others)]
            )
            saving = at_best_also(signals, saving, others, gone.astype(np.int64))
        yield Finding(
            instance=_place(signals, parts[0]),
            summary=_summary(signals, parts, per_step(cost, signals)),
            saving=saving,
            # Nothing says what would be faster instead.
            severity=None if any(_is_sure(part) for part in parts) else "medium",
            evidence=(
                operations_table("Operations", signals, operations, rows, cost_ns),
                costliest("Longest executions", signals.worker, rows, cost_ns),
            ),
            remedies=advise(*_changes(parts[0])),
        )


_MOVED_AGAIN = 4.0
"""How many times the bytes of its border a part moves, so that they go through memory again."""


def _is_sure(part: Excess) -> bool:
    """Whether the operations explain why they take longer, or move their arrays again and again."""
    return part.is_explained or part.moved_bytes >= _MOVED_AGAIN * part.border_bytes


def _place(signals: Signals, excess: Excess) -> str:
    """Where it is: the source line of the costliest operation that has one, else its name."""
    if excess.is_repeated:
        return f"{excess.running.program.devices} devices compute the same"
    hlo, text = signals.trace.hlo, signals.trace.text
    lines = (text(int(hlo.source_line[operation.op])) for operation in excess.operations)
    return short_name(short_annotation(next(filter(None, lines), excess.operations[0].name)))


def _summary(signals: Signals, parts: Sequence[Excess], cost: str) -> str:
    """What the operations take, move and compute, and what their results need."""
    steps = signals.steps.count
    count = sum(len(part.operations) for part in parts)
    operations = f"{count} operations" if count > 1 else parts[0].operations[0].name
    moved, border, flop, useful = (
        sum(amounts) / steps
        for amounts in zip(
            *((p.moved_bytes, p.border_bytes, p.flop, p.useful_flop) for p in parts), strict=True
        )
    )
    worst = parts[0]
    largest = worst.running.program.shape_of(worst.largest)
    needed = format_share(sum(p.needed_ns for p in parts) / sum(p.time_ns for p in parts))
    sentences = [f"{cost} goes into {operations}; the results need {needed} of that."]
    if worst.is_repeated:
        devices = worst.running.program.devices
        sentences.append(f"All {devices} devices compute the same products.")
    if worst.is_emulated:
        sentences.append("Many operations do what is one in the source, as for 64-bit numbers.")
    if worst.avoidable is not None:
        why = _WHY[worst.avoidable.kind]
        sentences.append(why.format(f"{worst.avoidable.trips:,.0f}"))
    if worst.is_masked:
        sentences.append("A mask that depends on positions alone drops whole blocks of the result.")
    if worst.is_divided:
        sentences.append("Small products of one array, or that are added up, could be one product.")
    if worst.is_look_up:
        sentences.append("A product with a one-hot matrix reads a whole table to look rows up.")
    if worst.gathers_windows:
        sentences.append("Numbers that lie next to one another are gathered one by one.")
    if worst.has_repeated_rows:
        sentences.append("A gather or a broadcast repeats the rows of a product.")
    if useful < flop:
        sentences.append(
            f"Of {flop / 1e9:,.3g} GFLOP in each step, {format_share(useful / flop)} is needed."
        )
    if worst.is_inflated:
        sentences.append(
            f"They move {format_bytes(round(moved))}, of which {format_bytes(round(border))} come"
            f" from outside or are read later; {largest} exists only inside."
        )
    return " ".join(sentences)


_AT_ONCE = (
    "{} trips of a loop run one after the other, but none of this has to wait for the trip before."
)
_WHY = {
    Avoidable.WHOLE: _AT_ONCE,
    Avoidable.PART: _AT_ONCE,
    Avoidable.SUMS: "Each of {} trips of a loop sums up over the devices what the loop adds up.",
    Avoidable.GATHERED: "Each of {} devices reads a small part of what all of them gather.",
    Avoidable.PASSES: "They are {} passes over the same arrays; none needs another's result.",
}
_INSTEAD = {
    Avoidable.WHOLE: ("trips-at-once",),
    Avoidable.PART: ("product-before-loop",),
    Avoidable.SUMS: ("sum-after-loop",),
    Avoidable.GATHERED: ("exchange-borders",),
    Avoidable.PASSES: ("one-pass",),
}


def _changes(excess: Excess) -> tuple[str, ...]:
    if excess.avoidable is not None:
        return _INSTEAD[excess.avoidable.kind]
    if excess.is_repeated and _splits_batch(excess):
        return ("sharded-updates", "weights-over-devices")
    if excess.is_repeated:
        return ("batch-over-devices", "weights-over-devices")
    if excess.is_masked:
        return ("blocks-of-mask",)
    if excess.used is not None:
        return ("select-first", "stride-of-convolution")
    if excess.gathers_windows:
        return ("neighbors-together",)
    if excess.has_repeated_rows:
        return ("product-before-gather",)
    if excess.is_divided:
        return ("one-pass",)
    if excess.is_emulated:
        return ("single-precision",)
    if excess.is_in_costly_order:
        return ("other-order",)
    if excess.is_look_up:
        return ("rows-by-index",)
    if excess.has_constant_factor:
        return ("operation-instead-of-constant-product",)
    if excess.is_inflated:
        return ("sum-before-expanding",) if excess.flop else ("einsum", "sum-before-expanding")
    return ("fewer-passes",)


def _splits_batch(excess: Excess) -> bool:
    """Whether the program splits an argument already that no step returns updated."""
    program = excess.running.program
    return bool(((program.parts > 1) & ~program.is_aliased).any())
