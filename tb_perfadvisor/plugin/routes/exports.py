"""The route that downloads a report."""

from __future__ import annotations

from werkzeug import wrappers

from tb_perfadvisor.plugin.backend import Backend, not_analyzed
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Export
from tb_perfadvisor.plugin.progress import document
from tb_perfadvisor.plugin.responses import ApiError, respond
from tb_perfadvisor.plugin.routes.parameters import attachment
from tb_perfadvisor.plugin.routes.remarks import remarks_on
from tb_perfadvisor.plugin.routes.training import wanted_run

# The content type and file extension of each format.
_EXPORTS = {
    "json": ("application/json", "json"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "html": ("text/html", "html"),
    "sarif": ("application/json", "sarif"),
    "text": ("text/plain", "txt"),
}


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
