"""Comparisons as text of some format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.comparison.markdown import render_markdown
from tb_perfadvisor.report.comparison.model import Comparison, ComparisonDocument
from tb_perfadvisor.report.model import SCHEMA_VERSION, Generator
from tb_perfadvisor.version import VERSION


def comparison_document(
    comparisons: Sequence[Comparison], notes: Sequence[str] = ()
) -> ComparisonDocument:
    """Comparisons with what made them, as `compare --format json` prints them."""
    return ComparisonDocument(
        schema_version=SCHEMA_VERSION,
        generator=Generator(name="tb_perfadvisor", version=VERSION),
        comparisons=list(comparisons),
        notes=list(notes),
    )


def _json(content: ComparisonDocument) -> str:
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()


def _text(content: ComparisonDocument) -> str:
    from tb_perfadvisor.report.comparison.text import render_text  # rich takes its time

    return render_text(content)


FORMATS: Mapping[str, Callable[[ComparisonDocument], str]] = MappingProxyType(
    {"text": _text, "json": _json, "markdown": render_markdown}
)


def render_comparison(content: ComparisonDocument, format: str) -> str:
    """Comparisons in a format of `FORMATS`.

    Raises:
        UsageError: When the format is unknown.
    """
    if format not in FORMATS:
        raise UsageError(
            f"there is no format {format!r}.", hint=f"Formats: {', '.join(sorted(FORMATS))}."
        )
    return FORMATS[format](content)
