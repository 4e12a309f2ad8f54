"""Event files that are large in one dimension."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2

from scaled_inputs.dimension import Write

_START_UNIX_S = 1_767_225_600.0


def _event(step: int, tag: str, unix_s: float) -> bytes:
    value = summary_pb2.Summary.Value(tag=tag, simple_value=1.0)
    summary = summary_pb2.Summary(value=[value])
    event = event_pb2.Event(wall_time=_START_UNIX_S + unix_s, step=step, summary=summary)
    return bytes(event.SerializeToString())


def _write(events: Iterable[bytes], run: Path, number: int = 0) -> None:
    run.mkdir(parents=True, exist_ok=True)
    with (run / f"events.out.tfevents.{number:010}.host").open("wb") as file:
        for data in events:
            file.write(struct.pack("<QI", len(data), 0) + data + bytes(4))


def event_points(count: int, folder: Path) -> None:
    """Points of one tag."""
    _write((_event(at, "loss", at) for at in range(count)), folder)


def event_tags(count: int, folder: Path) -> None:
    """Tags with two points each."""
    _write((_event(at % 2, f"layer_{at // 2}/norm", at % 2) for at in range(2 * count)), folder)


def event_files(count: int, folder: Path) -> None:
    """Event files of one run, with two points each."""
    for number in range(count):
        points = (2 * number, 2 * number + 1)
        _write((_event(at, "loss", at) for at in points), folder, number)


def event_runs(count: int, folder: Path) -> None:
    """Runs with two points each."""
    for number in range(count):
        _write((_event(at, "loss", at) for at in range(2)), folder / f"run_{number}")


def event_pauses(count: int, folder: Path) -> None:
    """Points, with an evaluation and a pause after each tenth."""
    _write(
        (
            _event(at, "loss" if at % 10 else "eval/loss", at + 30 * (at // 10))
            for at in range(count)
        ),
        folder,
    )


def event_restarts(count: int, folder: Path) -> None:
    """Points; after each tenth, the run goes back by five steps."""
    _write((_event(at - 5 * (at // 10), "loss", at) for at in range(count)), folder)


LARGEST: dict[Write, int] = {
    event_points: 10**6,
    event_tags: 10**5,
    event_files: 10**4,
    event_runs: 10**4,
    event_pauses: 10**6,
    event_restarts: 10**6,
}
