"""Which calls need the results of which others, and how much of a result is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tb_perfadvisor.instrument.examination.calls import PRODUCTS, Call, Operand, Place
from tb_perfadvisor.instrument.examination.noted import MOST, Steps, noted, shapes_of
from tb_perfadvisor.machine.facts import Observed

_FEWEST: Final = 3
"""Two calls at one line may be a pair: of real and generated samples, of two views."""
_LEAST_SHARE: Final = 0.05
_MOST_USED: Final = 0.6
"""Where more of a result is read, computing less saves little."""
_ROWWISE: Final = PRODUCTS | {
    *("add", "sub", "mul", "div", "relu", "gelu", "tanh", "sigmoid", "silu", "softmax"),
    *("_softmax", "_log_softmax", "native_layer_norm", "layer_norm", "dropout", "clone", "cat"),
    *("_to_copy", "native_dropout", "_unsafe_view", "leaky_relu", "elu", "hardswish"),
}
"""Operators of which a part of the result needs a part of the inputs."""
_GROWING: Final = PRODUCTS | {"embedding", "convolution", "mkldnn_rnn_layer", "native_layer_norm"}


def independent(steps: Steps) -> list[Observed]:
    """Lines that call the same operators several times, where no call needs another's result."""
    replaced: dict[Place, list[Call]] = defaultdict(list)
    times: dict[Place, float] = {}
    forward = sum(call.kind == "forward" for step in steps for call in step)
    extra: dict[Place, float] = defaultdict(float)
    for step in steps:
        calls = [call for call in step if call.kind == "forward"]
        for group, levels in _levels(calls):
            at_once = len(group) / levels
            place = group[0].place
            if place is None or at_once < _FEWEST or group[0].in_recurrent_layer:
                continue
            replaced[place].extend(group)
            extra[place] += len(group) - levels
            if not group[0].is_view and any(each.shape for each in group[0].inputs):
                times[place] = max(times.get(place, 0.0), at_once)
    found = []
    for place, calls in replaced.items():
        share = extra[place] / max(forward, 1)
        if share < _LEAST_SHARE or place not in times:
            continue
        costliest = max((call for call in calls if not call.is_view), key=lambda call: call.ns)
        path, line, function = place
        found.append(
            Observed(
                kind="independent",
                operator=f"aten::{costliest.name}",
                path=path,
                line=line,
                function=function,
                shapes=shapes_of(costliest),
                calls=round(len(calls) / max(len(steps), 1)),
                share=min(share, 1.0),
                amount=times[place],
                elements=max((each.size for each in costliest.inputs), default=0),
            )
        )
    return sorted(found, key=lambda each: -each.share)[:MOST]


def _levels(calls: Sequence[Call]) -> list[tuple[list[Call], int]]:
    """Calls of the same operator on the same shapes at the same line.

    Each group with the length of its longest chain of calls that need one another.
    """
    groups: dict[object, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        key = (call.place, call.name, tuple(each.shape for each in call.inputs), call.scalars)
        groups[key].append(number)
    wanted = {
        number: key
        for key, numbers in groups.items()
        if len(numbers) >= _FEWEST
        for number in numbers
    }
    # For each result, how many calls of each group it needs one after the other.
    depth: dict[int, dict[object, int]] = {}
    longest: dict[object, int] = defaultdict(int)
    for number, call in enumerate(calls):
        merged: dict[object, int] = {}
        for each in call.inputs:
            for needed, value in depth.get(each.storage, {}).items():
                merged[needed] = max(merged.get(needed, 0), value)
        group = wanted.get(number)
        if group is not None:
            merged[group] = merged.get(group, 0) + 1
            longest[group] = max(longest[group], merged[group])
        for each in call.outputs:
            depth[each.storage] = merged
    return [
        ([calls[number] for number in numbers], longest[key])
        for key, numbers in groups.items()
        if key in longest
    ]


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


def unused(steps: Steps) -> list[Observed]:
    """Results of products and recurrent layers of which only a part is read."""
    found: list[tuple[Call, float]] = []
    for step in steps:
        found += _partly_read([call for call in step if call.kind == "forward"])
    used = {id(call): share for call, share in found}

    def amount(calls: Sequence[Call]) -> float:
        return max(used[id(call)] for call in calls)

    return noted("unused", steps, [call for call, _ in found], amount=amount)


def _partly_read(calls: Sequence[Call]) -> list[tuple[Call, float]]:
    """Calls that could compute less, with the share of their result that is read."""
    # Who wrote each memory last, and how much of each call's result others read.
    writer: dict[int, int] = {}
    readers: dict[int, list[tuple[int, float]]] = defaultdict(list)
    sizes: dict[int, int] = {}
    for number, call in enumerate(calls):
        if _is_view(call):
            continue
        for each in call.inputs:
            source = writer.get(each.storage)
            if source is not None and source != number:
                readers[source].append((number, each.size / max(sizes[source], 1)))
        sizes[number] = max((each.size for each in call.outputs), default=1)
        for each in call.outputs:
            before = writer.get(each.storage)
            is_part = any(each.storage == one.storage for one in call.inputs)
            # What changes a part of a result in place leaves the rest as it was.
            if not (is_part and before is not None and each.size < sizes[before]):
                writer[each.storage] = number
    share: dict[int, float] = {}
    for number in range(len(calls) - 1, -1, -1):
        if _is_view(calls[number]):
            continue
        parts = readers.get(number)
        if parts is None:
            share[number] = 1.0  # read by something that is no operator, or by nothing
            continue
        total = 0.0
        for reader, part in parts:
            passes_on = calls[reader].name in _ROWWISE
            total += min(part, 1.0) * (share[reader] if passes_on else 1.0)
        share[number] = min(total, 1.0)
    return [
        (call, share[number])
        for number, call in enumerate(calls)
        if not _is_view(call) and share[number] <= _MOST_USED and _could_compute_less(call)
    ]


def _is_view(call: Call) -> bool:
    return call.is_view or call.name in ("unsafe_split", "unsafe_split_with_sizes", "_unsafe_view")


def _could_compute_less(call: Call) -> bool:
    if call.name == "mkldnn_rnn_layer":
        return call.is_reverse
    if call.in_recurrent_layer:
        return False
    return call.name in PRODUCTS and max((len(each.shape) for each in call.outputs), default=0) >= 2
