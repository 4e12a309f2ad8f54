"""NVTX ranges of an export, and NCCL's calls.

NCCL names each call (`ncclAllReduce`) and describes its arguments as a payload, whose layout is a
table of the export. `nsys export --include-blobs true` writes the payloads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.host_names import STEP, range_kind
from tb_perfadvisor.ingest.nsight.database import FINISHED, SEPARATOR, Database, Kind, of_type
from tb_perfadvisor.ingest.nsight.host_work import process_of
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, EventKind
from tb_perfadvisor.trace.columns import joined
from tb_perfadvisor.trace.integer_groups import is_in, unique_inverse

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]

_RANGES: Final = f"{of_type('eventType', int)} IN (59, 60) AND {FINISHED}"
"""Ranges by push and pop, and by start and end."""
_START_END: Final = 60
_NUMBERS: Final = regex(r"(?:, seq = (\d{1,18}))?(?:, op_id = \d+)?\Z", re.ASCII)
_SHAPES: Final = ", sizes = ["
_MOST_DIGITS: Final = 18
_OPERATOR: Final = regex(r"(?:\w+::[\w.]+|autograd::.*|\w+Backward\d*|record_param_comms)$")


class Ranges(Struct, frozen=True):
    """Finished ranges, in the order of the file; columns of shape (n,)."""

    start_ns: Int64
    duration_ns: Int64
    thread: Int64
    """`globalTid`."""
    name: Int32
    kind: NDArray[np.uint8]
    """`EventKind`."""
    step: Int32
    sequence: Int64
    """Autograd's number."""
    shapes: Int32
    """String: the shapes of an operator's inputs."""
    may_cross: NDArray[np.bool_]
    """Ranges by start and end may cross others of their thread."""


_BY_ID: Final = -1
"""The place of the meaning of ranges without a text of their own."""


class Spelled(Struct, frozen=True):
    """The parts of a range's text: torch/csrc/profiler/util.cpp (getNvtxStr)."""

    name: str
    added: str
    """What PyTorch added to it."""
    sequence: int
    """Autograd's number; -1 if there is none."""
    shapes: str
    """Of an operator's inputs."""


def spelled(text: str) -> Spelled:
    """The parts of a range's text, such as `aten::mm, seq = 7, op_id = 9, sizes = [[2, 3]]`."""
    rest, shapes = text.partition(", input_op_ids = ")[0], ""
    if rest.endswith("]"):
        rest, found, listed = rest.partition(_SHAPES)
        shapes = f"[{listed}" if found else ""
    numbers = _NUMBERS.search(rest)
    assert numbers is not None  # it may be empty
    name = rest[: numbers.start()]
    return Spelled(name, text[len(name) :], int(numbers[1] or -1), shapes)


def is_operator(name: str, added: str) -> bool:
    """Whether a range is an operator of PyTorch.

    `added` is what PyTorch added to its name: nothing if the program pushed the range itself.
    """
    return bool(added) and (added.startswith(", seq = ") or _OPERATOR.match(name) is not None)


def without_numbers(texts: bytes) -> tuple[bytes, Int64]:
    """Texts with 0 for the numbers that PyTorch added, and autograd's number of each.

    PyTorch numbers the calls of operators, so hardly two texts of a recording are the same. Each
    text ends with `SEPARATOR`. One stays as it was if what PyTorch added has another form; its
    number is -1 then, and if there is none of autograd.
    """
    letters = np.frombuffer(texts, dtype=np.uint8)
    ends = np.flatnonzero(letters == ord(SEPARATOR))
    equal_signs = np.flatnonzero(letters == ord("="))
    numbers = np.full((2, ends.size), -1)
    found, is_kept = letters.copy(), np.ones(letters.size, dtype=bool)
    is_odd = np.zeros(ends.size, dtype=bool)
    for number, label in zip(numbers, (b", op_id = ", b", seq = "), strict=True):
        first = _following(label, letters, equal_signs)
        row, last, value = np.searchsorted(ends, first), first.copy(), np.zeros_like(first)
        for _ in range(_MOST_DIGITS):
            digit = letters[last] - np.uint8(ord("0"))  # other letters become large
            is_digit = digit < 10
            if not is_digit.any():
                break
            is_kept[last[is_digit]] = False
            value = np.where(is_digit, 10 * value + digit, value)
            last += is_digit
        found[first], is_kept[first] = ord("0"), True
        number[row] = value
        is_odd[row] |= (last == first) | ~is_in(letters[last], (ord(SEPARATOR), ord(",")))
        is_odd[row[1:][row[1:] == row[:-1]]] = True
    first = _following(b", input_op_ids = ", letters, equal_signs)
    for at, end in zip(first.tolist(), ends[np.searchsorted(ends, first)].tolist(), strict=True):
        is_kept[at:end] = False
    after = np.append(0, ends + 1)
    for begin, end in zip(after[:-1][is_odd].tolist(), after[1:][is_odd].tolist(), strict=True):
        found[begin:end], is_kept[begin:end] = letters[begin:end], True
    return found[is_kept].tobytes(), np.where(is_odd, -1, numbers[1])


