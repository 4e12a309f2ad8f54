"""Work on nothing: products with matrices of zeros, and padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.instrument.examination.calls import (
    PRODUCTS,
    Call,
    Place,
    Steps,
    all_calls,
    noted,
)
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


def padding(steps: Steps, models_called_at: Mapping[int, Place | None]) -> list[Observed]:
    """Sequences that end in the same token, at the line that makes them or hands them to the model.

    Their cost is what works on them.
    """
    made_at: dict[int, Place | None] = {}
    for call in all_calls(steps):
        if call.kind == "forward" and not call.model_call:
            made_at |= {each.storage: call.place for each in call.outputs}
    found: list[Call] = []
    looked_up: set[int] = set()
    shares: list[float] = []
    lengths: set[int] = set()
    for call in all_calls(steps):
        tokens = call.tokens
        if call.kind != "forward" or tokens is None or tokens.size < _FEWEST_TOKENS:
            continue
        share = _share_of_padding(tokens) if tokens.shape[1] >= _FEWEST_PLACES else 0.0
        if share >= _PADDED:
            place = made_at.get(call.inputs[1].storage) or models_called_at.get(call.model_call)
            found.append(replace(call, place=place or call.place))
            looked_up.add(id(call))
            shares.append(share)
            lengths |= {tokens.shape[1], tokens.size}
    if not found:
        return []
    others_ns = sum(
        call.ns
        for call in all_calls(steps)
        if id(call) not in looked_up
        and call.kind in ("forward", "backward")
        and any(lengths & set(each.shape) for each in call.inputs)
    )
    amount = float(np.mean(shares))
    return noted(
        "padding", steps, found, amount=lambda calls: amount, also_ns=lambda calls: others_ns
    )


def _share_of_padding(tokens: NDArray[np.int64]) -> float:
    """The part of all places with nothing but the filler from there on; 0 if there is none.

    A batch of one token alone is made up, to measure a model.
    """
    last = tokens[:, -1]
    filler = int(np.bincount(last.clip(0)).argmax())
    if (last == filler).mean() <= 0.5:
        return 0.0
    is_filler = tokens == filler
    if is_filler.all():
        return 0.0
    return float(np.logical_and.accumulate(is_filler[:, ::-1], axis=1).mean())
