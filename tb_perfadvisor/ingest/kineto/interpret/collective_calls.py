"""Completes collectives from the annotation around their launch."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kineto.interpret.collectives import OPERATIONS, shaped_bytes
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.tables import Int32

_CALL: Final = re.compile(r"(?:nccl|rccl|ucc|xccl|oneccl|hccl|mccl):(\w+)$")
_LEVELS: Final = 3
"""Levels above the runtime call in which to look for the annotation."""
_OF_SHARDS: Final = ("all-gather", "gather")
"""Operations in which the input of each rank is one part of the whole."""


def describe_by_calls(trace: Trace) -> Trace:
    """Take the operation and size of each collective from the call that launched it.

    NCCL implements several operations by sending and receiving: the kernel of an all-to-all is
    called `SendRecv`, and only the annotation around its launch (`nccl:all_to_all`) names the
    operation. Versions without sizes in kernels record the tensors with that annotation.
    """
    table = trace.collectives
    if not table.row.size:
        return trace
    strings = list(trace.strings)
    call, called = _calls(trace, strings)
    has_call = call >= 0
    operation = table.operation.copy()
    operation[has_call] = called[trace.events.name[call[has_call]]]
    size, sent, dtype = table.size_bytes.copy(), table.sent_bytes.copy(), table.dtype.copy()
    unsized = np.flatnonzero(has_call & (size < 0))
    operators = trace.operators
    if unsized.size and operators.row.size:
        slot = np.searchsorted(operators.row, call[unsized])
        slot[slot == operators.row.size] = 0
        is_known = operators.row[slot] == call[unsized]
        bytes_of: dict[tuple[int, int], int] = {}
        for index, at in zip(unsized[is_known].tolist(), slot[is_known].tolist(), strict=True):
            pair = (int(operators.shapes[at]), int(operators.dtypes[at]))
            if pair not in bytes_of:
                bytes_of[pair] = shaped_bytes(trace.text(pair[0]), trace.text(pair[1]))
            sent[index] = bytes_of[pair]
            ranks = int(table.group_size[index])
            if strings[operation[index]] not in _OF_SHARDS:
                size[index] = bytes_of[pair]
            elif ranks > 0 and bytes_of[pair] >= 0:
                size[index] = bytes_of[pair] * ranks
            if dtype[index] < 0:
                dtype[index] = pair[1]
    columns = {"operation": operation, "size_bytes": size, "sent_bytes": sent, "dtype": dtype}
    for column in columns.values():
        column.setflags(write=False)
    return replace(trace, strings=tuple(strings), collectives=replace(table, **columns))


def _calls(trace: Trace, strings: list[str]) -> tuple[Int32, NDArray[np.int32]]:
    """The annotation around each collective's launch, and the operation of each annotation.

    Args:
        trace: The trace.
        strings: The trace's strings; missing names of operations are added.

    Returns:
        Rows of annotations (-1 for none), shape (collectives,); and for each string the string
        index of its operation (-1 if it is not a call).
    """
    ids = {text: index for index, text in enumerate(strings)}
    called = np.full(len(strings) + 1, -1, dtype=np.int32)
    for index, text in enumerate(trace.strings):
        match = _CALL.match(text)
        if match and match[1] in OPERATIONS:
            name = OPERATIONS[match[1]]
            if name not in ids:
                ids[name] = len(strings)
                strings.append(name)
            called[index] = ids[name]
    events = trace.events
    around = events.launched_by[trace.collectives.row]
    call = np.full(around.size, -1, dtype=np.int32)
    for _ in range(_LEVELS):
        is_call = (around >= 0) & (call < 0)
        is_call[is_call] = called[events.name[around[is_call]]] >= 0
        call[is_call] = around[is_call]
        around = np.where(around >= 0, events.parent[around], -1)
    return call, called
