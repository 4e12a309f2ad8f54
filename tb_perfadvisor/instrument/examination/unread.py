"""Results of which only a part is needed: what could be left out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from tb_perfadvisor.instrument.examination.calls import LOSSES, PRODUCTS, Call, has_node
from tb_perfadvisor.instrument.examination.needed import CONVOLUTIONS, Need, is_view, needs
from tb_perfadvisor.instrument.examination.noted import Steps, all_calls, kept_share, noted
from tb_perfadvisor.machine.facts import Observed

_MOST_USED: Final = 0.6
"""Where more of a result is needed, computing less saves little."""
_MOST_SORTED: Final = 0.25
"""Selecting a quarter takes about as long as sorting."""
_CALL_NS: Final = 4_000
"""What is left of an operator that has less to do: calling it."""
_SORTS: Final = frozenset({"sort", "argsort", "randperm"})
_WHOLE_ONLY: Final = frozenset(
    {"mkldnn_rnn_layer", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "copy_", "cat"}
    | {"embedding", "topk", "native_batch_norm", "constant_pad_nd", *_SORTS}
)
"""Operators that need their whole input for a part of the result, or that take next to no time."""


def unused(steps: Steps) -> list[Observed]:
    """Operators of which a part of the result is needed, forward and backward."""
    found: list[Call] = []
    used: dict[int, float] = {}
    nodes: dict[int, float] = {}
    known, found_needs = _known(steps)
    seen = _seen_places(found_needs)
    for call, need in found_needs:
        share = _needed_share(call, need, seen)
        if share > _MOST_USED:
            continue
        found.append(_above_calling(call))
        used[id(found[-1])] = share
        if has_node(call):
            nodes[call.sequence] = share
    for call in all_calls(known):
        if call.kind == "backward" and call.sequence in nodes and not is_view(call):
            found.append(_above_calling(call))
            used[id(found[-1])] = nodes[call.sequence]

    return noted("unused", known, found, amount=kept_share(used))


def _known(steps: Steps) -> tuple[Steps, list[tuple[Call, Need]]]:
    """The steps of whose results the readers were seen, with what they need.

    A step of a program that does not train ends when its model returns: the next one begins with
    what reads the result.
    """
    calls = [*all_calls(steps)]
    if len(steps) < 2 or any(call.kind == "backward" for call in calls):
        return steps, [each for step in steps for each in needs(step)]
    known = {id(call) for step in steps[:-1] for call in step}
    return steps[:-1], [(call, need) for call, need in needs(calls) if id(call) in known]


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
    if need.share == 0.0:
        return 1.0  # by no operator, but maybe by something else
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


def sorted_for_few(steps: Steps) -> list[Observed]:
    """Sorted values, and permutations, of which few are read."""
    known, found_needs = _known(steps)
    read = {
        id(call): need.share
        for call, need in found_needs
        if call.name in _SORTS and 0.0 < need.share <= _MOST_SORTED
    }
    found = [call for call, _ in found_needs if id(call) in read]

    def amount(calls: Sequence[Call]) -> float:
        return max(read[id(call)] for call in calls)

    return noted("sorted for few", known, found, amount=amount)
