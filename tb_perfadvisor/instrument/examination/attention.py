"""Attention whose scores are written to memory, where one operator would keep them in the cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, has_node
from tb_perfadvisor.instrument.examination.needed import SOFTMAX, readers_of
from tb_perfadvisor.instrument.examination.noted import Steps, noted
from tb_perfadvisor.machine.facts import Observed

_BETWEEN: Final = frozenset(
    {"mul", "mul_", "div", "div_", "add", "add_", "masked_fill", "masked_fill_", "where"}
    | {"native_dropout", "dropout", "dropout_", "clone", "_to_copy"}
)
"""Scaling, masks and dropout."""
_OF_ITS_SHAPE: Final = frozenset({"empty_like", "ones_like", "zeros_like", "rand_like"})
_SUMS: Final = frozenset({"sum", "mean"})
_MOST_BETWEEN: Final = 8
_LEAST_SCORES: Final = 1_500_000
"""Fewer of them, about 6 MB, stay in the caches of a core."""


def unfused_attention(steps: Steps) -> list[Observed]:
    """Both products, the softmax, and what is between them, forward and backward."""
    found: list[Call] = []
    for step in steps:
        readers = readers_of(step)
        made: dict[int, list[int]] = defaultdict(list)
        for number, reading in readers.items():
            for reader, _ in reading:
                made[reader].append(number)
        of_attention: set[int] = set()
        for number, call in enumerate(step):
            is_large = bool(call.outputs) and call.outputs[0].size >= _LEAST_SCORES
            if call.kind == "forward" and call.name in SOFTMAX and is_large:
                of_attention |= _attention(step, number, readers, made)
        nodes = {step[n].sequence for n in of_attention if has_node(step[n])}
        found += [
            call
            for number, call in enumerate(step)
            if number in of_attention or (call.kind == "backward" and call.sequence in nodes)
        ]
    return noted("unfused attention", steps, found, amount=_averages)


def _averages(calls: Sequence[Call]) -> float:
    """1 if the weights are averaged over the heads, as by `torch.nn.MultiheadAttention`; else 0."""
    return float(any(call.kind == "forward" and call.name in _SUMS for call in calls))


def _attention(
    step: Sequence[Call],
    softmax: int,
    readers: dict[int, list[tuple[int, int]]],
    made: dict[int, list[int]],
) -> set[int]:
    """The calls around a softmax; none if its result is more than the weights of one product."""
    calls, at = {softmax}, softmax
    for _ in range(_MOST_BETWEEN):
        large = [n for n in made[at] if step[n].outputs and _is_as_large(step[n], step[softmax])]
        if len(large) != 1:
            return set()
        (at,) = large
        calls.add(at)
        if step[at].name in PRODUCTS:
            break
        if step[at].name not in _BETWEEN:
            return set()
    at = softmax
    for _ in range(_MOST_BETWEEN):
        # An average over the heads that nobody reads is no reason to keep the weights.
        dropped = {n for n, _ in readers.get(at, ()) if step[n].name in _SUMS and n not in readers}
        reading = {n for n, _ in readers.get(at, ()) if step[n].name not in _OF_ITS_SHAPE} - dropped
        if len(reading) != 1:
            return set()
        (at,) = reading
        calls |= {at, *dropped}
        if step[at].name in PRODUCTS:
            return calls
        if step[at].name not in _BETWEEN:
            return set()
    return set()


def _is_as_large(call: Call, softmax: Call) -> bool:
    return call.outputs[0].size == softmax.outputs[0].size
