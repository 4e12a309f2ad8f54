"""Operators that another form of the same computation makes faster."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import MOST_SITES, costly_work
from tb_perfadvisor.rules.evidence.tables import made_tables, own_times
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings import at_best_also, faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import BUSY
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.device.attention import (
    AttentionLayers,
    attention_by_order,
    fused_attention_ns,
    unfused_attention,
)
from tb_perfadvisor.signals.device.conversions import layout_conversions
from tb_perfadvisor.signals.device.copies import tensor_copies
from tb_perfadvisor.signals.device.device_work import operators_of, time_within
from tb_perfadvisor.signals.host.call_tree import source_line
from tb_perfadvisor.signals.program.updates import undonated_copies
from tb_perfadvisor.signals.tpu.xla_operations import copied_arguments, passed_copies
from tb_perfadvisor.signals.work.fusible_work import FusibleWork, fusible_work
from tb_perfadvisor.signals.work.gathers import gathered_matrices
from tb_perfadvisor.signals.work.layer_forms import (
    in_channels_last,
    in_fused_attention,
    in_fused_loops,
)
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Float64, Int64
from tb_perfadvisor.units import format_share

_MOST_NAMES = 6


def fused_kernels(signals: Signals, work: FusibleWork, now_ns: Int64, then_ns: Int64) -> Table:
    """What would be fused, by the operators in it, the costliest first.

    `now_ns` is the time of each row of `work` that counts, and `then_ns` the time when fused.
    """
    trace = signals.trace
    order = np.argsort(work.kernel, kind="stable")
    rows, kernel = work.rows[order], work.kernel[order]
    operators = operators_of(signals, rows)
    families = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    names = np.where(operators >= 0, trace.events.name[operators], -1 - families.astype(np.int32))
    # The kernels of one execution of an operator count once.
    is_next = np.ones(len(rows), dtype=bool)
    is_next[1:] = (operators[1:] != operators[:-1]) | (operators[1:] < 0)
    is_next[1:] |= kernel[1:] != kernel[:-1]
    names, owner = names[is_next], kernel[is_next]
    ends = np.flatnonzero(np.diff(owner)) + 1
    kinds: dict[tuple[int, ...], list[int]] = {}
    for number, members in enumerate(np.split(names, ends)) if len(names) else ():
        kinds.setdefault(tuple(members.tolist()), []).append(number)
    count = len(work.operators)
    now = np.bincount(work.kernel, weights=now_ns, minlength=count)
    then = np.bincount(work.kernel, weights=then_ns, minlength=count)
    first = np.searchsorted(kernel, np.arange(count))
    table: list[tuple[Cell, ...]] = []
    for kind, numbers in kinds.items():
        moved = ~work.by_time[numbers]
        known = bool(moved.all())
        table.append(
            (
                _label(signals, kind),
                source_line(signals, int(rows[first[numbers[0]]])) or "",
                len(numbers),
                int(work.now_bytes[numbers].sum()) if known else None,
                int(work.fused_bytes[numbers].sum()) if known else None,
                int(now[numbers].sum()),
                int(then[numbers].sum()),
            )
        )
    table.sort(key=lambda row: -int(row[5] or 0))
    return Table(
        "What would be fused",
        (
            Column("operators", "Operators"),
            Column("source", "Source line"),
            Column("count", "Count", "count"),
            Column("moved_bytes", "Moved now", "bytes"),
            Column("fused_bytes", "Moved if fused", "bytes"),
            Column("total_ns", "Time now", "ns"),
            Column("fused_ns", "Time if fused", "ns"),
        ),
        tuple(table[:MOST_SITES]),
        names_instance=True,
    )


def _label(signals: Signals, names: tuple[int, ...]) -> str:
    """Operators in their order; kernels of unknown operators by what they do."""
    texts = [
        signals.trace.strings[name].removeprefix("aten::")
        if name >= 0
        else KernelFamily(-1 - name).name.lower()
        for name in names[:_MOST_NAMES]
    ]
    more = ("…",) if len(names) > _MOST_NAMES else ()
    return " → ".join((*texts, *more))


_MATH_FORM = "aten::_scaled_dot_product_attention_math"


class UnfusedAttention(Rule):
    """Attention writes its scores to memory, where a fused kernel would keep them on chip."""

    id = "unfused-attention"
    title = "Use a fused attention kernel"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.PYTORCH)
    needs_on_cpu = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.SHAPES)
    is_preview = False

    minimum_share = Limit(0.02, "share", "A smaller gain is lost in the variation between steps.")
    fused_efficiency = 0.3
    """FlashAttention-2 reaches a third of the peak of an H100 and two thirds of that of an A100;
    FlashAttention-3 reaches three quarters on an H100. Small heads and the backward pass reach
    somewhat less."""
    launch_floor_ns = 10_000
    """Any fused kernel takes several microseconds to start and end."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        if signals.device.is_host_only:
            yield from self._on_cpu(signals)
            return
        yield from self._with_shapes(signals)
        yield from self._by_order(signals)

    def _on_cpu(self, signals: Signals) -> Iterable[Finding]:
        form = in_fused_attention(signals)
        if form is None or self.is_minor(form.expected_ns, signals):
            return
        events = signals.trace.events
        is_math = signals.trace.is_any_of(events.name, _MATH_FORM)
        falls_back = bool(has_ancestor(events.parent, form.rows, is_math).any())
        why = " F.scaled_dot_product_attention falls back to that form here." * falls_back
        yield Finding(
            summary=(
                f"{per_step(int(form.now_ns.sum()), signals)} goes into attention whose scores pass"
                f" through memory. Fused, it computes only the products.{why}"
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=own_times("Operators of unfused attention", signals, form.rows, form.now_ns),
            remedies=advise("fused-form" if falls_back else "fused-attention"),
        )

    def _with_shapes(self, signals: Signals) -> Iterable[Finding]:
        facts = signals.device_facts
        peaks = facts.peaks if facts else None
        attention = unfused_attention(signals)
        if peaks is None or not len(attention.rows):
            return
        group = attention.layer * 2 + attention.is_backward
        duration_ns = signals.trace.events.duration_ns[attention.rows]
        now_ns = np.bincount(group, weights=duration_ns, minlength=2 * len(attention.first))

        def then_ns(rate: float) -> Int64:
            fused_ns = fused_attention_ns(signals, attention, peaks, rate * self.fused_efficiency)
            fused_ns = np.maximum(fused_ns, self.launch_floor_ns)
            with np.errstate(divide="ignore", invalid="ignore"):
                remaining = np.fmin(np.nan_to_num(fused_ns / now_ns, nan=1.0), 1.0)
            return (duration_ns * remaining[group]).astype(np.int64)

        saving = faster_device_work(
            signals,
            attention.rows,
            then_ns(1),
            basis="modeled",
            least_then_ns=then_ns(2.5),
            most_then_ns=then_ns(0.5),
        )
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals) or saving.high_ns == 0:
            return
        cost_ns = time_within(signals, attention.rows, saving.claims)
        layers = len(distinct(attention.layer))
        yield Finding(
            instance=count_per_step(layers, "layer", signals),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into unfused attention"
                f" ({count_per_step(layers, 'layer', signals)}): the scores pass through memory"
                f" {len(attention.rows) / layers:.0f} times per layer."
            ),
            saving=saving,
            evidence=(
                _by_size(attention, cost_ns, then_ns(1)),
                costliest("Longest attention kernels", signals.worker, attention.rows, cost_ns),
            ),
            remedies=advise("fused-attention"),
        )

    def _by_order(self, signals: Signals) -> Iterable[Finding]:
        """Without shapes: what lies between the two products goes, and the products stay."""
        attention = attention_by_order(signals)
        rows, layers = attention.rows, len(distinct(attention.layer))
        now_ns = signals.trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals,
            rows,
            np.zeros_like(now_ns),
            basis="modeled",
            most_then_ns=now_ns // 2,
        )
        exposed_ns = saving.claimed_ns
        if not layers or self.is_minor(exposed_ns, signals):
            return
        yield Finding(
            instance=count_per_step(layers, "softmax", signals, plural="softmaxes"),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into kernels between the two products of"
                f" unfused attention: {len(rows) / layers:.0f} around each softmax pass the scores"
                " through memory. A fused kernel keeps the scores on the chip."
            ),
            saving=saving,
            evidence=costly_work("kernels on the scores", signals, rows, saving.claims),
            remedies=advise("fused-attention"),
        )


