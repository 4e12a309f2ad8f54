"""Routes of one analysis: its report, its views, its progress, and canceling it."""

from __future__ import annotations

import posixpath

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.contract.model import ProofInfo
from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Combination, Measured, Patches
from tb_perfadvisor.plugin.origins import client_of, require_same_origin
from tb_perfadvisor.plugin.progress import document, ensure_started, is_retry
from tb_perfadvisor.plugin.responses import ApiError, respond
from tb_perfadvisor.plugin.routes import remarks
from tb_perfadvisor.plugin.routes.listing import describe
from tb_perfadvisor.plugin.worker import REPORT, VIEWS


def report(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The report, or the progress of its analysis, which starts if necessary."""
    results = backend.results()
    content = results.read(entry, REPORT)
    if content is not None:
        content = backend.code.attach(content) if backend.code else content
        return respond(request, remarks.attached(_with_proofs(content), entry))
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