def _following(
    label: bytes, letters: NDArray[np.uint8], equal_signs: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Where texts go on after a label that ends with an equal sign and a space."""
    found = equal_signs[letters[equal_signs + 1] == label[-1]]
    for before, letter in enumerate(reversed(label[:-2]), 1):
        found = found[letters[found - before] == letter]
    after: NDArray[np.intp] = found + 2
    return after


class _Meanings(dict[bytes | int, int]):
    """The place of a range's meaning in `found`, by its text or the text's id."""

    def __init__(self, database: Database, assembler: Assembler) -> None:
        super().__init__({b"": _BY_ID})
        self.found: list[tuple[int, int, int, int, int]] = []
        """Name, kind, step, sequence and shapes."""
        self._strings = database.strings
        self._intern = assembler.intern

    def __missing__(self, key: bytes | int) -> int:
        parts = spelled(
            self._strings.get(key, "") if isinstance(key, int) else key.decode("utf-8", "replace")
        )
        is_annotation = not is_operator(parts.name, parts.added)
        kind = range_kind(parts.name, is_annotation=is_annotation)
        step = STEP.match(parts.name)
        self.found.append(
            (
                self._intern(parts.name or "unnamed range"),
                int(kind),
                int(step[1]) % 2**31 if step else -1,
                parts.sequence,
                self._intern(parts.shapes) if parts.shapes else -1,
            )
        )
        self[key] = place = len(self.found) - 1
        return place


def read_ranges(database: Database, assembler: Assembler) -> Ranges:
    """All finished ranges."""
    meanings_by_text = _Meanings(database, assembler)
    wanted = ("start", "end", "eventType", "globalTid")
    blocks = []
    for table in database.parts_of("NVTX_EVENTS", *wanted):
        text = "text" if database.has(table, "text") else ""
        if not text and not database.has(table, "textId"):
            continue
        read = database.blocks(table, {name: name for name in (*wanted, "textId")}, text, _RANGES)
        for (start, end, event_type, thread, ids), texts in read:
            texts, sequence = without_numbers(texts or SEPARATOR * ids.size)
            found = [meanings_by_text[each] for each in texts.split(SEPARATOR)[:-1]]
            place = np.array(found, dtype=np.int32)
            has_id = place == _BY_ID
            place[has_id] = [meanings_by_text[each] for each in ids[has_id].tolist()]
            blocks.append(
                {
                    "start_ns": start.copy(),
                    "duration_ns": end - start,
                    "thread": thread.copy(),
                    "place": place,
                    "sequence": sequence,
                    "may_cross": event_type == _START_END,
                }
            )
    types = dict.fromkeys(("start_ns", "duration_ns", "thread", "sequence"), np.int64)
    columns = joined(blocks, {**types, "place": np.int32, "may_cross": bool})
    meanings = np.array(meanings_by_text.found, dtype=np.int64).reshape(-1, 5)
    place, sequence = columns.pop("place"), columns["sequence"]
    # Texts by id are few, and keep their numbers.
    np.copyto(sequence, meanings[:, 3][place], where=sequence < 0)
    kind = meanings[:, 1].astype(np.uint8)[place]
    sequence[kind != EventKind.OPERATOR] = -1
    name, step, shapes = (meanings[:, column].astype(np.int32)[place] for column in (0, 2, 4))
    return Ranges(**columns, name=name, kind=kind, step=step, shapes=shapes)


_BACKWARD: Final = regex(r"\w+Backward\d*$|autograd::")


def forward_links(ranges: Ranges, names: Sequence[str]) -> tuple[Int64, Int64]:
    """Link backward nodes to forward operators by autograd's number, within each process.

    Nested operators share a number, because they read it at their start and the innermost one
    consumes it. So the forward operator is the last one that started before the backward node.

    `names` has strings by index. Returns places of backward nodes and of their forward operators.
    """
    known = np.flatnonzero(ranges.sequence >= 0)
    ids, of_known = unique_inverse(ranges.name[known])
    flags = np.array([bool(_BACKWARD.match(names[each])) for each in ids.tolist()], dtype=bool)
    is_backward = flags[of_known]
    process = process_of(ranges.thread[known])
    order = np.lexsort((is_backward, ranges.start_ns[known], ranges.sequence[known], process))
    known, is_backward, process = known[order], is_backward[order], process[order]
    if not known.size:
        return known, known
    last = np.maximum.accumulate(np.where(is_backward, -1, np.arange(known.size)))
    joined = np.flatnonzero(is_backward & (last >= 0))
    forward, backward = known[last[joined]], known[joined]
    is_same = (ranges.sequence[forward] == ranges.sequence[backward]) & (
        process[last[joined]] == process[joined]
    )
    return backward[is_same], forward[is_same]


_CALLS: Final = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "AlltoAll": "all-to-all",
    "AllToAll": "all-to-all",
    "Broadcast": "broadcast",
    "Bcast": "broadcast",
    "Reduce": "reduce",
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
}
NCCL_NAME: Final = regex(rf"p?nccl(?:(?P<call>{'|'.join(_CALLS)})|CommInit\w+)$")
# nvToolsExtPayload.h: bytes of the types of payload entries that NCCL uses.
_ENTRY_BYTES: Final = {5: 4, 18: 8, 22: 8}
# Domain, schema, size of the payload, and where it ends: 8 bytes each.
_HEADER_BYTES: Final = 32
_GROUP, _SIZE, _MEMBERS, _RANK = (
    *("NCCL communicator ID", "Message size [bytes]"),
    *("No. of ranks", "Rank"),
)

Schemas = Mapping[int, tuple[tuple[str, int, int], ...]]
"""Name, place and size of the entries of each schema."""


class NcclCalls(Struct, frozen=True):
    """Calls that communicate, in order of thread and start; columns of shape (n,)."""

    thread: Int64
    """`globalTid`."""
    start_ns: Int64
    operation: tuple[str, ...]
    size_bytes: Int64
    """Of the message; -1 if unknown."""
    group: NDArray[np.uint64]
    """The communicator's id; 0 if unknown."""
    members: Mapping[int, int]
    """Number of ranks of each communicator."""
    ranks: Mapping[int, int]
    """The rank of each `globalPid` in its largest communicator."""


def read_nccl_calls(database: Database) -> NcclCalls:
    """NCCL's calls."""
    table = "NVTX_EVENTS"
    names = {
        key: match for key, text in database.strings.items() if (match := NCCL_NAME.match(text))
    }
    calls: list[tuple[int, int, str, int, int]] = []
    members: dict[int, int] = {}
    largest: dict[int, tuple[int, int]] = {}
    if names and database.has(table, "start", "globalTid", "textId"):
        schemas = _schemas(database)
        columns: dict[str, Kind] = {"globalTid": int, "start": int, "textId": int}
        if database.has(table, "binaryData"):
            columns["binaryData"] = bytes
        ids = f"IN ({', '.join(map(str, names))})"
        # The first condition is fast, but true for reals, too.
        chosen = f'"textId" {ids} AND {of_type("textId", int)} {ids}'
        for rows in database.slices(table, columns, chosen):
            for thread, start, text, *data in rows:
                if thread is None or start is None:
                    continue
                values = _payload(data[0], schemas) if data else {}
                group = values.get(_GROUP, 0)
                if _MEMBERS in values:
                    members[group] = values[_MEMBERS]
                    process = int(process_of(np.int64(thread)))
                    found = (values[_MEMBERS], values.get(_RANK, 0))
                    largest[process] = max(largest.get(process, found), found)
                operation = names[text]["call"]
                if operation:
                    size = values.get(_SIZE, -1)
                    calls.append((thread, start, _CALLS[operation], size, group))
    calls.sort(key=lambda call: call[:2])
    return NcclCalls(
        thread=np.array([call[0] for call in calls], dtype=np.int64),
        start_ns=np.array([call[1] for call in calls], dtype=np.int64),
        operation=tuple(call[2] for call in calls),
        size_bytes=np.array([min(call[3], 2**56) for call in calls], dtype=np.int64),
        group=np.array([call[4] for call in calls], dtype=np.uint64),
        members=members,
        ranks={process: rank for process, (_, rank) in largest.items()},
    )


def _schemas(database: Database) -> Schemas:
    """The entries of each payload schema; of several with one id, the last."""
    found: dict[int, dict[int, tuple[str, int, int]]] = {}
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    columns = {"schemaId": int, "idx": int, "type": int, "name": str, "offset": int}
    for schema, index, kind, name, offset in database.rows(table, columns):
        if kind in _ENTRY_BYTES and name is not None:
            found.setdefault(schema, {})[index] = (name, offset or 0, _ENTRY_BYTES[kind])
    return {schema: tuple(entries.values()) for schema, entries in found.items()}


def _payload(data: Any, schemas: Schemas) -> dict[str, int]:
    """The values of a payload by name; none if it has another form."""
    if isinstance(data, str):  # some versions write hexadecimal digits
        try:
            data = bytes.fromhex(data)
        except ValueError:
            return {}
    if not isinstance(data, bytes) or len(data) < _HEADER_BYTES:
        return {}
    schema, size = (int.from_bytes(data[at : at + 8], "little") for at in (8, 16))
    payload = data[_HEADER_BYTES:][:size]
    return {
        name: int.from_bytes(payload[at : at + width], "little")
        for name, at, width in schemas.get(schema, ())
        if at >= 0 and at + width <= len(payload)
    }
