"""Timelines embedded in an exported page, which has no server to ask for events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.timeline.stored_events import TimelineEvents, select_events

# At most a few hundred kilobytes of JSON, about the size of the page's own code.
MAX_FINDINGS = 10
MAX_ROWS = 3
MAX_EVENTS = 150
# Share of the view that the event fills: at first, and after zooming out once.
_FILLS = (1 / 2, 1 / 6)
_NARROWEST_NS = 2_000


def make_timelines(
    findings: Sequence[model.FindingInfo], stored: TimelineEvents
) -> list[dict[str, Any]]:
    """Make the timelines that the tab would ask a server for.

    Args:
        findings: Of the report, in its order.
        stored: The events of the reference worker.

    Returns:
        Results of `select_events` with `finding`, the finding's index. For each list of events
        in the evidence of the first findings: one view of each of its first events, and one of
        the very first event after zooming out once.
    """
    return [
        {"finding": index, **select_events(stored, from_ns, to_ns, MAX_EVENTS, index)}
        for index, finding in enumerate(findings[:MAX_FINDINGS])
        for evidence in finding.evidence
        if isinstance(evidence, model.EventsEvidence)
        for position, row in enumerate(evidence.rows[:MAX_ROWS])
        if row.worker == stored.worker
        for from_ns, to_ns in _ranges(row, _FILLS if position == 0 else _FILLS[:1])
    ]


def _ranges(row: model.EvidenceRow, fills: Sequence[float]) -> Iterator[tuple[int, int]]:
    narrowest = max(row.duration_ns / _FILLS[0], _NARROWEST_NS)
    for fill in fills:
        span_ns = narrowest * _FILLS[0] / fill
        # The tab rounds the range it asks for: add a nanosecond at either end.
        from_ns = max(int(row.start_ns + row.duration_ns / 2 - span_ns / 2) - 1, 0)
        yield from_ns, from_ns + int(span_ns) + 3
