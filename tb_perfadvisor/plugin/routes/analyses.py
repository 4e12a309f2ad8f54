"""Routes of one analysis: its report, its views, its progress, and canceling it."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.contract.model import ProofInfo
from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Combination, Excerpt, Measured, Patches
from tb_perfadvisor.plugin.origins import client_of, require_same_origin
from tb_perfadvisor.plugin.progress import document, ensure_started, is_retry
from tb_perfadvisor.plugin.responses import (
    ApiError,
    attachment,
    integer,
    optional_integer,
    respond,
    time_range,
)
from tb_perfadvisor.plugin.routes import documents
from tb_perfadvisor.plugin.routes.listing import describe
from tb_perfadvisor.plugin.worker import REPORT, VIEWS

if TYPE_CHECKING:
    from tb_perfadvisor.report.timeline.window import TimelineEvents


def report(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The report, or the progress of its analysis, which starts if necessary."""
    results = backend.results()
    content = results.read(entry, REPORT)
    if content is not None:
        content = backend.code.attach(content) if backend.code else content
        return respond(request, documents.attached(_with_proofs(content), entry))
    return respond(request, ensure_started(request, results, entry), status=202)


def _with_proofs(content: bytes) -> bytes:
    """The report with what was tried, if anything was."""
    from tb_perfadvisor.proof.ledger import known_proofs

    proofs = known_proofs()
    if not proofs:
        return content
    from tb_perfadvisor.contract.model import Report
    from tb_perfadvisor.proof.attach import with_proofs

    report = msgspec.json.decode(content, type=Report)
    return msgspec.json.encode(with_proofs(report, proofs))


def combination(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """What some findings save together, with what was measured in place of what was predicted."""
    stored = backend.read(entry, REPORT)
    findings = msgspec.json.decode(_with_proofs(stored), type=_Findings).findings
    places = sorted(set(request.args.getlist("finding", type=_place)))
    if not places or places[-1] >= len(findings):
        raise ApiError(400, "name findings of the report by their places.", hint="finding=0")
    measured = tuple(
        Measured(place, proof.low_share, proof.share, proof.high_share)
        for at, finding in enumerate(findings)
        if (place := at if finding.analyzed_place is None else finding.analyzed_place) in places
        and (proof := finding.proof) is not None
        and proof.share is not None
        and proof.low_share is not None
        and proof.high_share is not None
    )
    content = document(request, backend.results(), Combination(entry.key, tuple(places), measured))
    if content is None:
        raise not_analyzed()
    return respond(request, content)


def patches(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """Patches of the user's code for findings with a mechanical fix, and commands to try them."""
    code = backend.code
    if code is None:
        hint = "Start it with --perfadvisor_repo and the directory of the program's code."
        raise ApiError(404, "TensorBoard does not know the program's code.", hint=hint)
    # Not the path: a tunnel may make the page public.
    recording = posixpath.normpath(posixpath.join(entry.root.label, entry.capture.run))
    wanted = Patches(entry.key, code.directory, code.digest(), recording)
    content = document(request, backend.results(), wanted)
    if content is None:
        raise not_analyzed()
    return respond(request, content)


class _Finding(msgspec.Struct):
    proof: ProofInfo | None = None
    analyzed_place: int | None = None


class _Findings(msgspec.Struct):
    """The part of a report that decoding all of it would take many times as long for."""

    findings: tuple[_Finding, ...]


def _place(text: str) -> int:
    """The place of a finding in its report; others than 0, 1, … are left out."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text)


def row(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The capture as the list shows it, once it is analyzed; starts the analysis if necessary."""
    results, client = backend.results(), client_of(request)
    results.join(entry, client)
    state = results.state(entry, client)
    if results.row(entry) is None and (state is None or is_retry(request)):
        require_same_origin(request)
        results.start(entry, client)
    (capture,) = describe(backend, [entry])
    is_waiting = capture["status"] in ("queued", "running")
    return respond(request, capture, status=202 if is_waiting else 200)


def view(request: wrappers.Request, backend: Backend, entry: Entry, name: str) -> wrappers.Response:
    """A view of the report."""
    content = backend.read(entry, VIEWS)
    views: dict[str, msgspec.Raw] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    if name not in views:
        names = ", ".join(sorted(views)) or "none"
        raise ApiError(404, f"there is no view {name!r}.", hint=f"Views: {names}.")
    return respond(request, bytes(views[name]))


def cancel(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """Give up an analysis, and say whether that stopped it, or how many others wait for it."""
    results = backend.results()
    is_canceled, others = results.cancel(entry, client_of(request)), results.clients(entry)
    waiting = {"others_waiting": others} if others else {}
    return respond(request, {"is_canceled": is_canceled, **waiting})


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
    from tb_perfadvisor.report.timeline.range_sums import critical_path

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
