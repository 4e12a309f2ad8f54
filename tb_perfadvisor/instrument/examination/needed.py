"""Which part of each result the program needs, followed back from what reads it, and which not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, NamedTuple

from msgspec.structs import replace

from tb_perfadvisor.instrument.examination.calls import (
    CALL_NS,
    LOSSES,
    MASKING,
    PRODUCTS,
    Call,
    Operand,
    Steps,
    all_calls,
    noted,
)
from tb_perfadvisor.machine.facts import Observed

_SAME_ROWS: Final = frozenset(
    {"native_layer_norm", "layer_norm", "native_dropout", "dropout", "clone", "_to_copy", "cat"}
)
"""Operators that are no pointwise ones, and whose rows each need the same row of the input."""
_SOFTMAX: Final = frozenset({"_softmax", "_log_softmax", "softmax", "log_softmax"})
_SELECTING: Final = frozenset({"index", "index_select", "gather", "masked_select", "take"})
_REDUCING: Final = frozenset({"sum", "mean", "amax", "amin", "max", "min", "argmax", "logsumexp"})
_MADE_AS_MASK: Final = frozenset({"bernoulli_", "bernoulli", "native_dropout"})
"""Dropout: what is dropped is not known before."""
_MOST_USED: Final = 0.6
"""Where more of a result is needed, computing less saves little."""
_WHOLE_ONLY: Final = frozenset(
    {"mkldnn_rnn_layer", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "copy_", "cat"}
    | {"embedding", "topk", "native_batch_norm", "constant_pad_nd", "sort", "argsort", "randperm"}
)
"""Operators that need their whole input for a part of the result, or that take next to no time."""


class Need(NamedTuple):
    """The parts of a result that are needed; both are 1 where nothing is known."""

    rows: float
    """Of all its rows, whose length is the last size."""
    columns: float
    """Of each row."""
    is_direct: bool = True
    """Whether no sum of two paths lies between the result and the selection."""
    selection: tuple[int, int] | None = None
    """The call that selects, and the number of its input; None if none does."""

    @property
    def share(self) -> float:
        """The needed part of all elements."""
        return self.rows * self.columns


WHOLE: Final = Need(1.0, 1.0)
NOTHING: Final = Need(0.0, 0.0)
"""Of a result that no operator reads before its memory is used again."""
_INNER: Final = frozenset({"add", "add_", "convolution", "conv1d"})
"""What a block of a model ends with. Other results may be read as numbers, by NumPy."""


def unread(steps: Steps, freed: frozenset[int]) -> list[Observed]:
    """Operators of which nothing or a part of the result is needed, forward and backward.

    What reads the results of the last step, if anything, was not seen.
    """
    calls = [*all_calls(steps)]
    steps = steps[:-1] if len(steps) > 1 else steps
    known = {id(call) for call in all_calls(steps)}
    found_needs = [(call, need) for call, need in needs(calls, freed) if id(call) in known]
    trains = any(call.kind == "backward" for call in calls)
    found: list[Call] = []
    used: dict[int, float] = {}
    nodes: dict[int, float] = {}
    for call, need in found_needs:
        # What has no gradient, or is not trained, something else than operators may read.
        is_unread = need.share == 0.0 and trains and call.has_node
        share = 0.0 if is_unread else _needed_share(call, need)
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
    return replace(call, ns=max(call.ns - CALL_NS, 0))


def _needed_share(call: Call, need: Need) -> float:
    """The part of a call's work that is needed."""
    if need.share == 0.0:
        return 1.0
    if call.in_recurrent_layer or call.name in _WHOLE_ONLY:
        return 1.0
    if call.name in LOSSES:
        return call.counted if call.counted is not None else 1.0
    if not need.is_direct or max((len(each.shape) for each in call.outputs), default=0) < 2:
        return 1.0  # the block before needs other changes than to select first
    is_rowwise = call.name in PRODUCTS or call.is_pointwise or call.name.endswith("softmax")
    return need.share if is_rowwise else 1.0


