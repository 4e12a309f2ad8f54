"""Adds the lines of the user's code to the places of a report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

from msgspec.structs import replace

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.report.places import MAX_PLACES, RAN_AT_START
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.sources.repository import Repository

CONTEXT = 3
"""Lines shown before and after a place."""
_MAX_LINE = 200
_MAX_OTHERS = 5
_LINKS = {"vscode": "vscode://file/{root}/{path}:{line}"}
_FIELD = regex(r"\{(root|path|line)\}")
# For a function that was running when the recording began, PyTorch names the line of this call.
_RECORDER = regex(r"^\s*(?:\w*prof\w*|p)\.(?:step|start)\(\)")
# `encoder.layers.0 (Block)` of tb_perfadvisor.instrument, `Block_0` of PyTorch's profiler.
_MODULE = regex(r"^(?:\S+ \((?P<label>[A-Za-z_]\w*)\)|(?P<numbered>[A-Za-z_]\w*?)_\d+)$")


def with_sources(report: Report, repository: Repository, link: str | None = None) -> Report:
    """A report whose places have the lines of code around them.

    `link` is the pattern of links: a URL with `{path}` and `{line}`, and `{root}` for the absolute
    path of the repository; or `vscode`. None makes no links.
    """
    pattern = _pattern(link)
    return replace(
        report,
        findings=[
            replace(finding, places=places_in(finding, repository, pattern))
            for finding in report.findings
        ],
    )


def places_in(
    finding: model.FindingInfo, repository: Repository, pattern: str | None = None
) -> list[model.Place]:
    """The places of a finding, with their lines of code where these are found.

    If the profile names no line of code, the classes of the modules that it names are places.
    """
    places = finding.places or list(_classes(finding, repository))[:MAX_PLACES]
    return [replace(place, source=source_of(place, repository, pattern)) for place in places]


def source_of(
    place: model.Place, repository: Repository, pattern: str | None = None
) -> model.SourceExcerpt | None:
    """The lines around a place; None if the repository has no such file."""
    candidates = repository.candidates(place.file)
    if not candidates:
        return None
    if len(candidates) > 1:
        defining = [path for path in candidates if _has(repository, path, place)]
        if len(defining) != 1:
            return model.SourceExcerpt(
                path=None,
                first_line=None,
                lines=[],
                link=None,
                candidates=candidates[:_MAX_OTHERS],
                note=f"{len(candidates)} files match",
            )
        candidates = defining
    (path,) = candidates
    lines = (repository.text(path) or "").splitlines()
    if not 1 <= place.line <= len(lines):
        return model.SourceExcerpt(
            path=path,
            first_line=None,
            lines=[],
            link=None,
            candidates=[],
            note=f"the file has {len(lines)} lines; it differs from the one that was recorded",
        )
    first = max(place.line - CONTEXT, 1)
    last = min(place.line + CONTEXT, len(lines))
    # Blank lines at the ends say nothing.
    while first < place.line and not lines[first - 1].strip():
        first += 1
    while last > place.line and not lines[last - 1].strip():
        last -= 1
    shown = lines[first - 1 : last]
    return model.SourceExcerpt(
        path=path,
        first_line=first,
        lines=[line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…" for line in shown],
        link=None if pattern is None else _link(pattern, repository, path, place.line),
        candidates=[],
        note=_note(repository, path, place, lines[place.line - 1]),
    )


def _note(repository: Repository, path: str, place: model.Place, line: str) -> str:
    """What a reader should know of the line; empty for nothing."""
    if not _has(repository, path, place):
        return f"no function {place.function} there"
    return RAN_AT_START if _RECORDER.match(line) else ""


def _has(repository: Repository, path: str, place: model.Place) -> bool:
    """Whether a file may contain a place: the line exists, after the head of its function."""
    lines = (repository.text(path) or "").splitlines()
    if not 1 <= place.line <= len(lines):
        return False
    if not place.function.isidentifier():  # `<module>`, `<lambda>`, or unknown
        return True
    head = re.compile(rf"\b(?:def|class)\s+{re.escape(place.function)}\b")
    return any(head.search(line) for line in lines[: place.line + 1])


def _classes(finding: model.FindingInfo, repository: Repository) -> Iterator[model.Place]:
    seen = set()
    for item in finding.evidence:
        if not isinstance(item, model.TableEvidence):
            continue
        columns = [at for at, column in enumerate(item.columns) if column.key == "module"]
        for row in item.rows:
            for cell in (row[at] for at in columns):
                found = _MODULE.match(cell) if isinstance(cell, str) else None
                name = (found["label"] or found["numbered"]) if found else None
                if name is None or name in seen:
                    continue
                seen.add(name)
                definitions = repository.classes(name)
                if len(definitions) == 1:
                    ((path, line),) = definitions
                    yield model.Place(file=path, line=line, function=name)


def _pattern(link: str | None) -> str | None:
    if link is None:
        return None
    pattern = _LINKS.get(link, link)
    scheme = pattern.partition("://")[0].lower()
    if scheme in ("javascript", "data", "") or "://" not in pattern:
        raise UsageError(f"{link!r} is no URL.", hint="Name one, or `vscode`.")
    if not {"path", "line"} <= set(_FIELD.findall(pattern)):
        raise UsageError(f"{link!r} lacks {{path}} or {{line}}.")
    return pattern


def _link(pattern: str, repository: Repository, path: str, line: int) -> str:
    values = {
        "root": quote(repository.root.resolve().as_posix().lstrip("/")),
        "path": quote(path),
        "line": str(line),
    }
    return _FIELD.sub(lambda field: values[field[1]], pattern)
