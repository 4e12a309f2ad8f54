"""What tests keep to, so that they pass on a busy machine, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Programs as users write them; the benchmark of recordings says how long each takes.
MAY_MEASURE = ("frameworks/programs/", "frameworks/recorded_programs.py", "fuzz/__main__.py")
CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time")


def measured(source: str) -> Iterator[int]:
    """Lines that subtract from a clock: how long something took on a machine that may be busy."""
    if not any(clock in source for clock in CLOCKS):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            call = node.left.func if isinstance(node.left, ast.Call) else None
            name = call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")
            if name.removesuffix("_ns") in CLOCKS:
                yield node.lineno


def test_no_test_measures_time() -> None:
    """Say what must not happen by a gate, a count or a limit that is far away instead."""
    places = [
        f"{path.relative_to(TESTS).as_posix()}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in measured(path.read_text(encoding="utf-8"))
    ]
    assert [place for place in places if not place.startswith(MAY_MEASURE)] == []


def test_what_counts_as_measuring() -> None:
    assert list(measured("a = time.monotonic()\nassert time.monotonic() - a < 3")) == [2]
    assert list(measured("took = perf_counter_ns() - a")) == [1]
    assert list(measured("assert time.monotonic() < a + 60\nold = time.time() - 3600")) == []
