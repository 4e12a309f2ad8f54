"""The size of the key-value cache, from the operators of vLLM that write into it.

Sources: csrc/torch_bindings.cpp of vLLM (`reshape_and_cache`, `reshape_and_cache_flash`,
`concat_and_cache_mla`).
"""

from __future__ import annotations

import re
from math import prod

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.serving.server_steps import server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_inputs import Inputs, parse_inputs
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64

_KEYS_AND_VALUES = re.compile(r"_C_cache_ops::reshape_and_cache(?:_flash)?$")
_LATENT = re.compile(r"_C_cache_ops::concat_and_cache_mla$")
"""DeepSeek's attention keeps one compressed vector per token in place of keys and values."""
_SPARSE = re.compile(r"_C_cache_ops::indexer_k_quant_and_cache$")
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
