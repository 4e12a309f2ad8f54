"""Renders reports in any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.plain_text import printable_json
from tb_perfadvisor.version import VERSION

_MOST_REJECTED = 1_000
"""A log directory may have a hundred thousand."""


def document(
    reports: Sequence[model.Report], rejected: Sequence[model.Rejected] = ()
) -> model.Document:
    """The document that `analyze --format json` prints: reports and the version that made them."""
    return model.Document(
        schema_version=model.SCHEMA_VERSION,
        generator=model.Generator(name="tb_perfadvisor", version=VERSION),
        reports=list(reports),
        rejected=list(rejected[:_MOST_REJECTED]),
        rejected_truncated=max(len(rejected) - _MOST_REJECTED, 0),
    )


def _json(content: model.Document) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())


def _text(content: model.Document) -> str:
    # Importing rich takes as long as analyzing a small profile.
    from tb_perfadvisor.report.formats.text import render_text

    return render_text(content)


def _markdown(content: model.Document) -> str:
    from tb_perfadvisor.report.formats.markdown import render_markdown

    return render_markdown(content)


def _html(content: model.Document) -> str:
    from tb_perfadvisor.report.formats.html import render_html  # imports all rules

    return render_html(content)


def _brief(content: model.Document) -> str:
    from tb_perfadvisor.report.formats.brief import render_brief

    return render_brief(content)


def _sarif(content: model.Document) -> str:
    from tb_perfadvisor.report.formats.sarif import render_sarif

    return render_sarif(content)


FORMATS: Mapping[str, Callable[[model.Document], str]] = MappingProxyType(
    {
        "text": _text,
        "json": _json,
        "markdown": _markdown,
        "html": _html,
        "sarif": _sarif,
        "brief": _brief,
    }
)


def render(content: model.Document | model.Report, format: str) -> str:
    """Render a document, or a single report, in a format of `FORMATS`."""
    if format not in FORMATS:
        raise UsageError(
            f"unknown format {format!r}.", hint=f"Formats: {', '.join(sorted(FORMATS))}."
        )
    if isinstance(content, model.Report):
        content = document([content])
    return FORMATS[format](content)
