"""Collectives, and the calls that start them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.host_names import host_collective_operation
from tb_perfadvisor.ingest.kernels.collective_names import collective_dtype, collective_operation
from tb_perfadvisor.ingest.kineto.decode.columns import KinetoColumns
from tb_perfadvisor.ingest.kineto.interpret.header import ProcessGroups
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32

Int64 = NDArray[np.int64]

# Bytes per element, by the names of c10's scalar types (c10/core/ScalarType.h) and of the C++ types
# in `Input type`.
_ITEM_BYTES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "short": 2,
    "short int": 2,
    "half": 2,
    "bfloat16": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "long int": 8,
    "double": 8,
    "complexfloat": 8,
    "c10::complex<float>": 8,
    "complexdouble": 16,
    "c10::complex<double>": 16,
}
# Names in `Collective name` and annotations, and the names in the trace model.
OPERATIONS = {
    "allreduce": "all-reduce",
    "allreduce_coalesced": "all-reduce",
    "all_reduce": "all-reduce",
    "allreduce_sparse": "all-reduce",
    "allgather": "all-gather",
    "all_gather": "all-gather",
    "_allgather_base": "all-gather",
    "_all_gather_base": "all-gather",
    "allgather_coalesced": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "all_to_allv": "all-to-all",
    "alltoall_base": "all-to-all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}


def operation_name(text: str) -> str:
    """The trace model's name of `_allgather_base` (`all-gather`); unknown names get hyphens."""
    name = text.strip().lower()
    name = name.removeprefix("nccl:").removeprefix("gloo:")
    return OPERATIONS.get(name, name.strip("_").replace("_", "-") or "unknown")


def item_bytes(dtype: str) -> int:
    """Bytes per element of a type as PyTorch names it; -1 if unknown."""
    return _ITEM_BYTES.get(dtype.strip().lower(), -1)


def add_collectives(
    assembler: Assembler,
    collected: KinetoColumns,
    kind: NDArray[np.uint8],
    texts: Sequence[str],
    groups: ProcessGroups,
) -> None:
    """Add attributes of collectives on the device and on the host.

    `kind` has the kind of every event, `texts` the strings by index, and `groups` the process
    groups that the header lists.
    """
    _add_device_collectives(assembler, collected, kind, texts, groups)
    _add_host_collectives(assembler, collected, kind, texts, groups.only_size)


def _add_device_collectives(
    assembler: Assembler,
    collected: KinetoColumns,
    kind: NDArray[np.uint8],
    texts: Sequence[str],
    groups: ProcessGroups,
) -> None:
    device = collected.device
    is_collective = kind[device["row"]] == EventKind.COLLECTIVE
    if not is_collective.any():
        return
    rows = device["row"][is_collective]
    described = collected.collectives
    # Use the kernel's own arguments, or those of the `record_param_comms` that launched it, which
    # has the same external id.
    slot = _find(described["row"], rows)
    by_id = _find(described["external_id"], device["external_id"][is_collective])
    slot = np.where(slot >= 0, slot, by_id)
    sent, received = _sizes(collected, texts)
    sizes = np.maximum(sent, received)
    has = slot >= 0

    def described_or(name: str, default: Int64 | int) -> Int64:
        column = described[name]
        return np.where(has, column[slot] if column.size else -1, default)

    names, of_row = unique_inverse(collected.events["name"][rows])
    operation_of = [collective_operation(texts[name]) for name in names.tolist()]
    by_name = assembler.intern_all(operation_of)[of_row]
    dtype_of = [collective_dtype(texts[name]) for name in names.tolist()]
    has_type = np.array([*map(bool, dtype_of)])[of_row]
    dtype = np.where(has_type, assembler.intern_all(dtype_of)[of_row], -1)
    operation = _interned_operations(assembler, described["operation"], texts)
    group, description = described_or("group", -1), described_or("description", -1)
    listed = described_or("ranks", -1)
    assembler.add_collectives(
        rows,
        operation=np.where(has, operation[slot] if operation.size else -1, by_name),
        size_bytes=np.where(has, sizes[slot] if sizes.size else -1, -1),
        sent_bytes=np.where(has, sent[slot] if sent.size else -1, -1),
        dtype=described_or("dtype", dtype),
        group_size=described_or("group_size", groups.only_size),
        group=group,
        description=np.where(
            description >= 0,
            description,
            _from_header(assembler, group, texts, groups.descriptions),
        ),
        ranks=np.where(listed >= 0, listed, _from_header(assembler, group, texts, groups.ranks)),
        sequence=described_or("sequence", -1),
    )


def _add_host_collectives(
    assembler: Assembler,
    collected: KinetoColumns,
    kind: NDArray[np.uint8],
    texts: Sequence[str],
    group_size: int,
) -> None:
    """Take the operation from the name (gloo, MPI), the size from shapes and types."""
    operators = collected.operators
    is_collective = kind[operators["row"]] == EventKind.HOST_COLLECTIVE
    if not is_collective.any():
        return
    rows = operators["row"][is_collective]
    names = collected.events["name"][rows].tolist()
    pairs = list(
        zip(
            operators["shapes"][is_collective].tolist(),
            operators["dtypes"][is_collective].tolist(),
            strict=True,
        )
    )
    size_of = {pair: shaped_bytes(texts[pair[0]], texts[pair[1]]) for pair in set(pairs)}
    assembler.add_collectives(
        rows,
        operation=assembler.intern_all([host_collective_operation(texts[n]) for n in names]),
        size_bytes=[size_of[pair] for pair in pairs],
        sent_bytes=[size_of[pair] for pair in pairs],
        dtype=operators["dtypes"][is_collective],
        group_size=group_size,
    )


def _from_header(
    assembler: Assembler, group: Int64, texts: Sequence[str], stated: Mapping[str, str]
) -> NDArray[np.int32]:
    """What the header states about each collective's group, by its name; -1 for nothing."""
    unique, of_row = unique_inverse(group)
    found = [stated.get(texts[index], "") for index in unique.tolist()]
    interned = assembler.intern_all(found)
    return np.where([*map(bool, found)], interned, -1).astype(np.int32)[of_row]


def _interned_operations(
    assembler: Assembler, column: Int64, texts: Sequence[str]
) -> NDArray[np.int32]:
    unique, of_row = unique_inverse(column)
    names = [operation_name(texts[index]) for index in unique.tolist()]
    return assembler.intern_all(names)[of_row]


def _sizes(collected: KinetoColumns, texts: Sequence[str]) -> tuple[Int64, Int64]:
    """Bytes of the input and output of each described collective; -1 if unknown."""
    described = collected.collectives
    unique, of_row = unique_inverse(described["dtype"])
    width = np.array([item_bytes(texts[i]) for i in unique.tolist()], dtype=np.int64)[of_row]

    def bytes_of(elements: Int64) -> Int64:
        is_known = (width > 0) & (elements >= 0) & (elements < 2**48)
        return np.where(is_known, np.where(is_known, elements, 0) * width, -1)

    return bytes_of(described["in_elements"]), bytes_of(described["out_elements"])


def shaped_bytes(shapes: str, dtypes: str) -> int:
    """Bytes of tensors with shapes `[[598282]]` and types `float`; -1 if any is unknown."""
    if not shapes or not dtypes:
        return -1
    try:
        dims = msgspec.json.decode(shapes, type=list[list[int]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return -1
    widths = [item_bytes(dtype) for dtype in dtypes.split(";")]
    if len(widths) != len(dims) or min(widths, default=-1) < 0:
        return -1
    total = 0
    for size, width in zip(dims, widths, strict=True):
        elements = 1
        for extent in size:
            elements *= max(extent, 0)
        total += elements * width
    return total if total < 2**62 else -1


def _find(keys: Int64, wanted: Int64) -> Int64:
    """The index of each wanted key (not negative) among the keys; -1 if missing."""
    if keys.size == 0:
        return np.full(wanted.size, -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    slot = np.minimum(np.searchsorted(keys[order], wanted), keys.size - 1)
    index = order[slot]
    return np.where((keys[index] == wanted) & (wanted >= 0), index, -1)


_CALL: Final = regex(r"(?:nccl|rccl|ucc|xccl|oneccl|hccl|mccl):(\w+)$")
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

    Missing names of operations are added to `strings`. Returns rows of annotations (-1 for none),
    shape (collectives,); and for each string the string index of its operation (-1 if it is not a
    call).
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
