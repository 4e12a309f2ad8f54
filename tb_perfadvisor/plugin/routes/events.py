"""Routes of events: those in a range of time or with a name, and an excerpt for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug import wrappers

from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Excerpt
from tb_perfadvisor.plugin.progress import document
from tb_perfadvisor.plugin.responses import (
    ApiError,
    attachment,
    integer,
    optional_integer,
    respond,
    time_range,
)

if TYPE_CHECKING:
    from tb_perfadvisor.report.timeline.window import TimelineEvents

_DEFAULT_BINS = 1_024
_LONGEST_SEARCH = 200


def window(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """What a timeline draws of a range; by default of the step in which a finding costs time."""
    from tb_perfadvisor.report.timeline.window import describe_event, select_window, typical_range

    stored = _stored_events(backend, entry)
    worker = integer(request, "worker", stored.worker, 0)
    if worker >= stored.worker_shift_ns.size:
        raise ApiError(404, "there is no such worker.", where=entry.run, hint="Reload the page.")
    if "from_ns" in request.args or "to_ns" in request.args:
        from_ns, to_ns = time_range(request, 0, stored.whole_ns)
    else:
        from_ns, to_ns = typical_range(stored, optional_integer(request, "finding"))
    bins = integer(request, "bins", _DEFAULT_BINS, 1)
    answer = select_window(stored, from_ns, to_ns, bins, worker=worker)
    event = optional_integer(request, "event")
    # An event that is not there is no reason to show nothing.
    is_known = event is not None and event < stored.start_ns.size
    answer["event"] = describe_event(stored, event or 0, worker) if is_known else None
    return respond(request, answer)


def search(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The events whose names contain a text."""
    from tb_perfadvisor.report.timeline.window import find_events

    text = request.args.get("text", "")
    if not 0 < len(text) <= _LONGEST_SEARCH:
        raise ApiError(400, f"text must have 1 to {_LONGEST_SEARCH} characters.")
    return respond(request, find_events(_stored_events(backend, entry), text))


def excerpt(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The events around a finding's evidence, or all, as a file for Perfetto."""
    _stored_events(backend, entry)
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


def _stored_events(backend: Backend, entry: Entry) -> TimelineEvents:
    stored = backend.results().window(entry)
    if stored is None:
        raise not_analyzed()
    return stored
