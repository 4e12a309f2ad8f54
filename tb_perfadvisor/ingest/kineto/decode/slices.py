"""Decodes the events of a large file in several processes.

This process reads and inflates the file, and cuts its text where it would cut it alone. Pieces of
some slices go to other processes as files, and come back as columns in the same files. While the
others are busy, this process decodes pieces, too. A slice that is damaged, the last one, and one
whose events begin and end apart is decoded alone. So a trace is the same whatever the number of
processes and pieces.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, wait
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.ingest.files.budget import json_items
from tb_perfadvisor.ingest.format import Slicing
from tb_perfadvisor.ingest.json_trace.document import (
    UNREADABLE,
    Document,
    Place,
    Read,
)
from tb_perfadvisor.ingest.kineto.decode.columns import Column, Columns, KinetoCollector, Portion
from tb_perfadvisor.ingest.kineto.decode.schema import Event
from tb_perfadvisor.trace.assembler import Interned

# With a second piece, a process goes on while this one is busy.
_PIECES_PER_PROCESS = 2
# A file of which so many slices had to be decoded here is better read by one process.
_MOST_DECODED_HERE = 16


class DecodedSlice(Struct, frozen=True):
    """What a slice held."""

    events: int
    size_bytes: int
    json_items: int


class DecodedPiece(Struct, frozen=True):
    """What a process has decoded of a piece."""

    slices: tuple[DecodedSlice, ...]
    """Those before the first that cannot be decoded."""
    portion: Portion
    """Its columns are in the file, if it has been one."""
    layout: tuple[tuple[str, str, str, int], ...]
    """Table, name, type and length of each column, in the order of the file."""


def decode_piece(path: Path, ends: Sequence[int], event: type[Event]) -> DecodedPiece:
    """Decode the slices of a file, and replace them by their columns."""
    with path.open("rb") as file:
        decoded = _decoded(file.read(ends[-1]), ends, event)
    columns, decoded.portion.columns = decoded.portion.columns, {}
    return replace(decoded, layout=_write(path, columns))


def _decoded(text: bytes, ends: Sequence[int], event: type[Event]) -> DecodedPiece:
    strings = Interned()
    collector = KinetoCollector(strings.__getitem__)
    decoder = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
    slices: list[DecodedSlice] = []
    begin = 0
    for end in ends:
        piece = text[begin:end]
        begin = end
        try:
            events = decoder.decode(b"".join((b"[", piece, b"]")))
        except UNREADABLE:
            break
        count = collector.add(events)
        del events
        if not collector.is_portion:
            return DecodedPiece((), KinetoCollector(strings.__getitem__).portion([]), ())
        slices.append(DecodedSlice(count, len(piece), json_items(piece)))
    return DecodedPiece(tuple(slices), collector.portion(list(strings)), ())


def _write(path: Path, tables: dict[str, Columns]) -> tuple[tuple[str, str, str, int], ...]:
    layout = []
    with path.open("r+b") as file:
        for table, columns in tables.items():
            for name, column in columns.items():
                file.write(column.data)
                layout.append((table, name, column.dtype.str, column.size))
    return tuple(layout)


def _read(path: Path, layout: Sequence[tuple[str, str, str, int]]) -> dict[str, Columns]:
    tables: dict[str, Columns] = {}
    with path.open("rb") as file:
        for table, name, dtype, size in layout:
            column: Column = np.fromfile(file, dtype, size)
            tables.setdefault(table, {})[name] = column
    return tables


def _without_emptying(path: str, flags: int) -> int:
    """Open a file that is written again; memory that is freed and taken again costs time."""
    return os.open(path, flags & ~os.O_TRUNC, 0o600)


class _Piece(Struct):
    """Some slices that follow one another, and what decodes them."""

    place: Place
    reads: list[Read]
    """What was read to take the slices."""
    read_bytes: list[int]
    """How much was read of the file when each slice was taken."""
    path: Path | None
    """None if it is decoded here."""
    decoded: Future[DecodedPiece]


def _paths(*pieces: _Piece) -> list[Path]:
    return [piece.path for piece in pieces if piece.path is not None]


class SlicedEvents:
    """The events of a document, most of them decoded in other processes."""

    def __init__(
        self,
        document: Document[Event],
        event: type[Event],
        collector: KinetoCollector,
        slicing: Slicing,
    ) -> None:
        self._document = document
        self._event = event
        self._collector = collector
        self._slicing = slicing
        self._free: list[Path] = []
        """Files that hold no piece."""
        self._is_alone = False
        """Whether nothing but this process decodes any more."""

    def collect(self) -> Iterator[int]:
        """Add events to the collector, mostly all; yields how many each slice had."""
        try:
            folder = tempfile.TemporaryDirectory(prefix="perfadvisor-", ignore_cleanup_errors=True)
        except OSError:  # no place for files
            return
        with folder as made:
            pieces = _PIECES_PER_PROCESS * self._slicing.processes
            self._free = [Path(made, str(number)) for number in range(pieces)]
            for _ in range(_MOST_DECODED_HERE):
                yield from self._collect_pieces()
                yield self._collector.add(self._document.next_slice())
                if self._is_alone or self._document.is_at_end:
                    return

    def _collect_pieces(self) -> Iterator[int]:
        """Add pieces up to the first slice that must be decoded here."""
        waiting: deque[_Piece] = deque()
        while True:
            while self._free and (piece := self._start()):
                waiting.append(piece)
            while waiting and not waiting[0].decoded.done() and (piece := self._start(here=True)):
                waiting.append(piece)
            if not waiting:
                return
            piece = waiting.popleft()
            slices = yield from self._add(piece)
            if slices < len(piece.read_bytes):
                self._put_back([piece, *waiting], slices)
                return
            self._free += _paths(piece)

    def _start(self, *, here: bool = False) -> _Piece | None:
        """Let the next piece be decoded; None if the next slice must be decoded alone."""
        if self._is_alone:
            return None
        document, slices, ends = self._document, [], [0]
        while ends[-1] < self._slicing.piece_bytes and (piece := document.slice_ahead()):
            slices.append(piece)
            ends.append(ends[-1] + len(piece.text))
        if not slices:
            return None
        place, reads = slices[0].place, [read for piece in slices for read in piece.reads]
        taken = [piece.read_bytes for piece in slices]
        if here:
            decoded: Future[DecodedPiece] = Future()
            text = b"".join([piece.text for piece in slices])
            decoded.set_result(_decoded(text, ends[1:], self._event))
            return _Piece(place, reads, taken, None, decoded)
        path = self._free[-1]
        try:
            with open(path, "wb", opener=_without_emptying) as file:
                file.writelines([piece.text for piece in slices])
            decoded = self._slicing.executor.submit(decode_piece, path, ends[1:], self._event)
        except (OSError, BrokenExecutor):  # no room for files, or for processes
            document.go_back(place, reads)
            self._is_alone = True
            return None
        self._free.pop()
        return _Piece(place, reads, taken, path, decoded)

    def _add(self, piece: _Piece) -> Generator[int, None, int]:
        """Add the slices of a piece that were decoded; returns how many."""
        try:
            decoded = piece.decoded.result()
            portion = decoded.portion
            if piece.path is not None:
                portion.columns = _read(piece.path, decoded.layout)
        except Exception:  # a process that was ended: what it did not decode is decoded here
            self._is_alone = True
            return 0
        self._collector.add_portion(portion)
        budget = self._document.budget
        for read_bytes, decoded_slice in zip(piece.read_bytes, decoded.slices, strict=False):
            budget.read_bytes = read_bytes
            if budget.is_large(decoded_slice.size_bytes):
                budget.expect(decoded_slice.json_items)
            yield decoded_slice.events
        return len(decoded.slices)

    def _put_back(self, pieces: Sequence[_Piece], slices: int) -> None:
        """Put pieces back, but for the first slices, which were added."""
        for piece in pieces:
            piece.decoded.cancel()
        wait([piece.decoded for piece in pieces])  # until then, the files are in use
        self._free += _paths(*pieces)
        reads = [read for piece in pieces for read in piece.reads]
        self._document.go_back(pieces[0].place, reads)
        for _ in range(slices):
            self._document.slice_ahead()
