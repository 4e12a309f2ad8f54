"""Routes of events: those in a range of time, and an excerpt for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug import wrappers

from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.responses import ApiError, respond
from tb_perfadvisor.plugin.routes.parameters import attachment, integer, time_range
from tb_perfadvisor.plugin.sources import Sources, not_analyzed

if TYPE_CHECKING:
    from tb_perfadvisor.report.timeline.stored_events import TimelineEvents

_DEFAULT_EVENTS = 2_000
_MAX_EVENTS = 20_000


def window(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """Events of the reference worker in a range of time, down-sampled if there are many."""
    from tb_perfadvisor.report.timeline.stored_events import select_events

    stored = _stored_events(request, sources, entry)
    from_ns, to_ns = time_range(request, 0, stored.trace_duration_ns)
    max_events = min(integer(request, "max_events", _DEFAULT_EVENTS, 1), _MAX_EVENTS)
    finding = integer(request, "finding", -1, 0)
    return respond(
        request,
        select_events(stored, from_ns, to_ns, max_events, finding if finding >= 0 else None),
    )


def excerpt(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """The events around a finding's evidence, or all, as a file for Perfetto."""
    from tb_perfadvisor.report.timeline.perfetto_excerpt import evidence_range, make_excerpt

    stored = _stored_events(request, sources, entry)
    report = sources.report(entry)
    index = integer(request, "finding", -1, 0)
    if index >= len(report.findings):
        raise ApiError(404, "there is no such finding.", where=entry.run, hint="Reload the page.")
    if index >= 0:
        default_range = evidence_range(report.findings[index], stored, index)
        suffix = f"_{report.findings[index].rule_id}"
    else:
        default_range, suffix = (0, stored.trace_duration_ns), ""
    from_ns, to_ns = time_range(request, *default_range)
    content = make_excerpt(report, stored, index if index >= 0 else None, from_ns, to_ns)
    return respond(
        request,
        content,
        content_type="application/gzip",
        headers=[attachment(entry, f"{suffix}.json.gz")],
    )


def _stored_events(request: wrappers.Request, sources: Sources, entry: Entry) -> TimelineEvents:
    window = sources.results().window(entry)
    if window is None:
        raise not_analyzed()
    worker = integer(request, "worker", window.worker, 0)
    if worker != window.worker:
        raise ApiError(
            404,
            f"the events of worker {worker} are not stored.",
            hint=f"Only those of worker {window.worker}, the reference worker, are.",
        )
    return window
