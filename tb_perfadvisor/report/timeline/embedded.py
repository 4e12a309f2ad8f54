"""The timeline of an exported page, which has no server to ask for more detail.

The whole recording, a typical step and the events around the first evidence of each finding are
there. Each is as detailed as its number of boxes allows, so the page's size is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.timeline.stored_events import TimelineEvents
from tb_perfadvisor.report.timeline.window import select_window, typical_range

# At most a few hundred kilobytes of JSON, about the size of the page's own code.
MAX_FINDINGS = 10
MAX_ROWS = 3
BOXES_OF_STEP = 4_000
BOXES_OF_WHOLE = 2_000
BOXES_OF_EVIDENCE = 150
_BINS = 1_024
# Share of the view that the event fills: at first, and after zooming out once.
_FILLS = (1 / 2, 1 / 6)
_NARROWEST_NS = 2_000


def make_timelines(
    findings: Sequence[model.FindingInfo], stored: TimelineEvents
) -> list[dict[str, Any]]:
    """Make the parts of the timeline that the page has.

    Args:
        findings: Of the report, in its order.
        stored: The stored events.

    Returns:
        Results of `select_window`: a typical step, everything, and for each list of events in the
        evidence of the first findings, one for each of its first events.
    """
    ranges = [
        (*typical_range(stored), stored.worker, BOXES_OF_STEP),
        (0, max(stored.whole_ns, 1), stored.worker, BOXES_OF_WHOLE),
        *(
            (from_ns, to_ns, row.worker, BOXES_OF_EVIDENCE)
            for finding in findings[:MAX_FINDINGS]
            for evidence in finding.evidence
            if isinstance(evidence, model.EventsEvidence)
            for position, row in enumerate(evidence.rows[:MAX_ROWS])
            for from_ns, to_ns in _ranges(row, _FILLS if position == 0 else _FILLS[:1])
        ),
    ]
    # Findings share evidence.
    return [
        select_window(stored, from_ns, to_ns, _BINS, worker=worker, max_boxes=boxes)
        for from_ns, to_ns, worker, boxes in dict.fromkeys(ranges)
    ]


def _ranges(row: model.EvidenceRow, fills: Sequence[float]) -> Iterator[tuple[int, int]]:
    narrowest = max(row.duration_ns / _FILLS[0], _NARROWEST_NS)
    for fill in fills:
        span_ns = narrowest * _FILLS[0] / fill
        # The tab rounds the range it asks for: add a nanosecond at either end.
        from_ns = max(int(row.start_ns + row.duration_ns / 2 - span_ns / 2) - 1, 0)
        yield from_ns, from_ns + int(span_ns) + 3
