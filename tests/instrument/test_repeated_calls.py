from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.instrument.examination.repeated_calls import RepeatedCalls


class Tensor:
    """As much of TensorFlow's class as is looked at."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values)
        self.shape = SimpleNamespace(rank=1, num_elements=lambda: len(values))
        self.dtype = SimpleNamespace(size=8)

    def numpy(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.values


@pytest.fixture(autouse=True)
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(Tensor=Tensor))


class Encoder:
    name = "encoder"


class Decoder:
    name = "decoder"


def captions(
    *,
    images: int = 10,
    tokens: int = 8,
    once: bool = False,
    noise: Callable[[], float] = lambda: 0.0,
    decodes: bool = True,
) -> RepeatedCalls:
    """A program that encodes an image, 3 ms, and decodes tokens from it, 1 ms each."""
    calls = RepeatedCalls()
    encoder, decoder = Encoder(), Decoder()
    for _ in range(images):
        image = Tensor(random.random(), random.random())
        for position in range(tokens):
            if not once or position == 0:
                features = Tensor(float(image.values.sum()), noise())
                calls.called(encoder, ((image,), {}), features, 0.003, sys._getframe())
            if decodes:
                word = Tensor(float(position))
                calls.called(decoder, ((features, position), {}), word, 0.001, sys._getframe())
    return calls


def test_an_encoder_that_runs_for_each_token_is_found() -> None:
    examined = captions(tokens=8).found
    assert examined is not None
    (found,) = examined.observed
    assert (found.kind, found.operator, found.function) == ("same twice", "encoder", "captions")
    # Seven of eight calls of 3 ms, of 4 ms each; the first call of each function is left out.
    assert found.share == pytest.approx(10 * 7 * 3 / (79 * 3 + 79), rel=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"once": True},
        # Dropout, or weights that change.
        {"noise": random.random},
        # A measurement of one function.
        {"decodes": False, "images": 1, "tokens": 100},
        {"images": 2, "tokens": 4},
    ],
)
def test_what_must_be_computed_is_fine(options: dict[str, Any]) -> None:
    found = captions(**options).found
    assert found is not None
    assert found.observed == ()


def test_arrays_may_change() -> None:
    calls, encoder, image = RepeatedCalls(), Encoder(), np.zeros(4)
    for _ in range(100):
        calls.called(encoder, ((image,), {}), Tensor(1.0), 0.003, None)
        calls.called(Decoder(), ((), {}), Tensor(1.0), 0.003, None)
    found = calls.found
    assert found is not None
    assert found.observed == ()
