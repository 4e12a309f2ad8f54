from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals.core.operators import largest_input, parse_shapes
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import EventKind


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("[[8,128],[128,64]]", ((8, 128), (128, 64))),
        ("[[],[3],[]]", ((), (3,), ())),
        ("[[[2,3],[4]],[5]]", ((), (5,))),  # a list of tensors is not a tensor
        ("[[-1,4],[true]]", ((), ())),
        ("", ()),
        ("{}", ()),
        ("[[1,", ()),
        ("[" * 100_000, ()),
    ],
)
def test_shapes_by_position(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert parse_shapes(text) == shapes


def test_the_largest_input_of_each_operator() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mul", 0, 1, shapes=[[2, 3], [4, 5]])
    builder.operator("aten::mul", 1, 2)
    builder.operator("aten::mul", 2, 3, shapes=[[10**12, 10**12]])  # no memory holds that
    trace = builder.build()
    rows = np.append(trace.rows(EventKind.OPERATOR), -1).astype(np.int32)
    assert largest_input(trace, rows).tolist() == [20, 0, 0, 0]
