"""The route of the history of a run."""

from __future__ import annotations

from werkzeug import wrappers

from tb_perfadvisor.ingest.recordings import order_of, split_step
from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import TimeLine
from tb_perfadvisor.plugin.log_directories import grouped_run
from tb_perfadvisor.plugin.progress import document
from tb_perfadvisor.plugin.responses import ApiError, respond

# A chart of more has bars too narrow to click.
_MAX_RECORDINGS = 60


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
        name=grouped_run(entry.root.group, split_step(entry.capture.run)[0]),
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
