"""Builds small Kineto files for tests."""

from __future__ import annotations

import io
import json
from typing import Any

from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.trace import Source, Trace

HOST = {"pid": 10, "tid": 10}


def event(name: str, ts: Any, dur: Any, cat: str = "cpu_op", **rest: Any) -> dict[str, Any]:
    """A complete event on the main thread; keys of `args` go into `args`."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **HOST, **rest}


def kernel(name: str, ts: Any, dur: Any, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    """A complete event on stream 7 of device 0."""
    args = {"device": 0, "stream": 7, **args}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7} | {
        "args": args
    }


def to_bytes(events: list[Any], **header: Any) -> bytes:
    """A file with a header of a recent version."""
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": events}).encode()


def read(data: bytes, path: str = "run/worker0.pt.trace.json") -> Trace:
    """Read a file as from a log directory."""
    return next(read_kineto(io.BytesIO(data), Source(path=path, format="")))


def named(trace: Trace, name: str) -> int:
    """The row of the only event with a name."""
    (row,) = [row for row in range(len(trace.events)) if trace.name(row) == name]
    return row
