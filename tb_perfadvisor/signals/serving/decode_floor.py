"""The least time of a decode step: that of reading the model's weights and the key-value cache.

A step that generates one token per request reads all weights and the cache of all requests once,
and computes little with them. The weights follow from the recorded shapes of products: of the
decode steps themselves, if they run operator by operator, else of steps that read prompts. The
cache follows from the context that the server states, and from what its operators write for a
token. Kernels in graphs have shapes only if the capture of the graphs was recorded, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.hint import first_fitting
from tb_perfadvisor.signals.recording.hints import CONTEXT_LENGTHS, OUTSIDE_GRAPHS, hint_for
from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.serving.key_value_cache import cache_bytes_per_token
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.products import outermost_products, replayed_products
from tb_perfadvisor.signals.work.required_work import Work
from tb_perfadvisor.signals.workload.parts import Part
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import NS_PER_S

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


class DecodeFloor(Struct, frozen=True):
    """What a decode step takes at least, on one rank; None is unknown."""

    weight_bytes: int | None
    """Of the products whose shapes are known, so there may be more."""
    cache_bytes: int | None
    """Of the requests' contexts, if every layer attends to all of their tokens: the mean over the
    decode steps."""
    cached_tokens: float | None
    """In the key-value cache of the decoding requests, likewise."""
    floor_ns: int | None
    """The time to read what is known of both at the device's memory bandwidth."""
    missing: str
    """Why a part is unknown, and how to record it; empty if both are known."""


@memoized
def decode_floor(signals: Signals) -> DecodeFloor | None:
    """The floor of decode steps; None without them."""
    steps, facts = server_steps(signals), signals.device_facts
    if steps is None or not (decodes := steps.is_kind(StepKind.DECODE)).any():
        return None
    peaks = facts.peaks if facts is not None else None
    bandwidth = peaks.memory_bandwidth_bytes_per_s if peaks is not None else None
    weight_bytes = _weight_bytes(signals, steps)
    cached, per_token = steps.cached_tokens[decodes], cache_bytes_per_token(signals)
    cached_tokens = float(cached.mean()) if (cached >= 0).all() else None
    cache_bytes = None
    if cached_tokens is not None and per_token is not None:
        cache_bytes = round(cached_tokens * per_token)
    known_bytes = (weight_bytes or 0) + (cache_bytes or 0)
    floor_ns = round(known_bytes / bandwidth * NS_PER_S) if bandwidth and known_bytes else None
    if bandwidth is None:
        missing = "The device's memory bandwidth is unknown. Name the device with --device."
    elif weight_bytes is None:
        missing = _why_no_shapes(signals)
    elif cached_tokens is None:
        hint = first_fitting(CONTEXT_LENGTHS, workload(signals))
        missing = f"The server does not state how long the contexts are. {hint}".strip()
    elif cache_bytes is None:
        missing = "No operator shows the shape of the key-value cache."
    else:
        missing = ""
    return DecodeFloor(weight_bytes, cache_bytes, cached_tokens, floor_ns, missing)


def _why_no_shapes(signals: Signals) -> str:
    program, trace = workload(signals), signals.trace
    if not (trace.operators.shapes >= 0).any():
        reason = "The shapes of the operators were not recorded."
        return f"{reason} {hint_for(Need.SHAPES, program)}".strip()
    if program.has(Part.DEVICE_GRAPHS) and not len(trace.captured.row):
        return first_fitting(OUTSIDE_GRAPHS, program)
    return "No recorded product multiplies all tokens of a step by weights."


def _weight_bytes(signals: Signals, steps: ServerSteps) -> int | None:
    """The weights that a step reads, as far as products show them."""
    start_ns = signals.trace.events.start_ns
    rows, works = outermost_products(signals)
    step = last_before(start_ns[steps.row], start_ns[rows])
    tokens, requests = steps.tokens, steps.requests
    size = np.zeros(len(steps), dtype=np.int64)
    for place, work in zip(step.tolist(), works.tolist(), strict=True):
        if place >= 0:
            size[place] += _of_product(work, (int(tokens[place]), int(requests[place])))
    replayed = replayed_products(signals)
    step = last_before(start_ns[steps.row], start_ns[replayed.launch])
    # A graph pads the batch to the size that it was captured for.
    rows_of = Counter(work.matmul.m for work in replayed.work.tolist() if work.matmul is not None)
    padded = [rows for rows, _ in rows_of.most_common(1)]
    for place, work in zip(step.tolist(), replayed.work.tolist(), strict=True):
        if place >= 0:
            size[place] += _of_product(work, (*padded, int(requests[place])))
    # Every step reads all of them, but a step in graphs shows only some.
    return _most(size, steps.is_kind(StepKind.DECODE)) or None


def _of_product(work: Work, rows: Collection[int]) -> int:
    """The weights of a product of all tokens, or of the last token of each request.

    Attention's products are batched. Other ones, such as those of a router, have other rows.
    """
    product = work.matmul
    item_bytes = _BYTES.get(work.number_format, 0)
    if product is None or product.batch != 1 or product.m not in rows:
        return 0
    return product.k * product.n * item_bytes


def _most(size: Int64, is_decode: Mask) -> int:
    """The weights of a step: of decode steps if they show any, else of the others."""
    return int(size[is_decode].max(initial=0)) or int(size.max(initial=0))
