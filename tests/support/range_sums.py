"""Compare the sums of ranges with those of the analysis over the same interval."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.range_sums import MAX_ROWS, sum_range
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.attribution import kernel_totals
from tb_perfadvisor.signals.core.operators import launched_ns, operator_self_ns
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import overlap_ns

_STEPS = 3
"""Of each recording, besides all of it."""


def check_against_the_analysis(signals: Signals) -> None:
    """Causes and kernels of steps and of parts of them, and operators of the whole recording."""
    stored, steps = collect_events(signals), signals.steps
    ranges = [(0, stored.whole_ns)]
    for start_ns, end_ns in zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True):
        third_ns = (end_ns - start_ns) // 3
        ranges += [(start_ns, end_ns), (start_ns + third_ns, end_ns - third_ns)]
    for from_ns, to_ns in ranges[: 1 + 2 * _STEPS]:
        sums = sum_range(stored, from_ns, to_ns)
        assert _causes(signals, from_ns, to_ns) == {
            row["cause"]: row["total_ns"] for row in sums["causes"]
        }
        kernels = Counter[str]()
        for total in kernel_totals(signals.trace, signals.device.rows, from_ns, to_ns):
            kernels[total.name] += total.total_ns
        _equal(sums["kernels"], "device_ns", kernels)
    whole = sum_range(stored, 0, stored.whole_ns)
    trace = signals.trace
    operators = trace.rows(EventKind.OPERATOR)
    own = Counter[str]()
    own_ns = operator_self_ns(trace, operators, signals.launching_operator)
    for row, ns in zip(operators.tolist(), own_ns.tolist(), strict=True):
        own[trace.name(row)] += ns
    launched = Counter[str]()
    device_ns = launched_ns(trace, signals.launching_operator, signals.device.rows)
    for row in device_ns.nonzero()[0].tolist():
        launched[trace.name(row)] += int(device_ns[row])
    _equal(whole["operators"], "own_ns", own)
    _equal(whole["operators"], "device_ns", launched)


def _causes(signals: Signals, from_ns: int, to_ns: int) -> dict[str, int]:
    edges = np.array([from_ns]), np.array([to_ns])
    parts = signals.attribution.intervals.items()
    found = {cause.value: int(overlap_ns(part, *edges)[0]) for cause, part in parts}
    return {cause: ns for cause, ns in found.items() if ns}


def _equal(table: dict[str, Any], key: str, expected: Counter[str]) -> None:
    """The rows of a table, of which the smallest may be left out."""
    found = {row["name"]: row[key] for row in table["rows"]}
    assert found == {name: expected[name] for name in found}
    if len(found) < MAX_ROWS:
        assert sum(found.values()) == expected.total()
