"""Events behind a finding: those of a stretch of time, and as a file that Perfetto opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug import wrappers

from tb_perfadvisor.plugin.answers import ApiError, answer
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.routes.parameters import attachment, integer, time_range
from tb_perfadvisor.plugin.sources import Sources, not_analyzed

if TYPE_CHECKING:
    from tb_perfadvisor.report.timeline.stored_events import TimelineEvents

_DEFAULT_EVENTS = 2_000
_MAX_EVENTS = 20_000


def window(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """Events of the reference worker in a stretch of time, down-sampled where there are many."""
    from tb_perfadvisor.report.timeline.stored_events import select_events

    kept = _kept_window(request, sources, entry)
    from_ns, to_ns = time_range(request, 0, kept.trace_duration_ns)
    max_events = min(integer(request, "max_events", _DEFAULT_EVENTS, 1), _MAX_EVENTS)
    finding = integer(request, "finding", -1, 0)
    return answer(
        request, select_events(kept, from_ns, to_ns, max_events, finding if finding >= 0 else None)
    )


def excerpt(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """Events of the reference worker as a file that Perfetto opens."""
    from tb_perfadvisor.report.timeline.perfetto_excerpt import evidence_range, make_excerpt

    kept = _kept_window(request, sources, entry)
    report = sources.report(entry)
    place = integer(request, "finding", -1, 0)
    if place >= len(report.findings):
        raise ApiError(404, "there is no such finding.", where=entry.run, hint="Reload the page.")
    whole = 0, kept.trace_duration_ns
    seen = evidence_range(report.findings[place], kept, place) if place >= 0 else whole
    content = make_excerpt(report, kept, place if place >= 0 else None, *time_range(request, *seen))
    rule = f"_{report.findings[place].rule_id}" if place >= 0 else ""
    return answer(
        request,
        content,
        content_type="application/gzip",
        headers=[attachment(entry, f"{rule}.json.gz")],
    )


def _kept_window(request: wrappers.Request, sources: Sources, entry: Entry) -> TimelineEvents:
    window = sources.results().window(entry)
    if window is None:
        raise not_analyzed()
    worker = integer(request, "worker", window.worker, 0)
    if worker != window.worker:
        raise ApiError(
            404,
            f"the events of worker {worker} are not kept.",
            hint=f"Those of worker {window.worker}, the reference worker, are.",
        )
    return window
