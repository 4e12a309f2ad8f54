"""Renders comparisons in any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from tb_perfadvisor.contract.model import SCHEMA_VERSION, Comparison, ComparisonDocument, Generator
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.plain_text import printable_json
from tb_perfadvisor.report.formats.comparison.wording import render_markdown
from tb_perfadvisor.version import VERSION


def comparison_document(
    comparisons: Sequence[Comparison], notes: Sequence[str] = ()
) -> ComparisonDocument:
    """The document that `compare --format json` prints."""
    return ComparisonDocument(
        schema_version=SCHEMA_VERSION,
        generator=Generator(name="tb_perfadvisor", version=VERSION),
        comparisons=list(comparisons),
        notes=list(notes),
    )


def _json(content: ComparisonDocument) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())


def _text(content: ComparisonDocument) -> str:
    from tb_perfadvisor.report.formats.comparison.text import render_text  # importing rich is slow

    return render_text(content)


FORMATS: Mapping[str, Callable[[ComparisonDocument], str]] = MappingProxyType(
    {"text": _text, "json": _json, "markdown": render_markdown}
)


def render_comparison(content: ComparisonDocument, format: str) -> str:
    """Render comparisons in a format of `FORMATS`."""
    if format not in FORMATS:
        raise UsageError(
            f"unknown format {format!r}.", hint=f"Formats: {', '.join(sorted(FORMATS))}."
        )
    return FORMATS[format](content)
