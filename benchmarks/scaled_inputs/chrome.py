"""Exports of TensorBoard's trace viewer that are large in one dimension."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scaled_inputs.dimension import KERNEL, SESSION, Write


def _chrome(events: Iterable[dict[str, Any]], folder: Path) -> None:
    session = folder / SESSION
    session.mkdir(parents=True)
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with (session / "host.trace.json").open("w") as file:
        file.write('{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[')
        for event in events:
            file.write(encode(event) + ",")
        file.write("{}]}")


def _chrome_event(name: str, at: int, pid: int = 701, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": 10 * at, "dur": 9, "name": name}


def _chrome_name(what: str, name: str, pid: int = 701, tid: int = 1) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_name", "args": {"name": name}}


_CHROME_HOST = [_chrome_name("process", "/host:CPU"), _chrome_name("thread", "python")]


def chrome_events(count: int, folder: Path) -> None:
    """Events of a host thread, with names of their own."""
    _chrome([*_CHROME_HOST, *(_chrome_event(f"op {at}", at) for at in range(count))], folder)


def chrome_threads(count: int, folder: Path) -> None:
    """Threads with one event each."""
    names = (_chrome_name("thread", f"t{at}", tid=at + 2) for at in range(count))
    events = (_chrome_event("op", at, tid=at + 2) for at in range(count))
    _chrome([*_CHROME_HOST, *names, *events], folder)


def chrome_processes(count: int, folder: Path) -> None:
    """Devices with one event each."""
    names = (_chrome_name("process", f"/device:GPU:{at}", pid=at + 1) for at in range(count))
    lines = (_chrome_name("thread", "Stream #1(Compute)", pid=at + 1) for at in range(count))
    events = (_chrome_event(KERNEL, at, pid=at + 1) for at in range(count))
    _chrome([*names, *lines, *events], folder)


LARGEST: dict[Write, int] = {
    chrome_events: 10**6,
    chrome_threads: 10**5,
    chrome_processes: 4_000,  # more planes are refused
}
