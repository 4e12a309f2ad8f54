"""From evidence by reference to rows that can be shown, capped and saying so."""

from __future__ import annotations

import math
import re

import numpy as np

from tb_perfadvisor.report import model
from tb_perfadvisor.rules import evidence as source
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace

# `train.py(12): step` as PyTorch's profiler writes frames, `$train.py:12 step` as XLA's does.
_FRAME = re.compile(
    r"^\$?(?P<file>(?:[A-Za-z]:)?[^(:]*\.py)[(:](?P<line>\d+)\)?:? (?P<function>\S.*)$"
)
_FRAMEWORK_FILE = re.compile(
    r"(^|/)(torch|tensorflow|keras|jax|jaxlib|flax|numpy)/|(site|dist)-packages/|^<frozen"
    r"|(^|/)(threading|contextlib|runpy|functools)\.py$|(^|/)(api|pjit|profiler|array|dispatch|ufunc_api|core|traceback_util|pxla)\.py$"
)

MAX_EVENTS = 20
MAX_ROWS = 30
MAX_POINTS = 500


def encode(evidence: source.Evidence, workers: list[Signals]) -> model.Evidence:
    """Encode one piece of evidence.

    Args:
        evidence: As a rule gave it.
        workers: Signals of every worker, in order of the run's traces.
    """
    if isinstance(evidence, source.Events):
        signals = workers[evidence.worker]
        return model.EventsEvidence(
            title=evidence.title,
            rows=[_event(signals, evidence.worker, row) for row in evidence.rows[:MAX_EVENTS]],
            truncated=max(len(evidence.rows) - MAX_EVENTS, 0),
        )
    if isinstance(evidence, source.Span):
        return model.SpanEvidence(
            title=evidence.title,
            worker=evidence.worker,
            start_ns=int(evidence.start_ns),
            end_ns=int(evidence.end_ns),
            track=evidence.track,
            note=evidence.note,
        )
    if isinstance(evidence, source.Table):
        return model.TableEvidence(
            title=evidence.title,
            columns=[
                model.TableColumn(key=column.key, label=column.label, unit=column.unit)
                for column in evidence.columns
            ],
            rows=[[_cell(cell) for cell in row] for row in evidence.rows[:MAX_ROWS]],
            truncated=max(len(evidence.rows) - MAX_ROWS, 0),
        )
    points = evidence.points
    if len(points) > MAX_POINTS:
        picks = np.linspace(0, len(points) - 1, MAX_POINTS).astype(int).tolist()
        points = tuple(points[i] for i in picks)
    return model.SeriesEvidence(
        title=evidence.title, x_unit=evidence.x_unit, unit=evidence.unit, points=list(points)
    )


def _event(signals: Signals, worker: int, row: int) -> model.EvidenceRow:
    trace, steps = signals.trace, signals.steps
    start = int(trace.events.start_ns[row])
    step = int(np.searchsorted(steps.start_ns, start, side="right")) - 1
    inside = step >= 0 and start < steps.end_ns[step]
    return model.EvidenceRow(
        worker=worker,
        start_ns=start,
        duration_ns=int(trace.events.duration_ns[row]),
        track=trace.text(int(trace.tracks.label[trace.events.track[row]])),
        name=trace.name(int(row)),
        step=int(steps.number[step]) if inside else None,
        source=_source_line(signals, trace, int(row)),
    )


def _source_line(signals: Signals, trace: Trace, row: int) -> str | None:
    """Where in the user's code an event comes from, as far as the profile tells."""
    launch = int(trace.events.launched_by[row])
    host_row = launch if launch >= 0 else row
    operator = int(signals.launching_operator[host_row])
    slot = int(np.searchsorted(trace.operators.row, operator))
    if slot < len(trace.operators.row) and trace.operators.row[slot] == operator:
        frame = trace.text(int(trace.operators.frame[slot]))
        if frame:
            return frame
    slot = int(np.searchsorted(trace.hlo_events.row, row))
    if slot < len(trace.hlo_events.row) and trace.hlo_events.row[slot] == row:
        line = trace.text(int(trace.hlo.source_line[trace.hlo_events.op[slot]]))
        return line or None
    return _user_frame(trace, host_row)


def _user_frame(trace: Trace, row: int) -> str | None:
    """The innermost Python frame around an event that is not the framework's own.

    Of its file the last two parts of the path: no directory of the recording machine leaves it.
    """
    at = int(trace.events.parent[row])
    while at >= 0:
        if trace.events.kind[at] == EventKind.PYTHON:
            frame = _FRAME.match(trace.name(at))
            if frame is not None and not _FRAMEWORK_FILE.search(frame["file"]):
                file = "/".join(frame["file"].replace("\\", "/").split("/")[-2:])
                return f"{file}:{frame['line']} {frame['function']}"
        at = int(trace.events.parent[at])
    return None


def _cell(cell: source.Cell) -> model.Cell:
    """A cell as JSON has it: numpy scalars unwrapped, what is not finite unknown."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell
