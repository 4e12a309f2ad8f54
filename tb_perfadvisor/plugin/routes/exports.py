"""The route that downloads a report."""

from __future__ import annotations

from typing import Any

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.responses import ApiError, respond
from tb_perfadvisor.plugin.results import VIEWS
from tb_perfadvisor.plugin.routes.parameters import attachment
from tb_perfadvisor.plugin.sources import Sources

# The content type and file extension of each format.
_EXPORTS = {
    "json": ("application/json", "json"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "html": ("text/html", "html"),
    "sarif": ("application/json", "sarif"),
    "text": ("text/plain", "txt"),
}


def export(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """The report as a file in some format."""
    from tb_perfadvisor.report import FORMATS
    from tb_perfadvisor.report.formats.render import render
    from tb_perfadvisor.report.timeline.embedded import make_timelines

    name = request.args.get("format", "json")
    if name not in FORMATS:
        names = ", ".join(sorted(FORMATS))
        raise ApiError(404, f"there is no format {name!r}.", hint=f"Formats: {names}.")
    report, views = sources.report(entry), sources.results().read(entry, VIEWS)
    # Only the page shows views and timelines.
    if name == "html" and views is not None:
        decoded = msgspec.json.decode(views, type=dict[str, Any])
        if (window := sources.results().window(entry)) is not None:
            decoded["timelines"] = make_timelines(report.findings, window)
        report = msgspec.structs.replace(report, views=decoded)
    text = render(report, name)
    content_type, extension = _EXPORTS.get(name, ("text/plain", "txt"))
    headers = [attachment(entry, f".{extension}")]
    return respond(request, text, content_type=content_type, headers=headers)
