"""Calls of the input pipeline that open, look up or close files."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np

from tb_perfadvisor.signals.input.input_stages import Stage, input_stages
from tb_perfadvisor.signals.input.tfdata import file_reads, tfdata
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32


class FileCalls(NamedTuple):
    """Calls inside fetches."""

    rows: Int32
    """Shape (n,)."""
    opened: int
    """Files that they open in the used steps."""


def file_calls(signals: Signals) -> FileCalls:
    """Calls inside fetches that open, look up or close files."""
    trace = signals.trace
    if len(tfdata(signals)):
        rows = file_reads(signals)
        return FileCalls(rows, _in_steps(signals, rows))
    rows, _ = input_stages(signals).rows_of(Stage.READING)
    rows = rows[trace.events.kind[rows] == EventKind.PYTHON]
    names, inverse = unique_inverse(trace.events.name[rows])
    texts = [trace.strings[name] for name in names.tolist()]
    is_open = np.array([bool(_open_calls().match(text)) for text in texts], dtype=bool)[inverse]
    is_companion = np.array([bool(_companion_calls().match(text)) for text in texts], dtype=bool)[
        inverse
    ]
    is_file_call = is_open | is_companion
    return FileCalls(rows[is_file_call], _in_steps(signals, rows[is_open]))


@cache
def _open_calls() -> re.Pattern[str]:
    """Calls into CPython's io and os modules, as the profiler names them."""
    return re.compile(r"^<built-in function (?P<open>open)>")


@cache
def _companion_calls() -> re.Pattern[str]:
    """Calls that accompany each file: looking it up and closing it."""
    return re.compile(
        r"^<built-in function (?:stat|lstat|getxattr)>"
        r"|^<built-in method (?:close|__exit__) of (?:_io|io)\."
    )


def _in_steps(signals: Signals, rows: Int32) -> int:
    """How many of some calls belong to used steps."""
    return int((signals.steps.owner[rows] >= 0).sum())
