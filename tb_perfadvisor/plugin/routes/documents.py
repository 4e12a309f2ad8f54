"""Routes of what is made of results: comparisons, histories, and downloads of reports."""

from __future__ import annotations

import math

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.contract.model import Report
from tb_perfadvisor.contract.names import finding_id
from tb_perfadvisor.ingest.recordings import order_of
from tb_perfadvisor.plain_text import plain_lines
from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Comparison, Export, TimeLine
from tb_perfadvisor.plugin.imports import import_whole
from tb_perfadvisor.plugin.progress import document, ensure_started, ensure_view_started
from tb_perfadvisor.plugin.responses import (
    ApiError,
    attachment,
    optional_integer,
    read_body,
    respond,
)
from tb_perfadvisor.plugin.results import Results
from tb_perfadvisor.plugin.whole_runs import RunProfile, WholeRun
from tb_perfadvisor.plugin.worker import REPORT
from tb_perfadvisor.remark import MOST_CHARACTERS, Remark
from tb_perfadvisor.remarks.attach import with_remarks
from tb_perfadvisor.remarks.store import known_remarks, settings_text, write_remark
from tb_perfadvisor.training.training import RunOptions
from tb_perfadvisor.units import LARGEST_SETTING

# More than fit in a table on a screen, and each may need an analysis.
_MAX_COMPARED = 20
# A chart of more has bars too narrow to click.
_MAX_RECORDINGS = 60
# The content type and file extension of each format.
_EXPORTS = {
    "json": ("application/json", "json"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "html": ("text/html", "html"),
    "sarif": ("application/json", "sarif"),
    "text": ("text/plain", "txt"),
}


def compare(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """Compare captures with a base, or report the progress of those not analyzed yet."""
    bases, target_ids = request.args.getlist("base"), request.args.getlist("target")
    ids = list(dict.fromkeys((*bases, *target_ids)))
    if len(bases) != 1 or not 2 <= len(ids) <= _MAX_COMPARED + 1:
        hint = f"compare?base=ID&target=ID, with at most {_MAX_COMPARED} targets."
        raise ApiError(400, "a comparison needs one base and other captures.", hint=hint)
    results, entries = backend.results(), [backend.entry(capture_id) for capture_id in ids]
    keys = tuple(entry.key for entry in entries)
    runs = tuple(entry.run for entry in entries)
    sessions = tuple(entry.capture.session for entry in entries)
    candidates = tuple(entry.candidates for entry in entries)
    content = document(request, results, Comparison(keys, runs, sessions, candidates))
    if content is not None:
        return respond(request, content)
    # Some have no result, or none that can be read.
    waiting = [
        {"id": entry.id, **ensure_started(request, results, entry)}
        for entry in entries
        if not results.has(entry.key)
    ]
    return respond(request, {"captures": waiting}, status=202)


def history(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The recordings of the run that a capture belongs to, as far as they are analyzed.

    Starts no analyses, because there may be many: the tab requests those it needs.
    """
    recordings = sorted(
        (
            other
            for other in backend.catalog.snapshot.entries.values()
            if other.series == entry.series
        ),
        key=lambda other: order_of(other.capture),
    )
    if len(recordings) < 2:
        hint = "Record the run again after a change, into the same directory."
        raise ApiError(404, "the run was recorded only once.", where=entry.run, hint=hint)
    recent, results = recordings[-_MAX_RECORDINGS:], backend.results()
    known = [other for other in recent if results.has(other.key)]
    missing = []
    for other in recent:
        if other not in known:
            state = results.state(other)
            failure = state.failure if state is not None else None
            missing.append((other.id, failure.message if failure is not None else ""))
    wanted = TimeLine(
        name=entry.series_name,
        keys=tuple(other.key for other in known),
        runs=tuple(other.run for other in known),
        sessions=tuple(other.capture.session for other in known),
        candidates=tuple(other.candidates for other in known),
        missing=tuple(missing),
        earlier=len(recordings) - len(recent),
    )
    content = document(request, results, wanted)
    if content is None:  # a result was deleted or damaged
        raise not_analyzed()
    return respond(request, content)


def export(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The report as a file in some format."""
    name = request.args.get("format", "json")
    if name not in _EXPORTS:
        names = ", ".join(sorted(_EXPORTS))
        raise ApiError(404, f"there is no format {name!r}.", hint=f"Formats: {names}.")
    results, whole_run_key = backend.results(), None
    if entry.candidates.runs:
        wanted = wanted_run(request, backend, entry)
        whole_run_key = results.whole_run_key(wanted)
    content = document(request, results, Export(entry.key, name, whole_run_key, remarks_on(entry)))
    if content is None:
        raise not_analyzed()
    content_type, extension = _EXPORTS[name]
    headers = [attachment(entry, f".{extension}")]
    return respond(request, content, content_type=content_type, headers=headers)


def rules(request: wrappers.Request) -> wrappers.Response:
    """All rules."""
    import_whole("tb_perfadvisor.signals")
    from tb_perfadvisor.rules.page import rule_summary
    from tb_perfadvisor.rules.registry import all_rules

    return respond(request, {"rules": [rule_summary(rule) for rule in all_rules()]})


def rule(request: wrappers.Request, rule_id: str) -> wrappers.Response:
    """A rule with its page."""
    import_whole("tb_perfadvisor.signals")
    from tb_perfadvisor.rules.page import rule_page
    from tb_perfadvisor.rules.registry import all_rules

    for candidate in all_rules():
        if candidate.id == rule_id:
            body = {"id": candidate.id, "title": candidate.title, "page": rule_page(candidate)}
            return respond(request, body)
    raise ApiError(404, "there is no such rule.", where=rule_id)


def training(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The view of the run that a capture belongs to, or the progress of reading its scalars."""
    if not entry.candidates.runs:
        hint = "Log scalars with TensorBoard's SummaryWriter into the directory of the profile."
        raise ApiError(404, "the run of this profile has no event files.", hint=hint)
    results = backend.results()
    wanted = wanted_run(request, backend, entry)
    content = results.whole_run(wanted)
    if content is not None:
        return respond(request, content)
    return respond(request, ensure_view_started(request, results, wanted), status=202)


def wanted_run(request: wrappers.Request, backend: Backend, entry: Entry) -> WholeRun:
    """The view of the run that a capture belongs to, with what the request says about the run.

    The request may say what a device costs, and where the run ends.
    """
    results, candidates = backend.results(), entry.candidates
    profiles = tuple(
        _profile(results, other)
        for other in backend.catalog.snapshot.entries.values()
        if other.candidates.runs == candidates.runs or other.candidates.certain in candidates.runs
    )
    return WholeRun(entry.run, entry.root.group, candidates, entry.id, profiles, _options(request))


def _profile(results: Results, entry: Entry) -> RunProfile:
    certain = entry.candidates.certain.run if entry.candidates.certain is not None else None
    if results.has(entry.key):
        return RunProfile(entry.id, entry.run, entry.capture.session, certain, entry.key)
    state = results.state(entry)
    failure = state.failure if state is not None else None
    problem = f"Not read: {failure.message}" if failure is not None else ""
    return RunProfile(entry.id, entry.run, entry.capture.session, certain, "", problem)


def _options(request: wrappers.Request) -> RunOptions:
    price = None
    if text := request.args.get("price_per_device_hour"):
        try:
            price = float(text)
        except ValueError:
            price = math.nan
        if not 0 < price <= LARGEST_SETTING:
            raise ApiError(400, "price_per_device_hour must be a number above 0.")
    return RunOptions(price, optional_integer(request, "total_steps"))


_MOST_BYTES = 16 << 10
"""Of a request: the longest text, with escapes, and some space for the rest."""


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    finding: str
    wont_fix: bool = False
    text: str = ""


def write(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """Keep what the user says about a finding, for all recordings of the run."""
    if hint := backend.notes_hint(request):
        raise ApiError(403, "notes cannot be written at this address.", hint=hint)
    content = read_body(request, _MOST_BYTES)
    try:
        wanted = msgspec.json.decode(content, type=_Wanted)
    except msgspec.MsgspecError as error:
        raise ApiError(400, f"this is no note: {error}.") from error
    text = plain_lines(wanted.text.strip())
    if len(text) > MOST_CHARACTERS:
        raise ApiError(413, f"a note has at most {MOST_CHARACTERS} characters.")
    report = msgspec.json.decode(backend.read(entry, REPORT), type=Report)
    ids = {finding_id(report.findings, place) for place in range(len(report.findings))}
    if wanted.finding not in ids:
        raise ApiError(404, "there is no such finding.", where=entry.run, hint="Reload the page.")
    remark = Remark(wanted.finding, wanted.wont_fix, text)
    write_remark(entry.run_digest, remark)
    return respond(request, {"wont_fix": remark.wont_fix, "text": remark.text})


def settings(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """The remarks on runs of the log directory, as part of a settings file."""
    known = known_remarks()
    entries = backend.catalog.snapshot.entries.values()
    runs = {entry.run_digest: entry.series_name for entry in entries}
    remarks = [
        msgspec.structs.replace(remark, run=run)
        for digest, run in sorted(runs.items(), key=lambda pair: pair[1])
        for remark in known.get(digest, {}).values()
    ]
    return respond(
        request,
        settings_text(remarks),
        content_type="text/plain; charset=utf-8",
        headers=[("Content-Disposition", 'attachment; filename="perfadvisor.toml"')],
    )


def attached(content: bytes, entry: Entry) -> bytes:
    """A report with what the user says about its findings, if anything."""
    remarks = remarks_on(entry)
    if not remarks:
        return content
    report = msgspec.json.decode(content, type=Report)
    return msgspec.json.encode(with_remarks(report, remarks))


def remarks_on(entry: Entry) -> tuple[Remark, ...]:
    """What the user says about the findings of a capture."""
    return tuple(known_remarks().get(entry.run_digest, {}).values())
