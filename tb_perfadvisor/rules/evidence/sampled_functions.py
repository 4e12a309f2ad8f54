"""The functions in which samples found the host while the device idled."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.evidence.tables import costliest_groups
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.trace.intervals import Intervals, contains

_MIN_SAMPLES = 5
"""Fewer say little: if all of five are in one function, it has most of the time with 97 %."""


def sampled_functions(signals: Signals, idle: Intervals) -> tuple[Table, ...]:
    """Where the thread of the steps was during some idle time; no table without enough samples.

    Args:
        signals: The worker's facts.
        idle: Intervals in which the device idles.
    """
    trace, samples = signals.trace, signals.trace.samples
    inside = np.flatnonzero((samples.track == signals.step_track) & contains(idle, samples.at_ns))
    if len(inside) < _MIN_SAMPLES:
        return ()
    names = np.column_stack((samples.function[inside], samples.library[inside])).astype(np.int64)
    return (
        Table(
            "Functions in which the host was sampled meanwhile",
            (
                Column("name", "Function"),
                Column("library", "Library"),
                Column("count", "Samples", "count"),
                Column("share", "Share of the samples", "share"),
            ),
            tuple(
                (
                    trace.text(int(names[places[0], 0])) or "(no name)",
                    trace.text(int(names[places[0], 1])).rpartition("/")[2],
                    total,
                    total / len(inside),
                )
                for places, total in costliest_groups(names, np.ones(len(inside), np.int64))
            ),
        ),
    )
