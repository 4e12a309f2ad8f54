"""Products with matrices of zeros, gradients of a few rows, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call
from tb_perfadvisor.instrument.examination.noted import Steps, all_calls, noted
from tb_perfadvisor.machine.facts import Observed

_MOSTLY: Final = 0.95
"""Sparse products need about ten times as long for an element as dense ones."""
_LARGE_TABLE: Final = 1_000
_FEW_ROWS: Final = 0.25
_FEWEST_PLACES: Final = 8
"""Sequences shorter than that hardly have padding."""
_FEWEST_IDS: Final = 64
_PADDED: Final = 0.1
# What makes zeros of numbers that differ from step to step.
_ACTIVATIONS: Final = frozenset(
    {"relu", "relu_", "threshold", "clamp", "clamp_min", "mul", "dropout", "bernoulli_", "div_"}
)


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


def few_rows(steps: Steps) -> list[Observed]:
    """Gradients of large tables in which few rows differ from zero, with the table's updates."""
    made = [call for call in all_calls(steps) if _changes_few_rows(call)]
    tables = {_table(call) for call in made}
    others = {
        table: sum(
            call.ns * sum(each.size for each in call.inputs if each.shape == table) // _size(call)
            for call in all_calls(steps)
            if call.kind == "update" or call.leaf is not None
        )
        for table in tables
    }

    def also_ns(calls: Sequence[Call]) -> int:
        # Gradients are made at one line of the program: `loss.backward()`.
        return sum(others[table] for table in {_table(call) for call in calls})

    def amount(calls: Sequence[Call]) -> float:
        return max(_rows(call) for call in calls)

    return noted("few rows", steps, made, also_ns=also_ns, amount=amount)


def _changes_few_rows(call: Call) -> bool:
    if call.name != "embedding_dense_backward" or call.ids is None:
        return False
    return _table(call)[0] >= _LARGE_TABLE and _rows(call) <= _FEW_ROWS


def _table(call: Call) -> tuple[int, ...]:
    return call.outputs[0].shape


def _rows(call: Call) -> float:
    assert call.ids is not None
    return len(np.unique(call.ids)) / max(_table(call)[0], 1)


def _size(call: Call) -> int:
    return max(sum(each.size for each in call.inputs), 1)


def padding(steps: Steps) -> list[Observed]:
    """Embeddings of sequences that end in the same token, and what works on those sequences."""
    found, unused = [], []
    lengths: set[int] = set()
    for call in all_calls(steps):
        ids = call.ids
        if call.kind != "forward" or ids is None or ids.ndim != 2 or ids.size < _FEWEST_IDS:
            continue
        if ids.shape[1] < _FEWEST_PLACES:
            continue
        filler = ids[:, -1]
        if not (filler == np.bincount(filler.clip(0)).argmax()).mean() > 0.5:
            continue
        is_padding = _ends_in(ids, int(np.bincount(filler.clip(0)).argmax()))
        if is_padding.mean() >= _PADDED:
            found.append(call)
            unused.append((float(is_padding.all(axis=0).mean()), float(is_padding.mean())))
            lengths |= {ids.shape[1], ids.size}
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
    amount = float(np.mean([each for _, each in unused]))
    return noted(
        "padding", steps, found, amount=lambda calls: amount, also_ns=lambda calls: others_ns
    )


def _ends_in(ids: np.ndarray, filler: int) -> np.ndarray:
    """Which places hold a filler with nothing else behind them."""
    is_filler = ids == filler
    behind = np.logical_and.accumulate(is_filler[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(behind)
