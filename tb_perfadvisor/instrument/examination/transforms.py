"""Spectra that are computed as products with tables of sines and cosines."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, Operand
from tb_perfadvisor.instrument.examination.needed import CONVOLUTIONS
from tb_perfadvisor.instrument.examination.noted import Steps, kept_share, noted
from tb_perfadvisor.machine.facts import Observed

_MOST_KEPT: Final = 0.6
_PER_ELEMENT_NS: Final = 3.0
_PER_STAGE_NS: Final = 0.4
"""What a Fourier transform takes on one core for each element: for the window and the power, and
for each doubling of the length. Measured for 256 to 4,096 numbers with PyTorch 2.13 on x86."""


def dense_transforms(steps: Steps) -> list[Observed]:
    """Products whose other input consists of evenly spaced waves, forward and backward."""
    found: list[Call] = []
    kept: dict[int, float] = {}
    for step in steps:
        products = [(call, sizes) for call in step if (sizes := _transform(call)) is not None]
        # Sines and cosines of the same signal are one transform.
        same = Counter(_signal(call).storage for call, _ in products)
        nodes: dict[int, float] = {}
        for call, (count, length) in products:
            needed_ns = count * transform_ns(length)
            share = needed_ns / same[_signal(call).storage] / max(call.ns, 1)
            if share > _MOST_KEPT:
                continue
            found.append(call)
            kept[id(call)] = share
            if call.tracks_gradients and _signal(call).has_gradient:
                nodes[call.sequence] = share
        for call in step:
            if call.kind == "backward" and call.sequence in nodes and call.name in PRODUCTS:
                found.append(call)
                kept[id(call)] = nodes[call.sequence]

    return noted("dense transform", steps, found, amount=kept_share(kept))


def transform_ns(length: int) -> float:
    """What the Fourier transform of so many numbers takes on one core."""
    return length * (_PER_ELEMENT_NS + _PER_STAGE_NS * math.log2(max(length, 1)))


def _transform(call: Call) -> tuple[int, int] | None:
    """How many signals of which length a product transforms; None if it does not."""
    if call.kind != "forward" or not call.outputs:
        return None
    if call.name not in PRODUCTS and call.name not in CONVOLUTIONS:
        return None
    waves = next((each for each in call.inputs if each.waves), None)
    if waves is None or len(call.inputs) < 2:
        return None
    signal, result = _signal(call), call.outputs[0].shape
    if call.name in CONVOLUTIONS:
        length = waves.shape[-1]
        count = math.prod(result) // max(result[1], 1) if len(result) > 2 else 0
    else:
        is_first = _operands(call)[0] is waves
        length = signal.shape[-2] if is_first and len(signal.shape) > 1 else signal.shape[-1]
        count = signal.size // max(length, 1)
    return (count, length) if count and length in waves.waves else None


def _signal(call: Call) -> Operand:
    """The input that is no table of waves."""
    return next((each for each in _operands(call) if not each.waves), _operands(call)[0])


def _operands(call: Call) -> tuple[Operand, ...]:
    """The two factors, without what is added to their product."""
    is_added = call.name in ("addmm", "baddbmm", "addmv")
    return call.inputs[1:3] if is_added else call.inputs[:2]
