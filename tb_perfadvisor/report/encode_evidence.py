"""Turns evidence, which refers to events of a trace, into rows to show; long lists are capped."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tb_perfadvisor.contract import model
from tb_perfadvisor.rules import finding as source
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.call_tree import source_line

MAX_EVENTS = 20
MAX_ROWS = 30
MAX_POINTS = 500


def encode_evidence(evidence: source.Evidence, workers: Mapping[int, Signals]) -> model.Evidence:
    """Encode one piece of evidence.

    `workers` are in the order of the run.
    """
    if isinstance(evidence, source.Events):
        signals = workers[evidence.worker]
        return model.EventsEvidence(
            title=evidence.title,
            rows=[
                _event(signals, evidence, place)
                for place in range(min(len(evidence.rows), MAX_EVENTS))
            ],
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
        # On the CPU, there is no device that could idle.
        on_cpu = all(signals.device.is_host_only for signals in workers.values())
        return model.TableEvidence(
            title=evidence.title,
            columns=[
                model.TableColumn(
                    key=column.key,
                    label=column.label.replace("Device idle", "Idle") if on_cpu else column.label,
                    unit=column.unit,
                )
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


def _event(signals: Signals, evidence: source.Events, place: int) -> model.EvidenceRow:
    row = int(evidence.rows[place])
    trace, steps = signals.trace, signals.steps
    start = int(trace.events.start_ns[row])
    step = int(np.searchsorted(steps.start_ns, start, side="right")) - 1
    inside = step >= 0 and start < steps.end_ns[step]
    return model.EvidenceRow(
        worker=evidence.worker,
        start_ns=start,
        duration_ns=int(trace.events.duration_ns[row]),
        cost_ns=int(evidence.cost_ns[place]) if evidence.cost_ns is not None else None,
        track=trace.text(int(trace.tracks.label[trace.events.track[row]])),
        name=trace.name(row),
        step=int(steps.number[step]) if inside else None,
        source=source_line(signals, row),
    )


def _cell(cell: source.Cell) -> model.Cell:
    """A cell as JSON has it: numpy scalars are unwrapped, NaN and infinity become None."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell
