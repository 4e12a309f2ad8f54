"""Counts the lines that a call runs: a measure of work that no load of the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object], within: str = "tb_perfadvisor") -> int:
    """How many lines of a package a call runs, each as often as it is run.

    Operations on whole columns count once, however long the columns are.
    """
    count = 0
    folder = f"/{within}/"

    def trace_lines(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace_lines

    def trace_calls(frame: FrameType, event: str, argument: Any) -> Any:
        return trace_lines if folder in frame.f_code.co_filename.replace("\\", "/") else None

    before = sys.gettrace()
    sys.settrace(trace_calls)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
