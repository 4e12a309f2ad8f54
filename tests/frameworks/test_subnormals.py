"""Numbers that are nearly zero, in small PyTorch programs: slow and mended."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.support.examined_steps import look, training  # noqa: E402

TINY = 1e-40


@pytest.mark.parametrize("share", [0.0, 0.0002, 0.1])
@pytest.mark.parametrize("layer", ["convolution", "product"])
def test_the_share_of_an_input(layer: str, share: float) -> None:
    shape = (4, 3, 64, 64) if layer == "convolution" else (64, 512)
    x = torch.rand(shape) + 1
    x[torch.rand(shape) < share] = TINY
    model = nn.Conv2d(3, 4, 3) if layer == "convolution" else nn.Linear(512, 8)
    found = look(training(model, lambda: model(x).square().mean()), "subnormal")
    if share < 0.002:
        assert found == ()
        return
    (observed,) = found
    assert observed.amount == pytest.approx(share, abs=0.03)
    assert observed.calls == 2  # forward, and the gradient of the weights


def test_zeros_and_whole_numbers_are_fine() -> None:
    def step() -> torch.Tensor:
        zeros, numbers = torch.zeros(200, 200), torch.ones(200, 200, dtype=torch.int64)
        return (zeros @ zeros) + (numbers @ numbers)

    assert look(step, "subnormal") == ()
