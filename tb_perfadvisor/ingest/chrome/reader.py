"""Reads Chrome exports of XSpaces.

Encodes the columns of an export as an XSpace.

The result is bytes, so that the xplane reader has a single entry point and does not depend on this
format.

JAX writes `HOST.trace.json.gz` next to each xplane. TensorFlow's profiler wrote it instead of an
xplane in 2019 and 2020. It is an incomplete copy of the xplane, so this reader converts it
back into one, and the xplane reader interprets it.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.chrome.columns import TEXTS, ChromeEvent, ExportCollector, ExportColumns
from tb_perfadvisor.ingest.chrome.processes import ProcessPlace, collective_rows_of, has_no_work
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.json_trace.document import Document, Text, damage_notes, open_document
from tb_perfadvisor.ingest.json_trace.recognition import foreign_error
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Device, Source, Trace

# The counterpart of `xspace.decode.wire`: array operations turn columns into messages. `Cells` is a
# table of bytes with one message per row, and a mask of the used bytes. Fields are tables side by
# side. The used bytes, row by row, are the messages.


class Cells(Struct, frozen=True):
    """The bytes of n messages: shape (n, width) each."""

    data: NDArray[np.uint8]
    is_used: NDArray[np.bool_]

    def __bytes__(self) -> bytes:
        """The concatenated messages."""
        return self.data[self.is_used].tobytes()

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of bytes of each message."""
        sizes: NDArray[np.int64] = np.count_nonzero(self.is_used, axis=1).astype(np.int64)
        return sizes

    def where(self, is_wanted: NDArray[np.bool_]) -> Cells:
        """The cells of the wanted messages; empty for the others."""
        return Cells(self.data, self.is_used & is_wanted[:, None])


def concatenate(*cells: Cells) -> Cells:
    """Concatenate fields of the same messages."""
    return Cells(
        np.hstack([field.data for field in cells]), np.hstack([field.is_used for field in cells])
    )


def varint_field(number: int, values: NDArray[np.int64]) -> Cells:
    """A field of integers; as in protobuf, negative ones take ten bytes."""
    return concatenate(_tag(number, 0, values.size), _varints(values))


def double_field(number: int, values: NDArray[np.float64]) -> Cells:
    """A field of doubles."""
    data = np.ascontiguousarray(values, dtype="<f8").view(np.uint8).reshape(values.size, 8)
    return concatenate(_tag(number, 1, values.size), _all_used(data))


def message_field(number: int, messages: Cells) -> Cells:
    """A field with one message per row."""
    return concatenate(_tag(number, 2, len(messages.data)), _varints(messages.sizes), messages)


def one_message_field(number: int, message: bytes) -> bytes:
    """A field with a single message."""
    size = bytes(_varints(np.array([len(message)])))
    return bytes([number << 3 | 2]) + size + message


def _tag(number: int, wire_type: int, count: int) -> Cells:
    """Tags take one byte, because all field numbers of an XSpace are at most 15."""
    return _all_used(np.full((count, 1), number << 3 | wire_type, dtype=np.uint8))


def _all_used(data: NDArray[np.uint8]) -> Cells:
    return Cells(data, np.ones(data.shape, dtype=np.bool_))


def _varints(values: NDArray[np.int64]) -> Cells:
    """Seven bits per byte, lowest first; all bytes but the last have the highest bit set."""
    remaining = values.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(remaining.max(initial=0)).bit_length() // 7))
    data = np.empty((values.size, width), dtype=np.uint8)
    is_used = np.ones(data.shape, dtype=np.bool_)
    for place in range(width):
        is_used[:, place] = (remaining != 0) | (place == 0)
        low = (remaining & np.uint64(0x7F)).astype(np.uint8)
        remaining = remaining >> np.uint64(7)
        data[:, place] = low | np.where(remaining != 0, np.uint8(0x80), np.uint8(0))
    return Cells(data, is_used)


