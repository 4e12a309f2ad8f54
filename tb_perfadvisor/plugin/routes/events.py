"""Routes of events: those in a range of time, and an excerpt for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug import wrappers

from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Excerpt
from tb_perfadvisor.plugin.progress import document
from tb_perfadvisor.plugin.responses import ApiError, respond
from tb_perfadvisor.plugin.routes.parameters import (
    attachment,
    integer,
    optional_integer,
    time_range,
)

if TYPE_CHECKING:
    from tb_perfadvisor.report.timeline.stored_events import TimelineEvents

_DEFAULT_EVENTS = 2_000
_MAX_EVENTS = 20_000


def window(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """Events of the reference worker in a range of time, down-sampled if there are many."""
    from tb_perfadvisor.report.timeline.stored_events import select_events

    stored = _stored_events(request, backend, entry)
    from_ns, to_ns = time_range(request, 0, stored.trace_duration_ns)
    max_events = min(integer(request, "max_events", _DEFAULT_EVENTS, 1), _MAX_EVENTS)
    finding = integer(request, "finding", -1, 0)
    return respond(
        request,
        select_events(stored, from_ns, to_ns, max_events, finding if finding >= 0 else None),
    )


def excerpt(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The events around a finding's evidence, or all, as a file for Perfetto."""
    _stored_events(request, backend, entry)
    finding = optional_integer(request, "finding")
    rules = backend.rules_found(entry)
    if finding is not None and finding >= len(rules):
        raise ApiError(404, "there is no such finding.", where=entry.run, hint="Reload the page.")
    from_ns, to_ns = optional_integer(request, "from_ns"), optional_integer(request, "to_ns")
    if to_ns is not None and to_ns <= (from_ns or 0):
        raise ApiError(400, "to_ns must be larger than from_ns.")
    wanted = Excerpt(entry.key, finding, from_ns, to_ns)
    content = document(request, backend.results(), wanted)
    if content is None:
        raise not_analyzed()
    suffix = f"_{rules[finding]}" if finding is not None else ""
    return respond(
        request,
        content,
        content_type="application/gzip",
        headers=[attachment(entry, f"{suffix}.json.gz")],
    )


def _stored_events(request: wrappers.Request, backend: Backend, entry: Entry) -> TimelineEvents:
    window = backend.results().window(entry)
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
