"""Times come from a light recording, and shapes and lines from a rich one of the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tb_perfadvisor import analyze
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.kineto_files import event, to_bytes

LIGHT, RICH = "lm/step_00000020", "lm/step_00000031_rich"
NAME = "rank0.1795226000001.pt.trace.json"
SHAPES = {"Input Dims": [[8, 128], [128, 64]], "Input type": ["float", "float"]}


def step(number: int, at: int, dur: int) -> dict[str, Any]:
    return event(f"ProfilerStep#{number}", at, dur, cat="user_annotation")


def light(*names: str) -> bytes:
    """Three steps of 10 microseconds with these operators, without shapes."""
    events = []
    for number in range(3):
        events.append(step(20 + number, 10 * number, 10))
        events += [event(name, 10 * number + 3 * place, 2) for place, name in enumerate(names)]
    return to_bytes(events, record_shapes=0, with_stack=0)


def rich(*names: str) -> bytes:
    """Three steps of 40 microseconds; each operator has shapes, and a line of the user."""
    events = []
    for number in range(3):
        events.append(step(31 + number, 40 * number, 40))
        for place, name in enumerate(names):
            at = 40 * number + 12 * place
            frame = {"Python id": 1 + 10 * number + place}
            user = f"train.py({12 + place}): forward"
            events.append(event(user, at, 11, cat="python_function", args=frame))
            events.append(event(name, at + 1, 9, args=SHAPES))
    return to_bytes(events, record_shapes=1, with_stack=1)


def loaded(root: Path, files: dict[str, bytes]) -> list[Trace]:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    listing = discover(root)
    return [load_capture(listing, capture).traces[0] for capture in listing.captures]


def operators(trace: Trace) -> list[tuple[str, str, str]]:
    """Name, shapes and line of each operator that has attributes."""
    table = trace.operators
    return [
        (trace.name(row), trace.text(shapes), trace.text(frame))
        for row, shapes, frame in zip(
            table.row.tolist(), table.shapes.tolist(), table.frame.tolist(), strict=True
        )
    ]


def test_times_of_the_light_one_and_names_of_the_rich_one(tmp_path: Path) -> None:
    names = ("aten::mm", "aten::relu")
    (trace,) = loaded(tmp_path, {f"{LIGHT}/{NAME}": light(*names), f"{RICH}/{NAME}": rich(*names)})
    assert trace.source.named_by == f"{RICH}/{NAME}"
    rows = trace.rows(EventKind.OPERATOR)
    assert trace.events.duration_ns[rows].tolist() == [2_000] * 6
    found = operators(trace)
    assert [(name, line) for name, _, line in found] == [
        ("aten::mm", "train.py:12 forward"),
        ("aten::relu", "train.py:13 forward"),
    ] * 3
    assert {shapes for _, shapes, _ in found} == {"[[8,128],[128,64]]"}


def test_other_operators_get_no_names(tmp_path: Path) -> None:
    files = {
        f"{LIGHT}/{NAME}": light("aten::mm", "aten::relu"),
        f"{RICH}/{NAME}": rich("aten::mm", "aten::gelu"),
    }
    (trace,) = loaded(tmp_path, files)
    assert trace.source.named_by == ""
    assert {line for _, _, line in operators(trace)} <= {""}


def test_a_rich_one_alone_is_a_recording(tmp_path: Path) -> None:
    (trace,) = loaded(tmp_path, {f"{RICH}/{NAME}": rich("aten::mm")})
    assert trace.source.path == f"{RICH}/{NAME}"


def test_a_damaged_rich_one_is_a_note(tmp_path: Path) -> None:
    files = {f"{LIGHT}/{NAME}": light("aten::mm"), f"{RICH}/{NAME}": rich("aten::mm")[:200]}
    (trace,) = loaded(tmp_path, files)
    assert trace.source.named_by == ""
    assert len(trace.rows(EventKind.OPERATOR)) == 3


def test_the_report_asks_for_nothing_that_is_there(tmp_path: Path) -> None:
    names = ("aten::mm", "aten::relu")
    loaded(tmp_path, {f"{LIGHT}/{NAME}": light(*names), f"{RICH}/{NAME}": rich(*names)})
    facts = tmp_path / LIGHT / f"{NAME.removesuffix('.pt.trace.json')}.perfadvisor.json"
    facts.write_text('{"recording": {"by": "run", "is_rich": false}}')
    report = analyze(tmp_path)
    assert {"missing-shapes", "missing-stacks", "missing-memory"}.isdisjoint(
        {note.id for note in report.notes}
    )
    text = msgspec.json.encode(report).decode()
    assert "analyze that one, or let the program run" in text
    assert not [option for option in ("with_stack=True", "profile_memory=True") if option in text]