# Fields of XSpace, XPlane, XLine, XEvent and XStat, as in `xspace.decode.schema`.
_PLANES, _LINES, _EVENTS, _STATS = 1, 3, 4, 4
_METADATA_ID, _OFFSET_PS, _DURATION_PS = 1, 2, 3
_STAT_ID, _DOUBLE, _INT64, _REF = 1, 2, 4, 7
# Events encoded at a time, which limits the temporary memory.
_CHUNK: Final = 1 << 16
_FIRST_OTHER_THREAD: Final = 2**32
_PS_PER_US: Final = 10**6
# The xplane reader treats longer times (26 days) as damage.
_MOST_US: Final = float(2**61 // _PS_PER_US)
_NO_ROWS: Final = np.empty(0, dtype=np.int64)


class _Line(Struct, frozen=True):
    id: int
    name: str
    rows: NDArray[np.int64]
    """Rows of the events, in file order."""


def encode_space(collected: ExportColumns, places: Mapping[Any, ProcessPlace]) -> bytes:
    """The bytes of an XSpace.

    `places` has the place of each process; events of other processes are left out.
    """
    base_us = _base_us(collected.start_us)
    lines = _lines(collected, places)
    planes = {place.plane: bool(place.stream) for place in places.values()}
    return b"".join(
        one_message_field(
            _PLANES, _Plane(collected, base_us, has_streams=has_streams).encode(name, lines[name])
        )
        for name, has_streams in planes.items()
    )


def _base_us(start_us: NDArray[np.float64]) -> int:
    """The origin of the times: the first start that is near the median.

    Absolute times in picoseconds do not fit into 64 bits. An event at time 0, whose clock was not
    running, must not push all others out of range.
    """
    if not start_us.size:
        return 0
    median = np.partition(start_us, start_us.size // 2)[start_us.size // 2]
    is_near = np.abs(start_us - median) < _MOST_US / 2
    return int(start_us[is_near].min() // 1)


def _lines(
    collected: ExportColumns, places: Mapping[Any, ProcessPlace]
) -> defaultdict[str, list[_Line]]:
    """The lines of each plane, in the file's sort order."""
    order = np.argsort(collected.thread, kind="stable")
    bounds = np.searchsorted(collected.thread[order], np.arange(len(collected.threads) + 1))
    threads = [
        (collected.thread_order.get(thread, 0), index, thread)
        for index, thread in enumerate(collected.threads)
        if thread[0] in places
    ]
    joined: dict[tuple[str, str], list[NDArray[np.int64]]] = defaultdict(list)
    lines: defaultdict[str, list[_Line]] = defaultdict(list)
    for _, index, (pid, tid) in sorted(threads):
        place = places[pid]
        rows = order[bounds[index] : bounds[index + 1]]
        if place.stream:
            joined[place.plane, place.stream].append(rows)
        else:
            name = place.line(tid, collected.thread_names.get((pid, tid), ""))
            # Numbers in the file have 32 bits. Threads without a number get larger ids.
            is_number = isinstance(tid, int) and 0 <= tid < _FIRST_OTHER_THREAD
            id_ = int(tid) if is_number else _FIRST_OTHER_THREAD + index
            lines[place.plane].append(_Line(id_, name, rows))
    for (plane, stream), parts in joined.items():
        rows = np.sort(np.concatenate(parts))
        lines[plane].append(_Line(len(lines[plane]), stream, rows))
    return lines


class _Plane:
    """Encodes one plane. Kinds of events and stats have the same ids in all planes."""

    def __init__(self, collected: ExportColumns, base_us: int, *, has_streams: bool) -> None:
        self._collected = collected
        self._base_us = base_us
        self._has_streams = has_streams
        self._stat_id = {name: 1 + index for index, name in enumerate(collected.stats)}
        self._first_text = 1 + len(self._stat_id)
        self._first_fact = self._first_text + len(collected.texts)
        self._message: Any = WRITING.XPlane()

    def encode(self, name: str, lines: list[_Line]) -> bytes:
        """The message of the plane with these lines."""
        header: bytes = WRITING.XPlane(name=name).SerializeToString(deterministic=True)
        rows = np.concatenate([_NO_ROWS, *(line.rows for line in lines)])
        events, ends = self._encode_events(rows)
        for kind in np.unique(self._collected.kind[rows]).tolist():
            self._describe(kind)
        last = ends[np.cumsum([0, *(line.rows.size for line in lines)])].tolist()
        encoded = (
            one_message_field(_LINES, self._header(line) + events[begin:end])
            for line, begin, end in zip(lines, last, last[1:], strict=False)
        )
        tables: bytes = self._message.SerializeToString(deterministic=True)
        # In the profilers' order, so that the reader sees which planes have events before it reads
        # the tables.
        return b"".join([header, *encoded, tables])

    def _header(self, line: _Line) -> bytes:
        header = WRITING.XLine(id=line.id, name=line.name, timestamp_ns=self._base_us * 1000)
        encoded: bytes = header.SerializeToString(deterministic=True)
        return encoded

    def _encode_events(self, rows: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        """Encode the events of all lines at once, because a plane may have many short ones.

        Returns the encoded events; and the offset of each of them, then their total size.
        """
        parts: list[bytes] = []
        sizes: list[NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]
        for first in range(0, rows.size, _CHUNK):
            events = self._events(rows[first : first + _CHUNK])
            parts.append(bytes(events))
            sizes.append(events.sizes)
        return b"".join(parts), np.cumsum(np.concatenate(sizes))

    def _events(self, rows: NDArray[np.int64]) -> Cells:
        collected = self._collected
        fields = [
            varint_field(_METADATA_ID, collected.kind[rows] + np.int64(1)),
            varint_field(_OFFSET_PS, _picoseconds(collected.start_us[rows] - self._base_us)),
            varint_field(_DURATION_PS, _picoseconds(collected.duration_us[rows])),
        ]
        for name, column in collected.stats.items():
            slot = np.minimum(np.searchsorted(column.row, rows), column.row.size - 1)
            has_one = column.row[slot] == rows
            if has_one.any():
                value = self._value(name, column.value[slot], has_one)
                stat_id = varint_field(_STAT_ID, np.full(rows.size, self._stat(name)))
                stat = message_field(_STATS, concatenate(stat_id, value))
                fields.append(stat.where(has_one))
        return message_field(_EVENTS, concatenate(*fields))

    def _value(self, name: str, value: NDArray[Any], has_one: NDArray[np.bool_]) -> Cells:
        if name in TEXTS:
            # Like the profilers, store the text as the name of a stat and refer to it.
            for index in np.unique(value[has_one]).tolist():
                self._name_stat(self._first_text + index, self._collected.texts[index])
            return varint_field(_REF, self._first_text + value)
        if np.issubdtype(value.dtype, np.floating):
            return double_field(_DOUBLE, value)
        return varint_field(_INT64, value)

    def _stat(self, name: str) -> int:
        """The id of a stat of events or kinds of events."""
        known = self._stat_id.setdefault(name, self._first_fact + len(self._stat_id))
        self._name_stat(known, name)
        return known

    def _name_stat(self, number: int, name: str) -> None:
        entry = self._message.stat_metadata[number]
        entry.id, entry.name = number, name

    def _describe(self, index: int) -> None:
        kind = self._collected.kinds[index]
        entry = self._message.event_metadata[1 + index]
        entry.id = 1 + index
        if self._has_streams:
            # The long name is `node:type@@kernel`, or only the node: prefer the kernel's name,
            # then the type of the operation.
            entry.name = kind.long_name.partition("@@")[2] or kind.name
        elif kind.long_name:
            entry.name, entry.display_name = kind.long_name, kind.name
        else:
            entry.name = kind.name
        for name, value in kind.facts.items():
            stat = entry.stats.add(metadata_id=self._stat(name))
            if isinstance(value, str):
                stat.str_value = value
            else:
                stat.int64_value = value


def _picoseconds(microseconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round to picoseconds; restores the profiler's values for profiles of up to half an hour."""
    within = np.clip(microseconds, -2 * _MOST_US, 2 * _MOST_US)
    # Convert the integer part and the fraction separately, to round only once.
    whole = np.floor(within)
    fraction = np.rint((within - whole) * _PS_PER_US)
    return whole.astype(np.int64) * _PS_PER_US + fraction.astype(np.int64)


# The name, the times and the statistics of an event.
_ITEMS_OF_EVENT = 2


def read_chrome(stream: BinaryIO, source: Source) -> Trace:
    """Read the export of one host.

    The stream is gzipped or not, by content. `source` has path, run, session and host; the other
    fields are filled in here.
    """
    text = Text(Inflated(stream, source.path))
    document = open_document(text, ChromeEvent, source.path)
    if document is None:
        raise foreign_error(text.head, source.path)
    collector = ExportCollector()
    for events in document.chunks():
        collector.add(events)
        text.inflated.budget.keep(_ITEMS_OF_EVENT * len(events))
    collected = collector.finish()
    places = collective_rows_of(collected.process_names)
    if not places:
        raise UnreadableProfileError(
            "no process of this trace is a host or a device of TensorFlow's or JAX's profilers.",
            where=source.path,
            hint="Point Perf Advisor at the .xplane.pb of the same session.",
        )
    kept = _without_cut_steps(collected) if collected.is_capped else collected
    trace = read_xplane(io.BytesIO(encode_space(kept, places)), source)
    filled = replace(trace.source, format="chrome")
    if filled.framework == "unknown" and any(place.is_old for place in places.values()):
        filled = replace(filled, framework="tensorflow")
    notes = notes_of(document, collected, places, trace.devices)
    return replace(trace, source=filled, notes=(*notes, *trace.notes))


def _without_cut_steps(collected: ExportColumns) -> ExportColumns:
    """Remove the markers of steps that end after the last event.

    The remaining events of such a step are missing, and would look like idle time.
    """
    is_step = np.zeros(collected.start_us.size, dtype=np.bool_)
    if "step_num" in collected.stats:
        is_step[collected.stats["step_num"].row] = True
    is_line = [collected.thread_names.get(thread) == "Steps" for thread in collected.threads]
    is_step |= np.array(is_line, dtype=np.bool_)[collected.thread]
    end_us = collected.start_us + collected.duration_us
    return collected.select(~is_step | (end_us <= collected.start_us.max()))


_MAX_NAMES: Final = 3


def notes_of(
    document: Document[Any],
    collected: ExportColumns,
    places: Mapping[Any, ProcessPlace],
    devices: tuple[Device, ...],
) -> tuple[Note, ...]:
    """All notes, in descending order of severity."""
    document.is_interleaved |= document.is_followed  # others are not read
    notes = damage_notes(document, document.malformed + collected.malformed)
    if collected.is_capped:
        notes.append(
            Note(
                "event-limit",
                "warning",
                f"The export has {len(collected.start_us):,} events, the limit of the "
                "profiler. Later events and unfinished steps are missing.",
                "Read the .xplane.pb of the same session, which has all events, or record fewer "
                "steps.",
            )
        )
    missing = ["memory allocations", "the programs that XLA compiled"]
    if devices:
        missing.append("the description of the device")
    if any(device.kind == "tpu" for device in devices):
        missing.append("the launches of its programs")
    notes.append(
        Note(
            "chrome-export",
            "info",
            "This is the Chrome export of a profile, which leaves out "
            f"{', '.join(missing[:-1])} and {missing[-1]}.",
            "JAX, and TensorFlow since 2.4, write a complete .xplane.pb to the same directory. "
            "If it is there, it is read instead.",
        )
    )
    left_out = _left_out(collected, places)
    if left_out:
        count = sum(left_out.values())
        events = "1 event was" if count == 1 else f"{count} events were"
        shown = ", ".join(sorted({name for name in left_out if name})[:_MAX_NAMES])
        notes.append(
            Note(
                "unknown-events",
                "info",
                f"{events} left out, from processes that are neither a host nor a device"
                f"{f': {shown[:200]}' if shown else ''}.",
            )
        )
    return tuple(notes)


def _left_out(collected: ExportColumns, places: Mapping[Any, ProcessPlace]) -> Counter[str]:
    """The number of events without a place, by the name of their process."""
    counts = np.bincount(collected.thread, minlength=len(collected.threads)).tolist()
    left_out: Counter[str] = Counter()
    for (pid, _), count in zip(collected.threads, counts, strict=True):
        if pid not in places and not has_no_work(name := collected.process_names.get(pid, "")):
            left_out[name] += count
    return left_out
