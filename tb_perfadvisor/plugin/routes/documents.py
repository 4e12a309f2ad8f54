"""Routes of what is made of results: comparisons, histories, and downloads of reports."""

from __future__ import annotations

from werkzeug import wrappers

from tb_perfadvisor.ingest.recordings import order_of
from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Comparison, Export, TimeLine
from tb_perfadvisor.plugin.progress import document, ensure_started
from tb_perfadvisor.plugin.responses import ApiError, attachment, respond
from tb_perfadvisor.plugin.routes.remarks import remarks_on
from tb_perfadvisor.plugin.routes.training import wanted_run

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
