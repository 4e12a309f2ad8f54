"""Time lines that travel with an exported page, where no server has the events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tb_perfadvisor.engine.window import Window, select
from tb_perfadvisor.report import model

# A few hundred kilobytes of JSON at most, about as much as the page's own code.
MAX_FINDINGS = 10
MAX_ROWS = 3
MAX_EVENTS = 150
# How much of the first view an event fills, and of the view after zooming out once.
_FILLS = (1 / 2, 1 / 6)
_NARROWEST_NS = 2_000


def make_timelines(findings: Sequence[model.FindingInfo], window: Window) -> list[dict[str, Any]]:
    """What the route `window` would answer for the first events of the first findings.

    Args:
        findings: Of the report, in its order.
        window: The events of the reference worker.

    Returns:
        Answers of `select` with `finding`, the finding's place, for each of the first events of
        each list of events in its evidence as it is seen first, and for the very first also
        zoomed out once.
    """
    return [
        {"finding": place, **select(window, from_ns, to_ns, MAX_EVENTS, place)}
        for place, finding in enumerate(findings[:MAX_FINDINGS])
        for evidence in finding.evidence
        if isinstance(evidence, model.EventsEvidence)
        for at, row in enumerate(evidence.rows[:MAX_ROWS])
        if row.worker == window.worker
        for from_ns, to_ns in _ranges(row, _FILLS if at == 0 else _FILLS[:1])
    ]


def _ranges(row: model.EvidenceRow, fills: Sequence[float]) -> Iterator[tuple[int, int]]:
    narrowest = max(row.duration_ns / _FILLS[0], _NARROWEST_NS)
    for fill in fills:
        span_ns = narrowest * _FILLS[0] / fill
        # A nanosecond more at either end: the tab rounds what it asks for.
        from_ns = max(int(row.start_ns + row.duration_ns / 2 - span_ns / 2) - 1, 0)
        yield from_ns, from_ns + int(span_ns) + 3
