"""Results of which nothing or only a part is needed: what could be left out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from tb_perfadvisor.instrument.examination.calls import LOSSES, PRODUCTS, Call, Steps, all_calls
from tb_perfadvisor.instrument.examination.needed import CONVOLUTIONS, Need, needs
from tb_perfadvisor.instrument.examination.noted import noted
from tb_perfadvisor.machine.facts import Observed

_MOST_USED: Final = 0.6
"""Where more of a result is needed, computing less saves little."""
_CALL_NS: Final = 4_000
"""What is left of an operator that has less to do: calling it."""
_WHOLE_ONLY: Final = frozenset(
    {"mkldnn_rnn_layer", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "copy_", "cat"}
    | {"embedding", "topk", "native_batch_norm", "constant_pad_nd", "sort", "argsort", "randperm"}
)
"""Operators that need their whole input for a part of the result, or that take next to no time."""


def unread(steps: Steps, freed: frozenset[int]) -> list[Observed]:
    """Operators of which nothing or a part of the result is needed, forward and backward.

    What reads the results of the last step, if anything, was not seen.
    """
    calls = [*all_calls(steps)]
    steps = steps[:-1] if len(steps) > 1 else steps
    known = {id(call) for call in all_calls(steps)}
    found_needs = [(call, need) for call, need in needs(calls, freed) if id(call) in known]
    seen = _seen_places(found_needs)
    trains = any(call.kind == "backward" for call in calls)
    found: list[Call] = []
    used: dict[int, float] = {}
    nodes: dict[int, float] = {}
    for call, need in found_needs:
        share = _needed_share(call, need, seen)
        share = 1.0 if share == 0.0 and not trains else share
        if share > _MOST_USED:
            continue
        found.append(_above_calling(call) if share else call)
        used[id(found[-1])] = share
        if call.has_node:
            nodes[call.sequence] = share
    for call in all_calls(steps):
        if call.kind == "backward" and call.sequence in nodes and call.computes:
            found.append(_above_calling(call))
            used[id(found[-1])] = nodes[call.sequence]

    def amount(calls: Sequence[Call]) -> float:
        whole_ns = max(sum(call.ns for call in calls), 1)
        return sum(used[id(call)] * call.ns for call in calls) / whole_ns

    return noted("unused", steps, found, amount=amount)


def _above_calling(call: Call) -> Call:
    return replace(call, ns=max(call.ns - _CALL_NS, 0))


def _seen_places(calls: Sequence[tuple[Call, Need]]) -> dict[int, float]:
    """For each length of a sequence, the share of places that the first of its convolutions needs.

    Those behind it need fewer. But a shorter input is as long for all of them.
    """
    seen: dict[int, float] = {}
    for call, need in calls:
        if call.name in CONVOLUTIONS and len(call.outputs[0].shape) == 3:
            length = call.outputs[0].shape[-1]
            seen[length] = max(seen.get(length, 0.0), need.columns)
    return seen


def _needed_share(call: Call, need: Need, seen: Mapping[int, float]) -> float:
    """The part of a call's work that is needed."""
    if need.share == 0.0:  # by no operator; without a gradient, maybe by something else
        return 0.0 if call.has_node else 1.0
    if call.name == "mkldnn_rnn_layer":
        return need.share if call.is_reverse else 1.0
    rank = max((len(each.shape) for each in call.outputs), default=0)
    if call.in_recurrent_layer or call.name in _WHOLE_ONLY:
        return 1.0
    if call.name in CONVOLUTIONS:
        return seen[call.outputs[0].shape[-1]] if rank == 3 else 1.0
    if call.name in LOSSES:
        return call.counted if call.counted is not None else 1.0
    if rank == 3 and call.outputs[0].shape[-1] in seen:
        return need.rows * seen[call.outputs[0].shape[-1]]
    if not need.is_direct or rank < 2:
        return 1.0  # the block before needs other changes than to select first
    is_rowwise = call.name in PRODUCTS or call.is_pointwise or call.name.endswith("softmax")
    return need.share if is_rowwise else 1.0
