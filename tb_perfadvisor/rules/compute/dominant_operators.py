"""Few operators take most of a step on the CPU, or most of the time that a recorder sums up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.instance import leading_names
from tb_perfadvisor.rules.evidence.operator_sums import (
    OperatorKind,
    operator_kinds,
    operator_sums_table,
)
from tb_perfadvisor.rules.finding import Column, Finding, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.host_operators import HostOperators, host_operators
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share

_FEW = 3
_NARROW = ("bfloat16", "half", "float16")
_MOVING = frozenset({"_Send", "_Recv", "_HostSend", "_HostRecv", "Cast"})
"""Operators that compute nothing (tensorflow/core/ops: sendrecv_ops, math_ops)."""
_OVER_THREADS = " Times are added up over the threads that run operators in parallel."


class DominantOperators(Rule):
    """Few operators take most of the step.

    What it finds
    -------------
    In a program on the CPU, the kinds of operators with the most time of their own, where three of
    them take more of the step than the limit, and the modules and source lines that call them. In a
    recorder's sums, the kinds of operators that take most of the time of all.

    Why it matters
    --------------
    No change that leaves these operators alone makes the step much shorter.

    How it is measured
    ------------------
    An operator's own time is its duration without the operators that it calls. Own times of an
    operator are added up over the used steps; where several threads run operators at a time, over
    all threads. This finding has no saving of its own; other rules estimate what can be done.

    Where a recorder only sums up, its table of operators counts, over the whole recording and all
    devices. There, operators that only move or convert tensors (`_Send`, `_Recv`, `Cast`) are
    reported as well if they take a tenth of the operators' time on the device or on the host.

    When to ignore
    --------------
    When the work is necessary and runs on all cores at the speed of the processor.

    How to verify
    -------------
    Their share of the step falls.

    References:
    ----------
    PyTorch documentation, "Performance Tuning Guide", on the CPU.
    """

    id = "dominant-operators"
    title = "Speed up the operators that take most of the time"
    category = "compute"
    reads_sums = True
    needs = (Need.WORK, Need.HOST_EVENTS)
    needs_of_sums = (Need.OPERATOR_SUMS,)
    is_preview = False

    minimum_share = Limit(
        0.9,
        "share",
        "In a healthy step, convolutions and products and their gradients take up to nine tenths.",
    )
    minimum_moving_share = Limit(
        0.1,
        "share",
        "Feeding a step and fetching its loss takes less than a tenth of its operators.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when few operators take most of a step."""
        if signals.trace.totals is not None:
            yield from self._of_sums(signals)
            return
        operators = host_operators(signals)
        by_kind = np.bincount(operators.name, weights=operators.self_ns).astype(np.int64)
        first = np.argsort(-by_kind, kind="stable")[:_FEW]
        total_ns = int(by_kind[first].sum())
        if len(by_kind) <= _FEW or self.is_minor(total_ns, signals):
            return
        shares = [
            f"{operators.names[kind]} ({format_share(share_of_window(time_ns, signals))})"
            for kind, time_ns in zip(first.tolist(), by_kind[first].tolist(), strict=True)
        ]
        most = operators.rows[operators.name == first[0]]
        is_narrow = _is_narrow(signals.trace, most)
        yield Finding(
            instance=leading_names([operators.names[kind] for kind in first], by_kind[first]),
            summary=(
                f"{per_step(total_ns, signals)} goes into three operators:"
                f" {', '.join(shares[:-1])} and {shares[-1]}."
                f"{_OVER_THREADS if total_ns > signals.attribution.window_ns else ''}"
            ),
            evidence=(
                _by_caller(signals, operators),
                costliest("Longest operators", signals.worker, operators.rows, operators.self_ns),
            ),
            remedies=advise(
                *(("compare-with-32-bits",) if is_narrow else ()),
                "look-at-operators",
                "operator-threads",
            ),
            severity="low",
        )

    def _of_sums(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each side whose operators mostly move tensors, or are few."""
        for on_device in (True, False):
            kinds = operator_kinds(signals, on_device=on_device)
            moving = tuple(kind for kind in kinds if kind.type in _MOVING)
            moving_share = sum(kind.share for kind in moving)
            first = kinds[:_FEW]
            few_share = sum(kind.share for kind in first)
            where = "device" if on_device else "host"
            if moving_share >= self.minimum_moving_share:
                what = f"that move or convert tensors take {format_share(moving_share)}"
                named, changes = moving[:_FEW], _changes(moving)
            elif on_device and len(kinds) > _FEW and few_share >= self.minimum_share:
                what, named, changes = f"of three kinds take {format_share(few_share)}", first, ()
            else:
                continue
            shares = ", ".join(f"{kind.type} {format_share(kind.share)}" for kind in named)
            yield Finding(
                summary=(
                    f"Operators {what} of the time of all operators on the {where} ({shares})."
                ),
                evidence=(operator_sums_table(kinds, on_device=on_device),),
                remedies=advise(*changes, "look-at-table"),
                severity="low",
                title="Move and convert fewer tensors" if changes else "",
            )


def _changes(kinds: Sequence[OperatorKind]) -> tuple[str, ...]:
    """What helps against the costliest ones, first."""
    types = [kind.type for kind in kinds]
    changes = ("convert-once" if type_ == "Cast" else "operators-on-one-device" for type_ in types)
    return tuple(dict.fromkeys(changes))


def _is_narrow(trace: Trace, rows: Int32) -> bool:
    """Whether most of these operators compute in 16 bits."""
    dtypes = trace.by_event(trace.operators.row, trace.operators.dtypes, -1)[rows]
    narrow = [any(name in trace.text(int(d)).lower() for name in _NARROW) for d in dtypes.tolist()]
    return 2 * sum(narrow) > len(rows)


def _by_caller(signals: Signals, operators: HostOperators) -> Table:
    """Own time of operators by input shapes, module and source line."""
    rows, origins, trace = operators.rows, signals.origins, signals.trace
    shapes = trace.by_event(trace.operators.row, trace.operators.shapes, -1)[rows]
    first, group = group_rows(operators.name, shapes, origins.module[rows], origins.line[rows])
    count = np.bincount(group, minlength=len(first))
    self_ns = np.bincount(group, weights=operators.self_ns, minlength=len(first)).astype(np.int64)
    order = np.argsort(-self_ns, kind="stable").tolist()
    return Table(
        "Operators by their own time",
        (
            Column("name", "Operator"),
            Column("shapes", "Input shapes"),
            Column("module", "Module"),
            Column("line", "Source line"),
            Column("count", "Count", "count"),
            Column("own_ns", "Own time", "ns"),
            Column("share", "Of the steps", "share"),
        ),
        tuple(
            (
                operators.names[operators.name[first[i]]],
                trace.text(int(shapes[first[i]])) or None,
                origins.module_of(int(rows[first[i]])),
                origins.line_of(int(rows[first[i]])),
                int(count[i]),
                int(self_ns[i]),
                share_of_window(int(self_ns[i]), signals),
            )
            for i in order
        ),
    )
