"""Decoding: its floor, the key-value cache, and the batch sizes with captured graphs.

Which batch size the graph of a decode step was recorded for.

A server records graphs for some batch sizes, and runs a batch in the next larger graph. The profile
does not name a graph, but shows its kernels: graphs of different sizes have different numbers of
blocks. The largest batch that ran in a graph is a lower bound of its size.

The least time of a decode step is that of reading the model's weights and the key-value cache. A
step that generates one token per request reads all weights and the cache of all requests once,
and computes little with them. The weights follow from the recorded shapes of products: of the
decode steps themselves, if they run operator by operator, else of steps that read prompts. The
cache follows from the context that the server states, and from what its operators write for a
token. Kernels in graphs have shapes only if the capture of the graphs was recorded, too.

Sources: csrc/torch_bindings.cpp of vLLM (`reshape_and_cache`, `reshape_and_cache_flash`,
`concat_and_cache_mla`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import prod

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.launch.device_graphs import in_graphs
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.hints import CONTEXT_LENGTHS, OUTSIDE_GRAPHS, hint_for
from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.matrix_kernels import matrix_kernels
from tb_perfadvisor.signals.work.operator_inputs import Inputs, Work, parse_inputs
from tb_perfadvisor.signals.work.products import outermost_products, replayed_products
from tb_perfadvisor.signals.work.roofline import roofline
from tb_perfadvisor.signals.workload.fit import first_fitting
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import NS_PER_S, format_share


@memoized
def captured_sizes(signals: Signals) -> Int64:
    """For each of the `server_steps`, the size of its graph, at least; -1 if it is unknown.

    It is that of the annotation, where the server states it. Else it is known for decode steps that
    replay a single graph, if the profile has the number of blocks of all its kernels.
    """
    steps = server_steps(signals)
    if steps is None:
        return np.empty(0, dtype=np.int64)
    size: Int64 = steps.captured_requests.copy()
    candidates = steps.is_kind(StepKind.DECODE) & (steps.graphs == 1) & (size < 0)
    candidates &= steps.decode_requests > 0
    count, blocks, names = _contents(signals, steps)
    chosen = np.flatnonzero(candidates & (blocks > 0))
    if len(chosen):
        _, graph = group_rows(count[chosen], blocks[chosen], names[chosen])
        largest = np.zeros(int(graph.max()) + 1, dtype=np.int64)
        np.maximum.at(largest, graph, steps.decode_requests[chosen])
        size[chosen] = largest[graph]
    return size


def _contents(signals: Signals, steps: ServerSteps) -> tuple[Int64, Int64, Int64]:
    """What tells graphs apart: their kernels' number, blocks and names, per step.

    Blocks are -1 if those of a kernel are unknown, as on AMD's devices.
    """
    trace, table = signals.trace, signals.trace.kernels
    events, rows = trace.events, signals.device.rows
    rows = rows[in_graphs(trace, rows)]
    grid = trace.by_event(table.row, table.grid_blocks, -1)[rows]
    is_kernel = trace.by_event(table.row, np.ones(len(table.row), dtype=np.int64), 0)[rows] > 0
    rows, grid = rows[is_kernel], grid[is_kernel]
    start_ns = events.start_ns[steps.row]
    step = last_before(start_ns, events.start_ns[events.launched_by[rows]])
    rows, grid, step = rows[step >= 0], grid[step >= 0], step[step >= 0]

    def total(values: Int64) -> Int64:
        return np.bincount(step, weights=values, minlength=len(steps)).astype(np.int64)

    is_known = total((grid <= 0).astype(np.int64)) == 0
    number = np.bincount(step, minlength=len(steps))
    return number, np.where(is_known, total(grid), -1), total(events.name[rows].astype(np.int64))


_KEYS_AND_VALUES = regex(r"_C_cache_ops::reshape_and_cache(?:_flash)?$")
_LATENT = regex(r"_C_cache_ops::concat_and_cache_mla$")
"""DeepSeek's attention keeps one compressed vector per token in place of keys and values."""
_SPARSE = regex(r"_C_cache_ops::indexer_k_quant_and_cache$")
"""Attention that reads only the tokens which an index selects."""


