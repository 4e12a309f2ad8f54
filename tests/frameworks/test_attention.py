"""Attention in several operators, in small PyTorch programs: slow and mended."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.support.examined_steps import look, training  # noqa: E402

MASK = torch.ones(640, 640).tril().bool()


@pytest.mark.parametrize("way", ["plain", "masked", "dropout", "fused", "read", "short"])
def test_attention_by_hand(way: str) -> None:
    project = nn.Linear(32, 96)
    length = 64 if way == "short" else 640

    def loss() -> torch.Tensor:
        q, k, v = project(torch.randn(1, length, 32)).view(1, length, 3, 4, 8).unbind(2)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if way == "fused":
            return functional.scaled_dot_product_attention(q, k, v).square().mean()
        scores = q @ k.transpose(-2, -1) * 8**-0.5
        if way == "masked":
            scores = scores.masked_fill(~MASK, float("-inf"))
        weights = scores.softmax(-1)
        if way == "dropout":
            weights = functional.dropout(weights, 0.1)
        result = (weights @ v).square().mean()
        return result - weights.log().mean() if way == "read" else result

    found = look(training(project, loss), "unfused attention")
    if way in ("fused", "read", "short"):
        assert found == ()
        return
    (observed,) = found[:1]
    assert sum(each.share for each in found) > 0.6
    assert observed.amount == 0.0


@pytest.mark.parametrize("need_weights", [False, True])
def test_weights_that_a_layer_returns_and_nobody_reads(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(32, 4, batch_first=True)

    def loss() -> torch.Tensor:
        x = torch.randn(1, 640, 32)
        return layer(x, x, x, need_weights=need_weights)[0].square().mean()

    found = look(training(layer, loss), "unfused attention")
    assert bool(found) is need_weights
    if found:
        assert found[0].amount == 1.0
