"""Which calls need the results of which others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, Operand
from tb_perfadvisor.instrument.examination.noted import Steps, noted
from tb_perfadvisor.machine.facts import Observed

_FEWEST: Final = 3
"""Two lengths may differ by chance."""
_GROWING: Final = PRODUCTS | {"embedding", "convolution", "mkldnn_rnn_layer", "native_layer_norm"}


def growing(steps: Steps) -> list[Observed]:
    """Calls without gradients whose input gets longer by the same amount each time."""
    courses: dict[object, list[Call]] = defaultdict(list)
    for step in steps:
        for call in step:
            is_free = call.kind == "forward" and not call.tracks_gradients
            if is_free and call.name in _GROWING and call.inputs:
                courses[(call.place, call.name, call.inputs[-1].shape)].append(call)
    found = [call for course in courses.values() if _grows(course) for call in course]
    lengths = {size for call in found for size in _data(call).shape if size > 1}
    is_found = {id(call) for call in found}
    others_ns = sum(
        call.ns
        for step in steps
        for call in step
        if call.kind == "forward" and not call.tracks_gradients and id(call) not in is_found
        if any(lengths & set(each.shape) for each in call.inputs)
    )
    whole_ns = sum(call.ns for call in found)

    def also_ns(calls: Sequence[Call]) -> int:
        return others_ns * sum(call.ns for call in calls) // max(whole_ns, 1)

    return noted("growing", steps, found, also_ns=also_ns)


def _data(call: Call) -> Operand:
    """What a layer works on; products that add a bias take that first."""
    adds = call.name in ("addmm", "baddbmm", "addmv") and len(call.inputs) > 1
    return call.inputs[1 if adds else 0]


def _grows(course: Sequence[Call]) -> bool:
    """Whether one size of the first input grows step by step, and all others stay."""
    shapes = [_data(call).shape for call in course]
    distinct = [shape for at, shape in enumerate(shapes) if at == 0 or shape != shapes[at - 1]]
    if len(distinct) < _FEWEST or len({len(shape) for shape in distinct}) != 1:
        return False
    changes = [
        tuple(after - before for before, after in zip(first, second, strict=True))
        for first, second in pairwise(distinct)
    ]
    grows = [change for change in changes if max(change) > 0]
    if len(grows) < _FEWEST - 1 or len(set(grows)) != 1:
        return False
    change = grows[0]
    size = next(size for size in range(len(change)) if change[size])
    # After its end, the next sequence begins anew: fewer sequences end than grow.
    is_small = change[size] * _FEWEST <= max(shape[size] for shape in distinct)
    return sum(map(bool, change)) == 1 and is_small and len(grows) > len(changes) / 2
