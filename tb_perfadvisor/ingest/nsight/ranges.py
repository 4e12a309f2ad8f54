"""NVTX ranges: PyTorch's operators, ranges of the program and of its libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.host_names import STEP, range_kind
from tb_perfadvisor.ingest.nsight.database import Database, integers
from tb_perfadvisor.ingest.nsight.processes import process_of
from tb_perfadvisor.trace import Assembler, EventKind
from tb_perfadvisor.trace.integer_groups import unique_inverse

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]

_FINISHED: Final = "eventType IN (59, 60) AND start IS NOT NULL AND end >= start"
"""Ranges by push and pop, and by start and end."""
_START_END: Final = 60
# torch/csrc/profiler/util.cpp (getNvtxStr): the name, and what PyTorch adds to it.
ADDED: Final = re.compile(
    r"(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+)?(?:, sizes = (?P<shapes>\[.*?\]))?"
    r"(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_MOST_DIGITS: Final = 18
_OPERATOR: Final = re.compile(r"(?:\w+::[\w.]+|autograd::.*|\w+Backward\d*|record_param_comms)$")


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


def is_operator(name: str, added: str) -> bool:
    """Whether a range is an operator of PyTorch.

    Args:
        name: Its name.
        added: What PyTorch added to it. Nothing if the program pushed the range itself.
    """
    return bool(added) and (added.startswith(", seq = ") or _OPERATOR.match(name) is not None)


def without_numbers(text: bytes) -> tuple[bytes, int]:
    """A range's text with 0 for the numbers that PyTorch added, and autograd's number of it.

    PyTorch numbers the calls of operators, so hardly two texts of a recording are the same.

    Args:
        text: As PyTorch or the program wrote it.

    Returns:
        The text, as it was if PyTorch added nothing; -1 if there is no number of autograd.
    """
    head, of_call, rest = text.partition(b", op_id = ")
    name, of_autograd, number = head.rpartition(b", seq = ")
    if not of_autograd:
        name, number = head, b"0"
    if of_call:
        call, _, sizes = rest.partition(b", input_op_ids = ")[0].partition(b", ")
    else:
        number, _, sizes = number.partition(b", ")
        call = b"0"
    are_numbers = number.isdigit() and call.isdigit() and len(number) <= _MOST_DIGITS
    if not (of_call or of_autograd) or not are_numbers:
        return text, -1
    parts = (name, b", seq = 0" if of_autograd else b"", b", op_id = 0" if of_call else b"")
    text = b"".join((*parts, b", " + sizes if sizes else b""))
    return text, int(number) if of_autograd else -1


class _Spelled(dict[Any, int]):
    """The place of a range's meaning in `meanings`, by its text or the text's id."""

    def __init__(self, database: Database, assembler: Assembler) -> None:
        super().__init__()
        self.meanings: list[tuple[int, int, int, int, int]] = []
        """Name, kind, step, sequence and shapes."""
        self._strings = database.strings
        self._intern = assembler.intern

    def __missing__(self, key: Any) -> int:
        is_text = isinstance(key, bytes)
        text = key.decode("utf-8", "replace") if is_text else self._strings.get(key, "")
        match = ADDED.search(text)
        assert match is not None  # it may be empty
        name = text[: match.start()]
        is_annotation = not is_operator(name, match[0])
        kind = range_kind(name, is_annotation=is_annotation)
        step = STEP.match(name)
        self.meanings.append(
            (
                self._intern(name or "unnamed range"),
                int(kind),
                int(step[1]) % 2**31 if step else -1,
                int(match["sequence"]) if match["sequence"] else -1,
                self._intern(match["shapes"]) if match["shapes"] else -1,
            )
        )
        self[key] = place = len(self)
        return place


def read_ranges(database: Database, assembler: Assembler) -> Ranges:
    """All finished ranges.

    Raises:
        UnreadableProfileError: If the database is damaged.
    """
    table, spelled = "NVTX_EVENTS", _Spelled(database, assembler)
    # As bytes, texts are decoded once for each meaning.
    spellings = {"text": "CAST(text AS BLOB)", "textId": "textId"}
    text = [spelling for name, spelling in spellings.items() if database.has(table, name)]
    columns_of, places, sequences = [], [], []
    if database.has(table, "start", "end", "eventType", "globalTid") and text:
        spelling = f"ifnull({', '.join(text)})" if len(text) == 2 else text[0]
        for rows in database.slices(
            f"start, end, eventType, globalTid, {spelling}", table, _FINISHED
        ):
            *columns, keys = zip(*rows, strict=True)
            columns_of.append(np.array([integers(column) for column in columns]))
            texts = [without_numbers(key) if type(key) is bytes else (key, -1) for key in keys]
            places.append(np.array([spelled[text] for text, _ in texts], dtype=np.int32))
            sequences.append(np.array([number for _, number in texts], dtype=np.int64))
    none = np.empty((4, 0), np.int64)
    start, end, event_type, thread = np.concatenate([none, *columns_of], axis=1)
    meanings = np.array(spelled.meanings, dtype=np.int64).reshape(-1, 5)
    place = np.concatenate([np.empty(0, np.int32), *places])
    sequence = np.concatenate([np.empty(0, np.int64), *sequences])
    # Texts by id are few, and keep their numbers.
    sequence = np.where(sequence >= 0, sequence, meanings[:, 3][place])
    kind = meanings[:, 1].astype(np.uint8)[place]
    name, step, shapes = (meanings[:, column].astype(np.int32)[place] for column in (0, 2, 4))
    return Ranges(
        start_ns=start,
        duration_ns=end - start,
        thread=thread,
        name=name,
        kind=kind,
        step=step,
        sequence=np.where(kind == EventKind.OPERATOR, sequence, -1),
        shapes=shapes,
        may_cross=event_type == _START_END,
    )


_BACKWARD: Final = re.compile(r"\w+Backward\d*$|autograd::")


def forward_links(ranges: Ranges, names: Sequence[str]) -> tuple[Int64, Int64]:
    """Link backward nodes to forward operators by autograd's number, within each process.

    Nested operators share a number, because they read it at their start and the innermost one
    consumes it. So the forward operator is the last one that started before the backward node.

    Args:
        ranges: All ranges.
        names: Strings by index.

    Returns:
        Places of backward nodes and of their forward operators.
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
