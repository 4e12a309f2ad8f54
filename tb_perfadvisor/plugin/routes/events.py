"""Routes of events: those of a range or with a name, sums, paths, and excerpts for Perfetto."""

from __future__ import annotations

import re
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
    from tb_perfadvisor.report.timeline.window import select_window, typical_range

    stored = _stored_events(backend, entry)
    worker = _worker(request, stored)
    if "from_ns" in request.args or "to_ns" in request.args:
        from_ns, to_ns = time_range(request, 0, stored.whole_ns)
    else:
        from_ns, to_ns = typical_range(stored, optional_integer(request, "finding"))
    bins = integer(request, "bins", _DEFAULT_BINS, 1)
    return respond(request, select_window(stored, from_ns, to_ns, bins, worker=worker))


def event(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """An event with its arguments, what it comes from and leads to; null if it is not there."""
    from tb_perfadvisor.report.timeline.window import describe_event, linked_events

    stored = _stored_events(backend, entry)
    worker, place = _worker(request, stored), integer(request, "event", 0, 0)
    if place >= stored.start_ns.size:
        return respond(request, None)
    linked = linked_events(stored, place, worker)
    return respond(request, {**describe_event(stored, place, worker), "linked": linked})


def sums(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """What takes the time of a range, or of a part of a step; by default of the typical step."""
    from tb_perfadvisor.report.timeline.range_sums import range_of_step, sum_range

    stored = _stored_events(backend, entry)
    if "from_ns" in request.args or "to_ns" in request.args:
        shift_ns = int(stored.worker_shift_ns[_worker(request, stored)])
        from_ns, to_ns = (ns + shift_ns for ns in time_range(request, 0, stored.whole_ns))
    else:
        parts = _part(request, "from_part", 0.0), _part(request, "to_part", 1.0)
        from_ns, to_ns = range_of_step(stored, optional_integer(request, "step"), *parts)
    return respond(request, sum_range(stored, from_ns, to_ns))


def path(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The critical path of a step, by default of the typical one."""
    from tb_perfadvisor.report.timeline.critical_path import critical_path

    stored = _stored_events(backend, entry)
    step, worker = optional_integer(request, "step"), _worker(request, stored)
    return respond(request, critical_path(stored, step, worker))


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


def _worker(request: wrappers.Request, stored: TimelineEvents) -> int:
    worker = integer(request, "worker", stored.worker, 0)
    if worker >= stored.worker_shift_ns.size:
        raise ApiError(404, "there is no such worker.", hint="Reload the page.")
    return worker


def _part(request: wrappers.Request, name: str, default: float) -> float:
    text = request.args.get(name, "")
    if not text:
        return default
    if not re.fullmatch(r"-?\d{1,6}(\.\d{1,20})?", text):
        raise ApiError(400, f"{name} must be a number.")
    return float(text)


def _stored_events(backend: Backend, entry: Entry) -> TimelineEvents:
    stored = backend.results().window(entry)
    if stored is None:
        raise not_analyzed()
    return stored
