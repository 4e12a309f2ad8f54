"""Captures side by side."""

from __future__ import annotations

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.plugin.answers import ApiError, answer
from tb_perfadvisor.plugin.progress import started
from tb_perfadvisor.plugin.routes.parameters import is_retry
from tb_perfadvisor.plugin.sources import Sources

# More than a table on a screen; each is an analysis that would have to run.
_MAX_COMPARED = 20


def compare(request: wrappers.Request, sources: Sources) -> wrappers.Response:
    """One capture against others; until all are analyzed, how far those that are not are."""
    from tb_perfadvisor.report.comparison import compare_facts, distinct_names

    bases, others = request.args.getlist("base"), request.args.getlist("target")
    ids = list(dict.fromkeys((*bases, *others)))
    if len(bases) != 1 or not 2 <= len(ids) <= _MAX_COMPARED + 1:
        hint = f"compare?base=ID&target=ID, with at most {_MAX_COMPARED} targets."
        raise ApiError(400, "a comparison needs one base and other captures.", hint=hint)
    results, entries = sources.results(), [sources.entry(one) for one in ids]
    found = [results.facts(entry) for entry in entries]
    ready = [facts for facts in found if facts is not None]
    if len(ready) < len(found):
        waiting = [
            {"id": entry.id, **started(results, entry, retry=is_retry(request))}
            for entry, facts in zip(entries, found, strict=True)
            if facts is None
        ]
        return answer(request, {"captures": waiting}, status=202)
    # The tab knows runs by these names, however long.
    names = distinct_names(
        [(entry.run,) for entry in entries], [entry.capture.session for entry in entries]
    )
    base, *targets = (
        msgspec.structs.replace(facts, name=name) for facts, name in zip(ready, names, strict=True)
    )
    return answer(request, compare_facts(base, targets))
