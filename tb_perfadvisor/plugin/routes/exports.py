"""The report of a capture as a download, in each format."""

from __future__ import annotations

from typing import Any

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.plugin.answers import ApiError, answer
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.results import VIEWS
from tb_perfadvisor.plugin.routes.parameters import attachment
from tb_perfadvisor.plugin.sources import Sources

# Type and extension of the downloads, where they differ from plain text.
_EXPORTS = {
    "json": ("application/json", "json"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "html": ("text/html", "html"),
    "sarif": ("application/json", "sarif"),
    "text": ("text/plain", "txt"),
}


def export(request: wrappers.Request, sources: Sources, entry: Entry) -> wrappers.Response:
    """The report as a download."""
    from tb_perfadvisor.report import FORMATS
    from tb_perfadvisor.report.formats.render import render
    from tb_perfadvisor.report.timeline.embedded import make_timelines

    form = request.args.get("format", "json")
    if form not in FORMATS:
        known = ", ".join(sorted(FORMATS))
        raise ApiError(404, f"there is no export as {form!r}.", hint=f"Formats: {known}.")
    report, views = sources.report(entry), sources.results().read(entry, VIEWS)
    if form == "html" and views is not None:
        own = msgspec.json.decode(views, type=dict[str, Any])
        if (window := sources.results().window(entry)) is not None:
            own["timelines"] = make_timelines(report.findings, window)
        report = msgspec.structs.replace(report, views=own)
    text = render(report, form)
    content_type, extension = _EXPORTS.get(form, ("text/plain", "txt"))
    headers = [attachment(entry, f".{extension}")]
    return answer(request, text, content_type=content_type, headers=headers)
