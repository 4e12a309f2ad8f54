"""Products and convolutions of numbers too small for the usual form of floating-point numbers."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, has_node
from tb_perfadvisor.instrument.examination.noted import Steps, kept_share, noted
from tb_perfadvisor.machine.facts import Observed

_LEAST: Final = 0.002
"""Fewer cost less than chance."""


def subnormals(steps: Steps) -> list[Observed]:
    """Forward, and what their gradients multiply again."""
    found: list[Call] = []
    shares: dict[int, float] = {}
    for step in steps:
        of_node: dict[int, float] = {}
        for call in step:
            if call.kind == "backward":
                # Sums of gradients, for a bias, do not read the input.
                multiplies = call.name in PRODUCTS or call.name.startswith("convolution")
                share = of_node.get(call.sequence, 0.0) if multiplies else 0.0
            else:
                share = max((each.subnormals for each in call.inputs), default=0.0)
                if share >= _LEAST and has_node(call):
                    of_node[call.sequence] = share
            if share >= _LEAST and not call.is_view:
                found.append(call)
                shares[id(call)] = share
    return noted("subnormal", steps, found, amount=kept_share(shares))
