"""Reads the second half of a long file, for who reads the first half in another process.

Both look for the same place: the first one behind the middle at which one event seems to end and
the next to begin. Who reads the first half knows whether one does, since what precedes that place
must be whole events; if not, the other's work is thrown away. So the result is the same as if one
had read all, but for the order in which texts are numbered.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.files.compression import GZIP_MAGIC, Inflated
from tb_perfadvisor.ingest.kineto.columns import Collected, Collector, Columns
from tb_perfadvisor.ingest.kineto.document import Ending, Text, open_document
from tb_perfadvisor.ingest.kineto.schema import event_type
from tb_perfadvisor.trace.assembler import Interned

# Below this, half of a file is read in less time than it takes to hand its columns over.
_WORTH_BYTES: Final = 20_000_000
# The length that gzip tells at its end is wrong where the file breaks off.
_MAX_RATIO: Final = 100
_LENGTH_BYTES: Final = 4

_TEXTS: Final = {
    "events": ("name",),
    "operators": ("shapes", "dtypes", "values", "module", "frame"),
    "runtime": (),
    "device": ("direction",),
    "collectives": ("operation", "dtype", "group"),
    "memory": (),
}


class Rest(Struct, frozen=True):
    """What one process has read for another."""

    start: int
    """Position of its first event."""
    collected: Collected
    texts: list[str]
    """What the columns' indices stand for."""
    ending: Ending


class SecondHalf(Protocol):
    """What another process reads."""

    begins_behind: int
    """The position behind which it begins."""

    def result(self) -> Rest | None:
        """What it has read, once; None where that is of no use."""


def middle_of(stream: BinaryIO) -> int | None:
    """About where the second half of a file begins, inflated; None if it is not worth that."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    is_packed = stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    length = size
    if is_packed and size > _LENGTH_BYTES:
        stream.seek(-_LENGTH_BYTES, os.SEEK_END)
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    stream.seek(0)
    return length // 2 if _WORTH_BYTES <= length <= size * _MAX_RATIO else None


def read_rest(stream: BinaryIO, middle: int) -> Rest | None:
    """Read what follows a position.

    Returns:
        None where it cannot be told without what precedes it.
    """
    text = Text(Inflated(stream))
    document = open_document(text, event_type(text.head))
    if document is None or not document.skip_to(middle):
        return None
    start = document.position
    texts = Interned()
    collector = Collector(texts.__getitem__)
    for events in document.chunks():
        collector.add(events)
        if collector.has_spans:
            return None
    return Rest(start, collector.finish(), list(texts), document.ending)


def both(first: Collected, rest: Rest, intern: Callable[[str], int]) -> Collected:
    """The columns of both halves as one.

    Args:
        first: The first half. Its columns and those of the rest are taken out as they are joined.
        rest: The second half.
        intern: Gives the index of a text, as in the first half.
    """
    second = rest.collected
    # The last stands for index -1: no text.
    texts = np.array([*map(intern, rest.texts), -1], dtype=np.int32)
    categories, category_of = _joined_keys(first.categories, second.categories)
    threads, thread_of = _joined_keys(first.threads, second.threads)
    of_second = {"category": category_of, "thread": thread_of}
    count = first.events["name"].size
    joined = {}
    for table, own in _TEXTS.items():
        columns: Columns = getattr(second, table)
        for name in own:
            columns[name] = texts[columns[name]]
        for name in of_second.keys() & columns.keys():
            columns[name] = of_second[name][columns[name]]
        if "row" in columns:
            columns["row"] = columns["row"] + count
        joined[table] = _concatenated(getattr(first, table), columns)
    return replace(
        first,
        **joined,
        categories=categories,
        threads=threads,
        process_names=first.process_names | second.process_names,
        thread_names=first.thread_names | second.thread_names,
        unknown_categories=dict(
            Counter(first.unknown_categories) + Counter(second.unknown_categories)
        ),
        malformed=first.malformed + second.malformed,
    )


def _joined_keys(first: list[Any], second: list[Any]) -> tuple[list[Any], NDArray[np.int32]]:
    """All keys, each once, and the index that each of the second's has among them."""
    index: dict[Any, int] = {}
    for number, key in enumerate(first):
        index.setdefault(key, number)
    keys = list(first)
    for key in second:
        if key not in index:
            index[key] = len(keys)
            keys.append(key)
    return keys, np.array([index[key] for key in second] or [-1], dtype=np.int32)


def _concatenated(first: Columns, second: Columns) -> Columns:
    if not first[_any(first)].size or not second[_any(second)].size:
        return first if first[_any(first)].size else second
    return {name: np.concatenate((first.pop(name), second.pop(name))) for name in list(first)}


def _any(names: Iterable[str]) -> str:
    return next(iter(names))
