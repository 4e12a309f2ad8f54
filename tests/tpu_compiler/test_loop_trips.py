"""Loops as libtpu 0.0.52 returns them for `while_loop` and `fori_loop`, with other bodies."""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from tb_perfadvisor.tpu_compiler.optimized_hlo import parse_module


def trips(start: str, condition: str, step: str) -> int | None:
    """How often a loop over a counter and a limit runs.

    Args:
        start: What enters as the counter: `constant(3)`, or `copy(%n)` of an argument.
        condition: The comparison of `%counter` with `%limit` or `%end`.
        step: What becomes of `%counter` in a trip: `add(%counter, %two)`.
    """
    module = parse_module(f"""\
HloModule jit_loop, is_scheduled=true

%condition (arg.1: (s32[], s32[])) -> pred[] {{
  %limit = s32[]{{:T(128)}} constant(43)
  %arg.1 = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) parameter(0)
  %counter = s32[]{{:T(128)}} get-tuple-element(%arg.1), index=0
  %end = s32[]{{:T(128)}} get-tuple-element(%arg.1), index=1
  ROOT %is_less = pred[]{{:T(512)}} compare({condition}
}}

%body (arg.2: (s32[], s32[])) -> (s32[], s32[]) {{
  %two = s32[]{{:T(128)}} constant(2)
  %back = s32[]{{:T(128)}} constant(-1)
  %arg.2 = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) parameter(0)
  %get-tuple-element.2 = s32[]{{:T(128)}} get-tuple-element(%arg.2), index=0
  %counter = s32[]{{:T(128)S(6)}} copy(%get-tuple-element.2)
  %end = s32[]{{:T(128)}} get-tuple-element(%arg.2), index=1
  %next = s32[]{{:T(128)}} {step}
  ROOT %tuple.2 = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) tuple(%next, %end)
}}

ENTRY %main (n: s32[]) -> (s32[], s32[]) {{
  %n = s32[]{{:T(128)}} parameter(0)
  %start = s32[]{{:T(128)}} {start}
  %tuple.1 = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) tuple(%start, %n)
  ROOT %while.1 = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) while(%tuple.1), condition=%condition, body=%body
}}
""")
    (loop,) = [m for m in module.computations["main"] if m.opcode == "while"]
    runs = {instruction.name: runs for instruction, runs in module.executed}
    assert runs["next"] == (loop.trips or 1)
    return loop.trips


@pytest.mark.parametrize(
    ("start", "condition", "step", "expected"),
    [
        # 3, 5, … 41 are less than 43: 20 trips.
        ("constant(3)", "%counter, %limit), direction=LT", "add(%counter, %two)", 20),
        ("constant(3)", "%limit, %counter), direction=GT", "add(%counter, %two)", 20),
        # 3, 5, … 43: one more.
        ("constant(3)", "%counter, %limit), direction=LE", "add(%counter, %two)", 21),
        ("constant(0)", "%counter, %limit), direction=NE", "subtract(%counter, %back)", 43),
        # Down from 60 to 44.
        ("constant(60)", "%counter, %limit), direction=GT", "add(%counter, %back)", 17),
        # A counter that comes from an outer loop most likely starts at 0.
        ("copy(%n)", "%counter, %limit), direction=LT", "add(%counter, %two)", 22),
        ("copy(%n)", "%counter, %limit), direction=GT", "add(%counter, %back)", None),
        # The limit is an argument.
        ("constant(0)", "%counter, %end), direction=LT", "add(%counter, %two)", None),
        # It never ends, or does not begin.
        ("constant(3)", "%counter, %limit), direction=LT", "add(%counter, %back)", None),
        ("constant(50)", "%counter, %limit), direction=LT", "add(%counter, %two)", None),
    ],
)
def test_trips_follow_from_start_step_and_limit(
    start: str, condition: str, step: str, expected: int | None
) -> None:
    assert trips(start, condition, step) == expected
