"""Convolutions with kernels so long that Fourier transforms would take less time."""

from __future__ import annotations

import math
from typing import Final

from tb_perfadvisor.instrument.examination.calls import Call, has_node
from tb_perfadvisor.instrument.examination.needed import CONVOLUTIONS, scalars_of
from tb_perfadvisor.instrument.examination.noted import Steps, kept_share, noted
from tb_perfadvisor.instrument.examination.transforms import transform_ns
from tb_perfadvisor.machine.facts import Observed

_MOST_KEPT: Final = 0.6
_FEWEST_TAPS: Final = 64
"""A shorter kernel that takes as long has another reason."""
_NAMES: Final = CONVOLUTIONS | {"conv2d"}
_PRODUCT_NS: Final = 1.5
"""What multiplying two complex numbers and adding the result takes on one core."""


def long_kernels(steps: Steps) -> list[Observed]:
    """Direct convolutions, forward and backward."""
    found: list[Call] = []
    kept: dict[int, float] = {}
    for step in steps:
        nodes: dict[int, float] = {}
        for call in step:
            needed_ns = _by_transforms_ns(call)
            share = 1.0 if needed_ns is None else needed_ns / max(call.ns, 1)
            if share > _MOST_KEPT:
                continue
            found.append(call)
            kept[id(call)] = share
            if has_node(call):
                nodes[call.sequence] = share
        for call in step:
            if call.kind == "backward" and call.sequence in nodes and "conv" in call.name:
                found.append(call)
                kept[id(call)] = nodes[call.sequence]
    return noted("long kernel", steps, found, amount=kept_share(kept))


def _by_transforms_ns(call: Call) -> float | None:
    """What transforms of the input, the kernel and the result would take; None if it is unknown."""
    if call.kind != "forward" or call.name not in _NAMES or len(call.inputs) < 2:
        return None
    data, kernel = (each.shape for each in call.inputs[:2])
    if not call.outputs or len(data) != len(kernel) or len(data) < 3:
        return None
    values, _, _ = scalars_of(call)
    is_transposed = any(each is True for each in values)
    if is_transposed or math.prod(kernel[2:]) < _FEWEST_TAPS:
        return None
    result = call.outputs[0].shape
    places = math.prod(size + taps for size, taps in zip(data[2:], kernel[2:], strict=True))
    batch, inputs, outputs = data[0], data[1], result[1]
    transforms = batch * inputs + kernel[0] * kernel[1] + batch * outputs
    products = batch * outputs * kernel[1] * places / 2
    return transforms * transform_ns(places) + products * _PRODUCT_NS
