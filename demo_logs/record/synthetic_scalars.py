"""The scalars of the training runs that the synthetic GPU profiles belong to."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from demo_logs.record.synthetic_clock import ORIGIN_UNIX_NS

STEPS = 6_000
LOGGED_EVERY = 10
EVALUATED_EVERY = 1_000
PROFILED_AFTER = 3_505
"""Between two logged steps, because profilers start at any step."""
EVALUATION_S = 20.0
STARTING_S = 45.0
"""Compiling and filling caches, before the first logged steps end."""
_WIGGLE = 0.01


def training_scalars(step_ns: int) -> Iterator[tuple[int, float, dict[str, float]]]:
    """What a run logged around a synthetic profile: step, Unix time (s), and values by tag.

    It started slowly, and paused for an evaluation every 1,000 steps.

    Args:
        step_ns: Duration of a step.
    """
    points = list(_since_start(step_ns / 1e9))
    profiled_s = next(seconds for step, seconds, _ in points if step == PROFILED_AFTER - 5)
    start_s = ORIGIN_UNIX_NS / 1e9 - profiled_s - 5 * step_ns / 1e9
    for step, seconds, values in points:
        yield step, start_s + seconds, values


def event_file(points: list[tuple[int, float, dict[str, float]]]) -> bytes:
    """The points as an event file that begins with the first of them."""
    content = io.BytesIO()
    writer = RecordWriter(content)
    first = event_pb2.Event(wall_time=points[0][1], file_version="brain.Event:2")
    writer.write(first.SerializeToString())
    for step, unix_s, values in points:
        logged = [
            summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
        ]
        summary = summary_pb2.Summary(value=logged)
        event = event_pb2.Event(wall_time=unix_s, step=step, summary=summary)
        writer.write(event.SerializeToString())
    return content.getvalue()


def _since_start(step_s: float) -> Iterator[tuple[int, float, dict[str, float]]]:
    seconds = 0.0
    for step in range(0, STEPS + 1, LOGGED_EVERY):
        if step:
            seconds += LOGGED_EVERY * step_s * (1 + _WIGGLE * math.sin(step))
        if step == LOGGED_EVERY:
            seconds += STARTING_S
        wave = math.sin(step / 7) / 50
        loss = 2.0 + 8.0 * math.exp(-step / 1_500) + wave
        yield step, seconds, {"train/loss": loss, "train/learning_rate": 3e-4}
        if step and step % EVALUATED_EVERY == 0:
            seconds += EVALUATION_S
            yield step, seconds, {"eval/loss": loss + 0.1}
