"""Products of rows that are copies of fewer rows: each could be multiplied once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, Operand, has_node
from tb_perfadvisor.instrument.examination.needed import CONVOLUTIONS, is_view
from tb_perfadvisor.instrument.examination.noted import Steps, all_calls, kept_share, noted
from tb_perfadvisor.machine.facts import Observed

_MOST_DISTINCT: Final = 0.6
"""Where more rows differ, multiplying them before they are copied saves little."""
_ADDING_NS: Final = 0.7
"""What adding the parts of a split product takes for each element: a core reads two numbers and
writes one at 20 GB/s."""
_COPYING: Final = frozenset(
    {"index", "index_select", "repeat", "repeat_interleave", "embedding", "gather"}
)
_PASSING: Final = frozenset({"clone", "_to_copy", "native_layer_norm"})


class Block(NamedTuple):
    """Columns of a matrix, or channels of an image."""

    width: int
    distinct: float
    """How many different rows they have at most, as a share of all."""


def copied_items(steps: Steps) -> list[Observed]:
    """Products and layers that get the same batch, or the same rows, several times in each call."""
    if any(call.copies == 0 for call in all_calls(steps)):
        return []  # all rows are the same because the data was made up so
    fewest: dict[object, int] = {}
    for call in all_calls(steps):
        what = call.place, call.name
        fewest[what] = min(fewest.get(what, call.copies), call.copies)
    found = [call for call in all_calls(steps) if fewest[call.place, call.name] > 1]
    kept = {id(call): 1 / call.copies for call in found}
    nodes = {call.sequence: 1 / call.copies for call in found if has_node(call)}
    for call in all_calls(steps):
        if call.kind == "backward" and call.sequence in nodes and not is_view(call):
            found.append(call)
            kept[id(call)] = nodes[call.sequence]
    return noted("copied items", steps, found, amount=kept_share(kept))


def repeated_rows(steps: Steps) -> list[Observed]:
    """Products with rows that are put together from fewer rows, forward and backward."""
    found: list[Call] = []
    useful: dict[int, float] = {}
    for step in steps:
        nodes: dict[int, float] = {}
        for call, share, joining, count in _products(
            [call for call in step if call.kind == "forward"]
        ):
            size = max((each.size for each in call.outputs), default=0)
            kept = share + (count - 1) * size * _ADDING_NS / max(call.ns, 1)
            if kept > _MOST_DISTINCT or call.copies > 1:
                continue
            found.append(call)
            useful[id(call)] = kept
            if joining is not None and id(joining) not in useful:
                found.append(joining)
                useful[id(joining)] = 0.0  # nothing has to be put together
            if call.tracks_gradients:
                nodes[call.sequence] = kept
        for call in step:
            if call.kind == "backward" and call.sequence in nodes and not is_view(call):
                found.append(call)
                useful[id(call)] = nodes[call.sequence]

    return noted("repeated rows", steps, found, amount=kept_share(useful))


def _products(calls: Sequence[Call]) -> list[tuple[Call, float, Call | None, int]]:
    """Products, the share of distinct rows that they read, and what put those together.

    The last number is of the parts to add up, or to copy in place of the rows.
    """
    blocks: dict[int, tuple[Block, ...]] = {}
    joined: dict[int, Call] = {}
    sizes: dict[int, int] = {}
    found = []
    for call in calls:
        if is_view(call):
            continue
        data = _data(call)
        if data is not None:
            read = blocks.get(data.storage, ())
            width, axis = _width(call, data)
            if not read or sizes[data.storage] != data.size or sum(b.width for b in read) != width:
                read = (_of_operand(data, axis, {}),)
            share = sum(b.width * b.distinct for b in read) / max(sum(b.width for b in read), 1)
            found.append((call, share, joined.get(data.storage), max(len(read), 2)))
        made = _made(call, blocks, sizes)
        for each in call.outputs:
            blocks.pop(each.storage, None)
            joined.pop(each.storage, None)
            if made and any(block.distinct < 1.0 for block in made):
                blocks[each.storage], sizes[each.storage] = made, each.size
                if call.name == "cat":
                    joined[each.storage] = call
    return found


def _data(call: Call) -> Operand | None:
    """What a product with weights, or a convolution of single pixels, works on."""
    if call.name in CONVOLUTIONS and len(call.inputs) > 1:
        is_pointwise = all(size == 1 for size in call.inputs[1].shape[2:])
        return call.inputs[0] if is_pointwise else None
    if call.name not in PRODUCTS or call.in_recurrent_layer:
        return None
    at = 1 if call.name in ("addmm", "baddbmm", "addmv") else 0
    return call.inputs[at] if len(call.inputs) > at + 1 else None


def _width(call: Call, data: Operand) -> tuple[int, int]:
    """The number of columns or channels, and their axis."""
    axis = 1 if call.name in CONVOLUTIONS else len(data.shape) - 1
    return data.shape[axis], axis


def _of_operand(
    operand: Operand, axis: int, blocks: dict[int, tuple[Block, ...]], size: int = 0
) -> Block:
    """A tensor as a block of columns; as one, if it is put together from several."""
    width = operand.shape[axis] if operand.shape else 1
    known = blocks.get(operand.storage, ())
    if known and size == operand.size and sum(b.width for b in known) == width:
        return Block(width, sum(b.width * b.distinct for b in known) / width)
    if operand.distinct is None or operand.distinct % max(width, 1):
        return Block(width, 1.0)
    return Block(width, operand.distinct / max(operand.size, 1))


def _made(
    call: Call, blocks: dict[int, tuple[Block, ...]], sizes: dict[int, int]
) -> tuple[Block, ...]:
    """The blocks that a call's result has; none if nothing is known."""
    if not call.outputs or not call.inputs or not call.outputs[0].shape:
        return ()
    result, first = call.outputs[0], call.inputs[0]
    if call.name == "cat":
        axis = _joined_axis(call)
        if axis is None:
            return ()
        return tuple(
            _of_operand(each, axis, blocks, sizes.get(each.storage, 0))
            for each in call.inputs
            if each.size
        )
    last = len(result.shape) - 1
    if call.name in _COPYING:
        if first.shape[-1:] != result.shape[-1:] or first.size >= result.size:
            return ()
        return (Block(result.shape[-1], first.size / result.size),)
    is_single = sum(1 for each in call.inputs if each.shape == result.shape) == 1
    if first.shape != result.shape or not is_single:
        return ()
    if not (call.name in _PASSING or call.is_pointwise) or call.is_random:
        return ()
    if first.distinct is not None:
        return (_of_operand(first, last, {}),)
    return blocks.get(first.storage, ()) if sizes.get(first.storage) == first.size else ()


def _joined_axis(call: Call) -> int | None:
    """The axis along which tensors are joined, if it is of columns or channels."""
    result = call.outputs[0].shape
    shapes = [each.shape for each in call.inputs if each.size]
    if any(len(shape) != len(result) for shape in shapes) or len(shapes) < 2:
        return None
    axes = [axis for axis in range(len(result)) if any(s[axis] != result[axis] for s in shapes)]
    return axes[0] if len(axes) == 1 and axes[0] in (1, len(result) - 1) else None
