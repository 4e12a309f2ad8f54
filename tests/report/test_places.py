"""The lines of code that evidence names."""

from __future__ import annotations

import pytest

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.places import parse_place, places_of


def event(name: str, source: str | None) -> model.EvidenceRow:
    return model.EvidenceRow(
        worker=0, start_ns=0, duration_ns=1, track="main", name=name, step=None, source=source
    )


@pytest.mark.parametrize(
    ("text", "file", "line", "function"),
    [
        ("train.py:12 step", "train.py", 12, "step"),
        ("/home/me/models/net.py:57", "models/net.py", 57, ""),
        ("C:\\work\\net.py(57): forward", "work/net.py", 57, "forward"),
        ("$train.py:12 step", "train.py", 12, "step"),
        ("lib/losses.py:8 <lambda>", "lib/losses.py", 8, "<lambda>"),
    ],
)
def test_a_line_is_recognized(text: str, file: str, line: int, function: str) -> None:
    assert parse_place(text) == model.Place(file=file, line=line, function=function)


@pytest.mark.parametrize("text", ["aten::mm", "", "0:1", "12:30:05", "nn.Module: head", "a.py"])
def test_other_texts_name_no_line(text: str) -> None:
    assert parse_place(text) is None


def test_places_follow_the_evidence_and_are_listed_once() -> None:
    events = model.EventsEvidence(
        title="",
        rows=[event("aten::item", "train.py:9 log"), event("eval.py(3): run", None)],
        truncated=0,
    )
    table = model.TableEvidence(
        title="",
        columns=[model.TableColumn(key="source", label="Source line", unit="")],
        rows=[["train.py:9 log"], ["train.py:20 step"], [None]],
        truncated=0,
    )
    first = places_of("Draw less often: figures take 9 % of the run (a/eval.py:7)", [events, table])
    assert [(place.file, place.line) for place in first[:2]] == [("a/eval.py", 7), ("train.py", 9)]
    (named, *_) = places_of("Replace a loop: batch (train.py:20)", [events, table])
    assert (named.line, named.function) == (20, "step")
    assert [(place.file, place.line) for place in places_of("", [events, table])] == [
        ("train.py", 9),
        ("eval.py", 3),
        ("train.py", 20),
    ]
