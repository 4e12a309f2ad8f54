"""Inputs of compiled code whose shapes change: a table and a clause."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals.core.operator_shapes import Shape
from tb_perfadvisor.signals.launch.compiled_regions import ChangingInput

_MOST_INPUTS, _MOST_SHAPES, _SHAPES_IN_SUMMARY = 20, 8, 3


def shapes_clause(inputs: Sequence[ChangingInput]) -> str:
    """The input with most shapes, as a clause."""
    if not inputs:
        return ""
    most = max(inputs, key=lambda changing: len(changing.shapes))
    first = ", ".join(_shape_text(shape) for shape in most.shapes[:_SHAPES_IN_SUMMARY])
    more = ", …" if len(most.shapes) > _SHAPES_IN_SUMMARY else ""
    return f"; an input comes in {len(most.shapes)} shapes ({first}{more})"


def _shape_text(shape: Shape) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def changing_inputs_table(inputs: Sequence[ChangingInput]) -> tuple[Table, ...]:
    """Inputs of torch.compile whose shapes change, if shapes were recorded."""
    if not inputs:
        return ()
    return (
        Table(
            "Inputs of compiled code whose shapes change",
            (
                Column("frame", "Compiled frame"),
                Column("position", "Input"),
                Column("count", "Shapes", "count"),
                Column("shapes", "First shapes"),
            ),
            tuple(
                (
                    str(changing.frame),
                    str(changing.position),
                    len(changing.shapes),
                    ", ".join(map(_shape_text, changing.shapes[:_MOST_SHAPES])),
                )
                for changing in inputs[:_MOST_INPUTS]
            ),
        ),
    )