def _by_size(attention: AttentionLayers, cost_ns: Int64, then_ns: Int64) -> Table:
    kinds = np.column_stack((attention.sizes[attention.layer], attention.is_backward))
    groups, inverse = np.unique(kinds, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    rows: list[tuple[str, str, int, int, int, int]] = []
    for group, (heads, queries, keys, size, _, is_backward) in enumerate(groups.tolist()):
        in_group = inverse == group
        rows.append(
            (
                f"{heads} × {queries} × {keys}, heads of {size}",
                "backward" if is_backward else "forward",
                len(distinct(attention.layer[in_group])),
                int(in_group.sum()),
                int(cost_ns[in_group].sum()),
                int(then_ns[in_group].sum()),
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        "Attention by size",
        (
            Column("size", "Heads × queries × keys"),
            Column("direction", "Pass"),
            Column("layers", "Layers", "count"),
            Column("kernels", "Kernels", "count"),
            Column("total_ns", "Time now", "ns"),
            Column("fused_ns", "Time if fused", "ns"),
        ),
        tuple(ranked),
    )


_FUSES = ("compile", "wider-compilation", "fused-operators")


class UnfusedOperators(Rule):
    """Memory-bound operators write tensors only for the next operators to read them."""

    id = "unfused-operators"
    title = "Fuse memory-bound operators"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.PYTORCH)
    needs_on_cpu = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.SHAPES)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Every model has some such operators, and compiling takes some effort."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        if workload(signals).has(Part.SECOND_DERIVATIVES):
            return  # nothing fuses the formulas of their gradients
        if signals.device.is_host_only:
            yield from self._on_cpu(signals)
            return
        work = fusible_work(signals)
        now_ns = signals.trace.events.duration_ns[work.rows]

        def then_ns(share: Float64) -> Int64:
            return np.ceil(now_ns * share[work.kernel]).astype(np.int64)

        saving = faster_device_work(
            signals,
            work.rows,
            then_ns(work.expected_share),
            basis="modeled",
            least_then_ns=then_ns(work.least_share),
            most_then_ns=then_ns(work.most_share),
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        exposed_ns, count = saving.claimed_ns, len(work.operators)
        cost_ns = time_within(signals, work.rows, saving.claims)
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into memory-bound operators that hand their"
                f" results to one another through memory. Fused into"
                f" {count_per_step(count, 'kernel', signals).removesuffix(' in all')} of"
                f" {work.operators.mean():.1f} operators each, they would take"
                f" {format_share(1 - saving.expected_ns / max(exposed_ns, 1))} of this time."
            ),
            saving=saving,
            evidence=(
                fused_kernels(signals, work, cost_ns, then_ns(work.expected_share)),
                costliest("Longest of these kernels", signals.worker, work.rows, cost_ns),
            ),
            remedies=advise(*_FUSES),
        )

    def _on_cpu(self, signals: Signals) -> Iterable[Finding]:
        form, loops = in_fused_loops(signals)
        if form is None or self.is_minor(form.expected_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(int(form.now_ns.sum()), signals)} goes into operators on large tensors"
                " that hand their results to one another through memory. Fused into"
                f" {count_per_step(loops, 'loop', signals).removesuffix(' in all')} of"
                f" {len(form.rows) / loops:.1f} operators each, they would save"
                f" {format_share(form.expected_ns / max(int(form.now_ns.sum()), 1))} of this time."
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=own_times("Operators that would be fused", signals, form.rows, form.now_ns),
            remedies=advise(*_FUSES),
        )