@memoized
def cache_bytes_per_token(signals: Signals) -> int | None:
    """What all layers keep of a token on this rank, if each keeps every token.

    None if no step shows the operators that write into the cache, or if the model's attention is
    sparse.
    """
    trace, steps = signals.trace, server_steps(signals)
    table, events = trace.operators, trace.events
    if steps is None:
        return None
    names = events.name[table.row]
    texts = {name: trace.strings[name] for name in distinct(names).tolist()}
    if any(_SPARSE.match(text) for text in texts.values()):
        return None
    writes = [n for n, text in texts.items() if _KEYS_AND_VALUES.match(text) or _LATENT.match(text)]
    slot = np.flatnonzero(is_in(names, writes) & (table.shapes >= 0))
    start_ns = events.start_ns[table.row[slot]]
    step = last_before(events.start_ns[steps.row], start_ns)
    # Steps that are left out follow the last one and may lie between others.
    is_inside = (step >= 0) & (start_ns < events.end_ns[steps.row][step])
    slot, step = slot[is_inside], step[is_inside]
    if not slot.size:
        return None
    first, group = group_rows(names[slot], table.shapes[slot], table.dtypes[slot])
    columns = (trace.texts(column[slot[first]]) for column in (names, table.shapes, table.dtypes))
    written = [_written(*operator) for operator in zip(*columns, strict=True)]
    tokens, size = np.array(written, dtype=np.int64).T[:, group]
    # A step in parts writes the tokens of each part with operators of its own.
    is_whole = tokens >= steps.tokens[step]
    total: Int64 = np.bincount(step[is_whole], weights=size[is_whole], minlength=len(steps))
    return int(total.max()) or None


def _written(name: str, shapes: str, dtypes: str) -> tuple[int, int]:
    """How many tokens an operator writes, and the bytes of one; zeros if unknown."""
    try:
        inputs = parse_inputs(shapes, dtypes, "")
        tokens = inputs.tensor(0).shape[0]
        return tokens, _latent(inputs) if _LATENT.match(name) else _keys_and_values(inputs)
    except (LookupError, ValueError, TypeError):
        return 0, 0


def _keys_and_values(inputs: Inputs) -> int:
    """`(key, value, key_cache, value_cache, …)`; keys and values are `(tokens, heads, size)`."""
    return sum(
        prod(inputs.tensor(at).shape[1:]) * inputs.tensor(at + 2).item_bytes for at in (0, 1)
    )


def _latent(inputs: Inputs) -> int:
    """`(latent, positions, cache, …)`; the cache is `(blocks, tokens of a block, size)`."""
    cache = inputs.tensor(2)
    return cache.shape[-1] * cache.item_bytes


_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


KNOWN_SHARE = 0.5
"""Of the time of products. Of less, the floor says nothing: experts may read ten times as much."""


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
    """The time to read what is known of both at the device's memory bandwidth; None if the weights
    of most products are unknown."""
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
    known_share = _known_share(signals)
    weight_bytes = _weight_bytes(signals, steps)
    cached, per_token = steps.cached_tokens[decodes], cache_bytes_per_token(signals)
    cached_tokens = float(cached.mean()) if (cached >= 0).all() else None
    cache_bytes = None
    if cached_tokens is not None and per_token is not None:
        cache_bytes = round(cached_tokens * per_token)
    known_bytes = (weight_bytes or 0) + (cache_bytes or 0) if known_share >= KNOWN_SHARE else 0
    floor_ns = round(known_bytes / bandwidth * NS_PER_S) if bandwidth and known_bytes else None
    if bandwidth is None:
        missing = "The device's memory bandwidth is unknown. Name the device with --device."
    elif weight_bytes is None:
        missing = _why_no_shapes(signals)
    elif known_share < KNOWN_SHARE:
        share = format_share(known_share)
        missing = f"The weights of only {share} of the products' time are known."
    elif cached_tokens is None:
        hint = first_fitting(CONTEXT_LENGTHS, workload(signals))
        missing = f"The server does not state how long the contexts are. {hint}".strip()
    elif cache_bytes is None:
        missing = "No operator shows the shape of the key-value cache."
    else:
        missing = ""
    return DecodeFloor(weight_bytes, cache_bytes, cached_tokens, floor_ns, missing)


def _known_share(signals: Signals) -> float:
    """The share of the time of products whose work is known; 1 without any."""
    kernels = matrix_kernels(signals)
    is_known = ~np.isnan(roofline(signals).flop[kernels.entry])
    all_ns = int(kernels.duration_ns.sum())
    return int(kernels.duration_ns[is_known].sum()) / all_ns if all_ns else 1.0


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
