"""Work on nothing: products with matrices of zeros, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, Steps, all_calls, noted
from tb_perfadvisor.machine.facts import Observed

_MOSTLY: Final = 0.95
"""Sparse products need about ten times as long for an element as dense ones."""
_FEWEST_PLACES: Final = 8
"""Sequences shorter than that hardly have padding."""
_FEWEST_TOKENS: Final = 64
_PADDED: Final = 0.1
_ACTIVATIONS: Final = frozenset(
    {"relu", "relu_", "threshold", "clamp", "clamp_min", "mul", "dropout", "bernoulli_", "div_"}
)
"""What makes zeros of numbers that differ from step to step."""


def mostly_zero(steps: Steps) -> list[Observed]:
    """Products with data of which nearly all elements are zero, forward and backward."""
    found = []
    for step in steps:
        made_by: dict[int, str] = {}
        zeros: dict[int, float] = {}
        for call in step:
            if call.name in PRODUCTS:
                share = 0.0
                for each in call.inputs:
                    known = each.zeros if call.kind != "backward" else zeros.get(each.storage)
                    if known is None or made_by.get(each.storage) in _ACTIVATIONS:
                        continue
                    share = max(share, known)
                    if call.kind == "forward" and known >= _MOSTLY:
                        zeros[each.storage] = known
                if share >= _MOSTLY:
                    found.append((call, share))
            if not call.is_view:
                made_by |= {each.storage: call.name for each in call.outputs}
    shares = {id(call): share for call, share in found}

    def amount(calls: Sequence[Call]) -> float:
        return min(shares[id(call)] for call in calls)

    return noted("mostly zero", steps, [call for call, _ in found], amount=amount)


def padding(steps: Steps) -> list[Observed]:
    """Embeddings of sequences that end in the same token, and what works on those sequences."""
    found: list[Call] = []
    shares: list[float] = []
    lengths: set[int] = set()
    for call in all_calls(steps):
        tokens = call.tokens
        if call.kind != "forward" or tokens is None or tokens.size < _FEWEST_TOKENS:
            continue
        share = _share_of_padding(tokens) if tokens.shape[1] >= _FEWEST_PLACES else 0.0
        if share >= _PADDED:
            found.append(call)
            shares.append(share)
            lengths |= {tokens.shape[1], tokens.size}
    if not found:
        return []
    is_found = {id(call) for call in found}
    others_ns = sum(
        call.ns
        for call in all_calls(steps)
        if id(call) not in is_found
        and call.kind in ("forward", "backward")
        and any(lengths & set(each.shape) for each in call.inputs)
    )
    amount = float(np.mean(shares))
    return noted(
        "padding", steps, found, amount=lambda calls: amount, also_ns=lambda calls: others_ns
    )


def _share_of_padding(tokens: NDArray[np.int64]) -> float:
    """The part of all places with nothing but the filler from there on; 0 if there is none."""
    last = tokens[:, -1]
    filler = int(np.bincount(last.clip(0)).argmax())
    if (last == filler).mean() <= 0.5:
        return 0.0
    is_filler = tokens == filler
    return float(np.logical_and.accumulate(is_filler[:, ::-1], axis=1).mean())