class RedundantCopies(Rule):
    """The device copies tensors that it already has."""

    id = "redundant-copies"
    title = "Avoid unnecessary tensor copies on the device"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Half of a smaller share is no more than the variation between steps."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        copies = tensor_copies(signals)
        if self.is_minor(int(signals.trace.events.duration_ns[copies.rows].sum()), signals):
            return
        elsewhere = np.concatenate([fusible_work(signals).rows, undonated_copies(signals)])
        is_apart = ~is_in(copies.rows, elsewhere)
        rows, operators = copies.rows[is_apart], copies.operators[is_apart]
        then_ns = signals.trace.events.duration_ns[rows] // 2
        then_ns[is_in(rows, copied_arguments(signals))] = 0
        passed = is_in(rows, passed_copies(signals))
        then_ns[passed] = signals.trace.events.duration_ns[rows][passed]
        saving = faster_device_work(signals, rows, then_ns, basis="heuristic")
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        table, longest = costly_work("copies", signals, rows, saving.claims, operators)
        what, caller = str(table.rows[0][0]), str(table.rows[0][1])
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into copying tensors within the device"
                f" ({count_per_step(len(rows), 'copy', signals, plural='copies')}),"
                f" mostly {what}{f' in {caller}' if caller else ''}."
            ),
            saving=saving,
            evidence=(table, longest),
            remedies=advise("views", "compile", "donated-arguments", "xla-compiled-step"),
        )


