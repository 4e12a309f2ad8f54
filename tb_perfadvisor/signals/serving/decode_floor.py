"""The least time of a decode step: that of reading the model's weights once.

A step that generates one token per request reads all weights, and computes little with them. Their
size follows from the recorded shapes of products: of the decode steps themselves, if they run
operator by operator, else of steps that read prompts. Kernels in graphs have no shapes.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.serving.server_steps import Mask, server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.products import outermost_products
from tb_perfadvisor.signals.work.required_work import Work
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import NS_PER_S

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


class DecodeFloor(Struct, frozen=True):
    """What a decode step takes at least, on one rank."""

    weight_bytes: int
    """Of the products whose shapes are known, so there may be more."""
    floor_ns: int
    """The time to read them at the device's memory bandwidth, without the key-value cache."""


@memoized
def decode_floor(signals: Signals) -> DecodeFloor | None:
    """The floor of decode steps; None without them, their weights or the device's bandwidth."""
    steps, facts = server_steps(signals), signals.device_facts
    peaks = facts.peaks if facts is not None else None
    bandwidth = peaks.memory_bandwidth_bytes_per_s if peaks is not None else None
    if steps is None or bandwidth is None or not steps.is_kind(StepKind.DECODE).any():
        return None
    rows, works = outermost_products(signals)
    start_ns = signals.trace.events.start_ns[steps.row]
    step = last_before(start_ns, signals.trace.events.start_ns[rows])
    tokens, requests = steps.tokens, steps.requests
    size = np.zeros(len(steps), dtype=np.int64)
    for place, work in zip(step.tolist(), works.tolist(), strict=True):
        if place >= 0:
            size[place] += _weight_bytes(work, int(tokens[place]), int(requests[place]))
    # Every step reads all of them, but a step in graphs shows only some.
    weight_bytes = _most(size, steps.is_kind(StepKind.DECODE))
    if not weight_bytes:
        return None
    return DecodeFloor(weight_bytes, round(weight_bytes / bandwidth * NS_PER_S))


def _weight_bytes(work: Work, tokens: int, requests: int) -> int:
    """The weights of a product of all tokens, or of the last token of each request.

    Attention's products are batched. Other ones, such as those of a router, have other rows.
    """
    product = work.matmul
    item_bytes = _BYTES.get(work.number_format, 0)
    if product is None or product.batch != 1 or product.m not in (tokens, requests):
        return 0
    return product.k * product.n * item_bytes


def _most(size: Int64, is_decode: Mask) -> int:
    """The weights of a step: of decode steps if they show any, else of the others."""
    return int(size[is_decode].max(initial=0)) or int(size.max(initial=0))
