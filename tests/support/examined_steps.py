"""Looks at the tensors of some steps of a small PyTorch program."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from msgspec.structs import replace
from torch import nn

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call
from tb_perfadvisor.instrument.examination.findings import examined
from tb_perfadvisor.instrument.examination.watching import Watching
from tb_perfadvisor.machine.facts import Observed, ObservedKind

# The programs are small: more threads would only wait for each other, on cores that others need.
torch.set_num_threads(1)
Step = Callable[[], object]

_CALL_NS = 3_000
_NS_PER_ELEMENT = 0.5
"""About 8 GB/s."""
_NS_PER_PRODUCT = 0.05
"""About 40 GFLOP/s."""


def look(
    step: Step, kind: ObservedKind, steps: int = 4, *, has_requests: bool = False
) -> tuple[Observed, ...]:
    """What is found of one kind in some steps."""
    step()
    watching, ends = Watching(has_requests=has_requests), [0]
    with watching:
        for _ in range(steps):
            step()
            ends.append(len(watching.calls))
    timed = [replace(call, ns=modeled_ns(call)) for call in watching.calls]
    found = examined([timed[a:b] for a, b in pairwise(ends)], watching)
    assert found.failed == ()
    return found.all_of(kind)


def modeled_ns(call: Call) -> int:
    """How long an operator takes on an idle core, about: what is found must not depend on load."""
    if call.is_view:
        return _CALL_NS
    sizes = [each.size for each in (*call.inputs, *call.outputs)]
    return round(_CALL_NS + sum(sizes) * _NS_PER_ELEMENT + _multiplications(call) * _NS_PER_PRODUCT)


def _multiplications(call: Call) -> float:
    name, inputs, outputs = call.name, call.inputs, call.outputs
    if name in PRODUCTS:
        left, right = inputs[-2:]
        batch = left.shape[0] if name in ("bmm", "baddbmm") else 1
        return float(left.size * right.size * outputs[0].size / batch) ** 0.5
    if name.startswith("convolution"):
        # Each element of the result is a product with one filter; backward, there are two results.
        is_backward = name == "convolution_backward"
        result, kernel = (inputs[0], inputs[2]) if is_backward else (outputs[0], inputs[1])
        return (1 + is_backward) * result.size * kernel.size / kernel.shape[0]
    return 0


def training(model: nn.Module, loss: Callable[[], torch.Tensor], **options: object) -> Step:
    """A step that trains a model with SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)  # type: ignore[arg-type]

    def step() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.item()

    return step