class LayoutConversion(Rule):
    """The device rearranges tensors for operators that need another memory layout."""

    id = "layout-conversion"
    title = "Keep tensors in one memory layout"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_busy_share = Limit(
        0.05,
        "share",
        "The first and last layers may convert, which takes up to this much device time.",
    )
    minimum_share = Limit(0.01, "share", "A smaller gain does not justify changing the layout.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        rows = layout_conversions(signals)
        worst_ns = signals.trace.events.duration_ns[rows] // 2
        saving = faster_device_work(
            signals, rows, worst_ns // 2, basis="modeled", most_then_ns=worst_ns
        )
        exposed_ns, busy_ns = saving.claimed_ns, signals.attribution.total_ns(*BUSY)
        if self.is_minor(exposed_ns, signals) or exposed_ns < self.minimum_busy_share * busy_ns:
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into converting tensor layouts"
                f" ({count_per_step(len(rows), 'conversion', signals)}),"
                f" {format_share(exposed_ns / busy_ns)} of the device's busy time."
            ),
            saving=saving,
            evidence=costly_work("conversions", signals, rows, saving.claims),
            remedies=advise("channels-last", "channels-last-miopen"),
        )


class GatheredWeights(Rule):
    """The program copies a matrix for each row, although it has only a few matrices."""

    id = "gathered-weights"
    title = "Multiply rows that share a matrix together"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS, Need.SHAPES, Need.PYTORCH)
    needs_on_cpu = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.SHAPES)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Sorting the rows costs some launches, which must be worth it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        found, events = gathered_matrices(signals), signals.trace.events
        if not len(found.rows):
            return
        gone = np.zeros(len(found.rows), dtype=np.int64)
        half = events.duration_ns[found.rows] // 2
        saving = faster_device_work(signals, found.rows, gone, basis="modeled", most_then_ns=half)
        copies_ns = saving.claimed_ns
        if self.is_minor(copies_ns, signals):
            return
        products = found.products
        matrices, made = found.tables[0]
        yield Finding(
            instance=f"{made:,} copies of {matrices} matrices",
            summary=(
                f"{per_step(copies_ns, signals)} goes into copying a matrix for each row"
                f" ({count_per_step(len(found.rows), 'kernel', signals)}): {made:,} matrices are"
                f" made of {matrices}, and each is multiplied by one row."
            ),
            saving=at_best_also(signals, saving, products, events.duration_ns[products]),
            evidence=costly_work("copies of matrices", signals, found.rows, saving.claims),
            remedies=advise("grouped-products"),
        )


class ChannelsFirstOnCpu(Rule):
    """On the CPU, pooling and normalizing images is slower with channels first."""

    id = "channels-first-on-cpu"
    title = "Keep images with their channels last"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.CPU_PROGRAM)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Below that, conversions that remain may cost as much as is gained."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        form = in_channels_last(signals)
        if form is None or self.is_minor(form.expected_ns, signals):
            return
        models = signals.trace.facts.program.all_made("model")
        yield Finding(
            summary=(
                f"{per_step(int(form.now_ns.sum()), signals)} goes into pooling, normalizing and"
                " convolving images with channels first. On the CPU, these are faster with channels"
                " last."
            ),
            saving=Saving(form.low_ns, form.expected_ns, form.high_ns, form.spans, "modeled"),
            evidence=(
                *own_times("Layers that depend on the layout", signals, form.rows, form.now_ns),
                *made_tables(model for model in models if model.number("convolutions")),
            ),
            remedies=advise("channels-last"),
            severity="medium",
        )
