"""Distances of all pairs that are computed from their differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tb_perfadvisor.instrument.examination.calls import Call
from tb_perfadvisor.instrument.examination.needed import is_view, readers_of
from tb_perfadvisor.instrument.examination.noted import Steps, noted
from tb_perfadvisor.machine.facts import Observed

_FEWEST_COORDINATES: Final = 4
"""Differences of fewer take no longer than a product and the squares."""
_MOST_KEPT: Final = 0.6
_PER_PAIR_NS: Final = 3.0
_PER_COORDINATE_NS: Final = 0.1
"""What the distance of a pair takes by a product on one core: some additions for each pair, and a
multiplication for each coordinate at 20 GFLOP/s."""
_SQUARES: Final = frozenset({"pow", "square", "mul"})


def pairwise_differences(steps: Steps) -> list[Observed]:
    """Differences of all pairs of rows of which only the squares are added up, and what does it."""
    found: list[Call] = []
    kept: dict[int, float] = {}
    for step in steps:
        nodes: dict[int, float] = {}
        readers = readers_of(step)
        for number, call in enumerate(step):
            parts = _distance(step, readers, number)
            if not parts:
                continue
            pairs = call.outputs[0].size // call.outputs[0].shape[-1]
            needed_ns = pairs * (_PER_PAIR_NS + _PER_COORDINATE_NS * call.outputs[0].shape[-1])
            share = needed_ns / max(sum(part.ns for part in parts), 1)
            if share > _MOST_KEPT:
                continue
            found += parts
            kept |= {id(part): share for part in parts}
            nodes |= {part.sequence: share for part in parts if part.tracks_gradients}
        for call in step:
            if call.kind == "backward" and call.sequence in nodes and not is_view(call):
                found.append(call)
                kept[id(call)] = nodes[call.sequence]

    def amount(calls: Sequence[Call]) -> float:
        return max(kept[id(call)] for call in calls)

    return noted("pairwise differences", steps, found, amount=amount)


def _distance(
    calls: Sequence[Call], readers: dict[int, list[tuple[int, int]]], number: int
) -> list[Call]:
    """The difference of all pairs, its squares and their sums, if that is what it is; else none."""
    call = calls[number]
    if call.kind != "forward" or call.name != "sub" or not _is_of_pairs(call):
        return []
    shape = call.outputs[0].shape
    squares = {reader for reader, _ in readers.get(number, ())}
    if len(squares) != 1:
        return []
    (square,) = squares
    if calls[square].name == "linalg_vector_norm":
        return [call, calls[square]] if _is_sum(calls[square], shape) else []
    is_square = calls[square].name != "pow" or calls[square].scalars.startswith("([2")
    if calls[square].name not in _SQUARES or not is_square:
        return []
    if any(each.shape != shape for each in calls[square].inputs):
        return []
    sums = {reader for reader, _ in readers.get(square, ())}
    if len(sums) != 1 or not _is_sum(calls[last := min(sums)], shape):
        return []
    return [call, calls[square], calls[last]]


def _is_of_pairs(call: Call) -> bool:
    """Whether each row of one input meets each row of the other."""
    if len(call.inputs) != 2 or not call.outputs:
        return False
    result = call.outputs[0].shape
    if len(result) < 3 or result[-1] < _FEWEST_COORDINATES:
        return False
    repeated = []
    for each in call.inputs:
        shape = (1,) * (len(result) - len(each.shape)) + each.shape
        distinct = each.size if each.distinct is None else each.distinct
        if shape[-1] != result[-1] or distinct >= call.outputs[0].size:
            return False
        repeated.append({axis for axis, size in enumerate(shape) if size != result[axis]})
    # By `expand`, both may have all sizes of the result.
    return not (repeated[0] & repeated[1])


def _is_sum(call: Call, shape: tuple[int, ...]) -> bool:
    if call.name not in ("sum", "mean", "linalg_vector_norm") or not call.outputs:
        return False
    return call.outputs[0].shape in (shape[:-1], (*shape[:-1], 1))
