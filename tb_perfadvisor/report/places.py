"""The lines of the user's code that a finding is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tb_perfadvisor.contract import model
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.origins import user_line
from tb_perfadvisor.trace.names import is_generated

MAX_PLACES = 5
RAN_AT_START = "the line that ran when the recording began"
"""The note of a place that names the recorder's own call rather than the code that costs time."""
_LINE = regex(r"^(?P<file>[^\s:][^:\n]*\.\w+):(?P<line>\d{1,9})(?: (?P<function>\S.*))?$")
"""`models/net.py:57 forward`, as evidence names a source line."""
_NAMED = regex(r"(?<![^\s():])[^\s():]+\.py:\d+")
"""A place within a sentence, such as a title."""


def parse_place(text: str) -> model.Place | None:
    """The place that a text names: `models/net.py:57 forward`; None if it names none.

    Of the path, only the last two parts are kept: directories of another machine say nothing here.
    """
    found = _LINE.match(user_line(text) or text)
    if found is None or is_generated(found["file"]):
        return None
    file = "/".join(found["file"].replace("\\", "/").split("/")[-2:])
    return model.Place(file=file, line=int(found["line"]), function=found["function"] or "")


def places_of(title: str, evidence: Sequence[model.Evidence]) -> list[model.Place]:
    """What a title names, then what evidence names, the costliest first; at most `MAX_PLACES`."""
    places: dict[tuple[str, int], model.Place] = {}
    for text in (*_NAMED.findall(title), *_texts(evidence)):
        place = parse_place(text)
        if place is not None:
            known = places.setdefault((place.file, place.line), place)
            if place.function and not known.function:
                places[place.file, place.line] = place
    return list(places.values())[:MAX_PLACES]


def costliest_place(finding: model.FindingInfo) -> model.Place | None:
    """The first place that is not merely a call of the profiler; None for none."""
    for place in finding.places:
        if place.source is None or place.source.note != RAN_AT_START:
            return place
    return None


def _texts(evidence: Iterable[model.Evidence]) -> Iterator[str]:
    """The texts of evidence that may name a place: rows are the costliest first."""
    for item in evidence:
        if isinstance(item, model.EventsEvidence):
            for row in item.rows:
                yield row.source or row.name
        elif isinstance(item, model.TableEvidence):
            for cells in item.rows:
                yield from (cell for cell in cells if isinstance(cell, str))
