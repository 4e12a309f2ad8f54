"""Event files as TensorBoard's writers make them, but with empty checksums."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2

Value = summary_pb2.Summary.Value


def framed(*payloads: bytes) -> bytes:
    """Records of some payloads."""
    return b"".join(struct.pack("<QI", len(data), 0) + data + bytes(4) for data in payloads)


def event(step: int, unix_s: float, *values: Value) -> bytes:
    """An event with a summary of values."""
    summary = summary_pb2.Summary(value=values)
    message = event_pb2.Event(wall_time=unix_s, step=step, summary=summary)
    return bytes(message.SerializeToString())


def write_scalar(directory: Path, tag: str, unix_s: Mapping[int, float]) -> None:
    """Write an event file with one tag, which has the value 1 at each step.

    Args:
        directory: The run.
        tag: The tag.
        unix_s: When each step was logged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    value = Value(tag=tag, simple_value=1.0)
    events = (event(step, second, value) for step, second in unix_s.items())
    (directory / "events.out.tfevents.1.host").write_bytes(framed(*events))
