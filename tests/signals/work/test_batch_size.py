from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.matrix_work import batch_size
from tb_perfadvisor.testing import TraceBuilder, ms, run_of

CONVOLUTION = ("aten::conv2d", [[32, 3, 224, 224], [64, 3, 7, 7], [64]])
INDICES = ("aten::embedding", [[50_000, 512], [16, 128]])


def batch_of(*operators: tuple[str, Any]) -> int | None:
    builder = TraceBuilder().step(0, 0, ms(1_000))
    for at, (name, shapes) in enumerate(operators):
        builder.operator(name, ms(at), ms(at + 1), shapes=shapes)
    return batch_size(Signals(run_of(builder.build())))


def test_convolutions_and_embeddings_tell_the_batch_size() -> None:
    assert batch_of(CONVOLUTION) == 32
    assert batch_of(INDICES) == 16
    # An image model with a position embedding, which all samples share.
    assert batch_of(("aten::embedding", [[197, 768], [1, 197]]), CONVOLUTION) == 32


def test_nine_tenths_of_the_executions_must_agree() -> None:
    other = ("aten::conv2d", [[4, 3, 8, 8], [8, 3, 3, 3], [8]])
    assert batch_of(*[CONVOLUTION] * 9, other) == 32
    assert batch_of(*[CONVOLUTION] * 8, other) is None


@pytest.mark.parametrize(
    "operator",
    [
        ("aten::linear", [[128, 1024], [4096, 1024], [4096]]),  # samples, or tokens
        ("aten::embedding", [[50_000, 512], [2_048]]),  # packed sequences
        ("aten::conv2d", [[3, 224, 224], [64, 3, 7, 7]]),  # an image without a batch
        ("aten::conv2d", []),
        ("aten::conv2d", [[[32, 3], [32, 3]], [64, 3, 7, 7]]),
        ("aten::conv2d", None),
        ("aten::mm", [[8, 4], [4, 2]]),
    ],
)
def test_other_shapes_do_not_tell_the_batch_size(operator: tuple[str, Any]) -> None:
    assert batch_of(operator) is None