def needs(calls: Sequence[Call], freed: frozenset[int]) -> Iterator[tuple[Call, Need]]:
    """Each forward call that computes something, with what of its result is needed.

    A result that no operator reads is needed, because something else may read it: NumPy, or the
    program later. But NumPy takes no tensor with a gradient before `detach`, so if that was not
    called, and the memory is free again, nothing has read it.
    """
    readers, made_by = _readers(calls)
    ran = {call.sequence for call in calls if call.kind == "backward"}
    handed_out = {
        each.storage
        for call in calls
        if call.hands_out or (call.kind != "forward" and call.computes)
        for each in call.inputs
    }
    found: dict[int, Need] = {}
    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        if call.kind != "forward" or not call.computes:
            continue
        parts = [
            _of_reader(calls[reader], at, found[reader], made_by[reader], reader, call)
            for reader, at in readers.get(number, ())
        ]
        is_known = call.name in _INNER or all(each.has_gradient for each in call.outputs)
        need = _together(parts) if parts else NOTHING if is_known else WHOLE
        may_be_read = not freed.issuperset(each.storage for each in call.outputs)
        may_be_read |= any(each.storage in handed_out for each in call.outputs)
        is_of_loss = call.has_node and call.made in ran
        found[number] = WHOLE if not need.share and (may_be_read or is_of_loss) else need
    for number in sorted(found):
        yield calls[number], found[number]


def _of_reader(
    reader: Call, at: int, need: Need, made_by: tuple[str, ...], number: int, source: Call
) -> Need:
    """What a reader needs of a call's result."""
    part = _of_input(reader, at, need, made_by)
    if part.share == 0.0:
        return NOTHING
    operand = reader.inputs[at]
    read = (each.shape for each in source.outputs if each.storage == operand.storage)
    part = _of_operand(part, operand.shape, next(read, _result(source)))
    inherited = need.selection if need.share < 1.0 else None
    own = None if part.share == 1.0 else (number, at)
    return part._replace(selection=inherited or own)


def _readers(
    calls: Sequence[Call],
) -> tuple[dict[int, list[tuple[int, int]]], dict[int, tuple[str, ...]]]:
    """For each call, which calls read its result as which input, and what made their inputs."""
    writer: dict[int, int] = {}
    readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
    made_by: dict[int, tuple[str, ...]] = {}
    for number, call in enumerate(calls):
        if call.kind != "forward" or not call.computes:
            continue
        sources = [writer.get(each.storage) for each in call.inputs]
        made_by[number] = tuple("" if s is None else calls[s].name for s in sources)
        for at, source in enumerate(sources):
            if source is not None:
                readers[source].append((number, at))
        for each in call.outputs:
            before = writer.get(each.storage)
            # What changes a part of a result in place leaves the rest as it was.
            if before is None or each.size >= _size(calls[before]):
                writer[each.storage] = number
    return readers, made_by


def _result(call: Call) -> tuple[int, ...]:
    return max((each.shape for each in call.outputs), key=prod, default=())


def _size(call: Call) -> int:
    return prod(_result(call))


def _together(parts: Sequence[Need]) -> Need:
    """What several readers need: at most the sum of what each needs.

    If one selection is behind all of them, they need the same part, some of them more of it.
    """
    parts = [part for part in parts if part.share > 0.0] or [NOTHING]
    if len(parts) == 1:
        return parts[0]
    if any(part.share == 1.0 for part in parts):
        return WHOLE
    is_direct = all(part.is_direct for part in parts)
    rows, columns = [part.rows for part in parts], [part.columns for part in parts]
    selection = parts[0].selection
    if all(part.selection == selection for part in parts):
        return Need(max(rows), max(columns), is_direct, selection)
    return Need(
        1.0 if min(rows) == 1.0 else min(1.0, sum(rows)),
        1.0 if min(columns) == 1.0 else min(1.0, sum(columns)),
        is_direct,
        selection,
    )


