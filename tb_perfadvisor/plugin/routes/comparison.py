"""The route that compares captures."""

from __future__ import annotations

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.plugin.progress import ensure_started
from tb_perfadvisor.plugin.responses import ApiError, respond
from tb_perfadvisor.plugin.routes.parameters import is_retry
from tb_perfadvisor.plugin.sources import Sources

# More than fit in a table on a screen, and each may need an analysis.
_MAX_COMPARED = 20


def compare(request: wrappers.Request, sources: Sources) -> wrappers.Response:
    """Compare captures with a base, or report the progress of those not analyzed yet."""
    from tb_perfadvisor.report.comparison import compare_facts, distinct_names

    bases, target_ids = request.args.getlist("base"), request.args.getlist("target")
    ids = list(dict.fromkeys((*bases, *target_ids)))
    if len(bases) != 1 or not 2 <= len(ids) <= _MAX_COMPARED + 1:
        hint = f"compare?base=ID&target=ID, with at most {_MAX_COMPARED} targets."
        raise ApiError(400, "a comparison needs one base and other captures.", hint=hint)
    results, entries = sources.results(), [sources.entry(capture_id) for capture_id in ids]
    all_facts = [results.facts(entry) for entry in entries]
    ready = [facts for facts in all_facts if facts is not None]
    if len(ready) < len(all_facts):
        waiting = [
            {"id": entry.id, **ensure_started(results, entry, retry=is_retry(request))}
            for entry, facts in zip(entries, all_facts, strict=True)
            if facts is None
        ]
        return respond(request, {"captures": waiting}, status=202)
    # Use the names that the tab shows.
    names = distinct_names(
        [(entry.run,) for entry in entries], [entry.capture.session for entry in entries]
    )
    base, *targets = (
        msgspec.structs.replace(facts, name=name) for facts, name in zip(ready, names, strict=True)
    )
    return respond(request, compare_facts(base, targets))
