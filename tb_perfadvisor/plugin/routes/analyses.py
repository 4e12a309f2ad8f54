"""The analysis of a capture: its report and views, or how far it is."""

from __future__ import annotations

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.plugin.answers import ApiError, answer
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.progress import started
from tb_perfadvisor.plugin.results import REPORT, VIEWS
from tb_perfadvisor.plugin.routes.parameters import is_retry
from tb_perfadvisor.plugin.sources import Sources


def report(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """The report, or how far its analysis is, which is started if it was not."""
    results = sources.results()
    content = results.read(entry, REPORT)
    if content is not None:
        return answer(request, content)
    return answer(request, started(results, entry, retry=is_retry(request)), status=202)


def view(request: wrappers.Request, sources: Sources, entry: Entry, name: str) -> wrappers.Response:
    """One of the report's views."""
    content = sources.read(entry, VIEWS)
    views: dict[str, msgspec.Raw] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    if name not in views:
        known = ", ".join(sorted(views)) or "none"
        raise ApiError(404, f"there is no view {name!r}.", hint=f"Views: {known}.")
    return answer(request, bytes(views[name]))


def cancel(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """Stop an analysis; whether there was one to stop."""
    return answer(request, {"is_canceled": sources.results().cancel(entry)})
