"""The route that compares captures."""

from __future__ import annotations

from werkzeug import wrappers

from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.documents import Comparison
from tb_perfadvisor.plugin.progress import document, ensure_started
from tb_perfadvisor.plugin.responses import ApiError, respond

# More than fit in a table on a screen, and each may need an analysis.
_MAX_COMPARED = 20


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