def _of_input(call: Call, at: int, need: Need, made_by: tuple[str, ...]) -> Need:
    """What a call needs of one of its inputs, if so much of its result is needed."""
    operand, result = call.inputs[at], _result(call)
    if need.share == 0.0:
        return NOTHING
    if call.name in LOSSES:
        counted = call.counted if call.counted is not None and at == 0 else 1.0
        return Need(counted, 1.0)
    if call.name in _SELECTING:
        return _of_selection(operand, at, result, need)
    if call.name in PRODUCTS:
        data = 1 if call.name in ("addmm", "baddbmm", "addmv") else 0
        return Need(need.rows, 1.0, need.is_direct) if at == data else WHOLE
    if call.name in _SOFTMAX:
        return Need(need.rows, 1.0, need.is_direct) if _is_over_last(call) else WHOLE
    if call.name in _REDUCING:
        is_row_by_row = result in (operand.shape[:-1], (*operand.shape[:-1], 1))
        return Need(need.share, 1.0, need.is_direct) if is_row_by_row else WHOLE
    is_known = call.is_pointwise or call.name in _SAME_ROWS
    if not is_known or (call.writes and operand.shape != result):
        return WHOLE
    if call.name == "cat":
        if operand.shape[-1:] == result[-1:] and operand.shape != result:
            part = need.rows * _size(call) / max(operand.size, 1)  # at most
            return need if need == WHOLE else need._replace(rows=min(1.0, part))
        return Need(need.rows, 1.0, need.is_direct)
    if operand.shape != result:
        return WHOLE  # it is repeated for several elements of the result
    if call.name in MASKING:
        need = need._replace(rows=need.rows * _unmasked(call, at, made_by))
    if call.name == "native_layer_norm":
        return need._replace(columns=1.0)
    others = sum(1 for one in call.inputs if one.shape == result)
    is_sum = call.name in ("add", "add_", "sub") and others > 1
    return need._replace(is_direct=need.is_direct and not is_sum)


def _of_selection(operand: Operand, at: int, result: tuple[int, ...], need: Need) -> Need:
    if at > 0 or not operand.shape:
        return WHOLE
    part = min(1.0, prod(result) * need.rows / max(operand.size, 1))
    if result[-1:] == operand.shape[-1:]:
        return Need(part, need.columns)
    rows = operand.size // operand.shape[-1]
    if prod(result) >= rows:  # a few of each row
        return Need(need.rows, min(1.0, prod(result) / operand.size))
    return Need(part, 1.0)


def _unmasked(call: Call, at: int, made_by: tuple[str, ...]) -> float:
    """The share of an input's elements that a mask lets through."""
    mask = 0 if call.name == "where" else 1 - at
    if mask == at or mask >= len(call.inputs) or made_by[mask] in _MADE_AS_MASK:
        return 1.0
    zeros = call.inputs[mask].zeros
    shape = call.inputs[mask].shape
    is_by_row = shape[-1:] == (1,) or len(_result(call)) == 1 or shape == _result(call)
    if zeros is None or not is_by_row:
        return 1.0
    keeps_zeros = call.name in ("masked_fill", "masked_fill_") or (call.name == "where" and at == 2)
    return zeros if keeps_zeros else 1.0 - zeros


def _is_over_last(call: Call) -> bool:
    dims = [each for each in call.numbers if isinstance(each, int)]
    return bool(dims) and dims[0] in (-1, len(_result(call)) - 1)


def _of_operand(need: Need, shape: tuple[int, ...], source: tuple[int, ...]) -> Need:
    """What of a result is needed, if a reader sees it in another shape and needs so much of it."""
    if shape == source or not shape or not source:
        return need if shape == source else _of_scalar(source)
    size, whole = prod(shape), max(prod(source), 1)
    part = min(1.0, size / whole)
    if size >= whole:
        if shape[-1] == source[-1]:
            return need
        is_turned = len(shape) > 1 and len(source) > 1 and shape[-2:] == source[-2:][::-1]
        if is_turned:
            return Need(need.columns, need.rows, need.is_direct)
        is_column = shape[-1] == 1 or source[-1] == 1 or len(shape) == 1 or len(source) == 1
        # A loss of each row, as a vector, a column or a table.
        return need if is_column and _is_of_rows(shape, source) else WHOLE
    if shape == source[:-1]:
        return Need(need.share, 1.0 / source[-1], need.is_direct)
    if shape[:-1] == source[:-1]:
        return Need(need.rows, part * need.columns, need.is_direct)
    return Need(part * need.rows, need.columns, need.is_direct)


def _of_scalar(source: tuple[int, ...]) -> Need:
    size = prod(source)
    return Need(1.0 / size, 1.0) if size > 1 else WHOLE


def _is_of_rows(shape: tuple[int, ...], source: tuple[int, ...]) -> bool:
    """Whether both hold one value for each of the same elements, in any layout of the rows."""
    return min(len(shape), len(source)) == 1 or 1 in (shape[-1], source[-1])
