"""Reads a pickled snapshot without ever running what a pickle can run.

A pickle is a program for a small machine. This one knows only the instructions that make plain
values: dictionaries, lists, tuples, numbers, texts. It refuses every other instruction, so nothing
that a file says can import, call or build anything. It needs little memory: an event or a block
goes into columns when its dictionary is complete, and call stacks that were seen before are
recognized by their bytes. C's unpickler takes seven times the size of the file, and cannot be
stopped midway.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, Protocol

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.memory_snapshots.collector import SnapshotCollector
from tb_perfadvisor.patterns import regex

_READ_BYTES: Final = 1 << 22
_MAX_TEXT: Final = 1 << 20
"""Bytes of one text. Names of C++ functions have thousands."""
_MAX_INTEGER: Final = 16
"""Bytes of one number. Addresses have eight."""
_MAX_DEPTH: Final = 64
_MAX_VALUES: Final = 1 << 14
"""Values on the stack. Pickles hand over a thousand values at a time, two for each entry of a
dictionary."""
_MAX_HELD: Final = 1 << 26
"""Values that may be referred to again; an event takes about three."""
_MAX_ENTRIES: Final = 1_000
"""Entries of one dictionary, and elements of one tuple."""
_MAX_SHARED: Final = 1 << 16
"""Short texts that are kept once each."""
_MAX_PLAIN: Final = 1 << 16
"""Dictionaries that are none of a snapshot's parts."""
_MARGIN: Final = _MAX_TEXT + 64
_UNCHECKED_BYTES: Final = 1 << 14
"""Instructions between two looks at the limits."""
_REFERENCE_BYTES: Final = 8
_ITEMS_OF_DICT: Final = 4
"""An empty dictionary takes as much as four other objects."""

# What C's pickler writes for a list of values that it wrote before, such as a call stack.
_KNOWN_LIST: Final = regex(rb"\]\x94\((?:h.|j.{4}){1,4096}e(?!\()", re.DOTALL)
_REFERENCE: Final = regex(rb"h(.)|j(.{4})", re.DOTALL)

_FORBIDDEN: Final = {
    **{ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD"},
    **{ord("i"): "INST", ord("o"): "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX"},
    **{0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", ord("P"): "PERSID", ord("Q"): "BINPERSID"},
    **{0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER", 0x96: "BYTEARRAY8"},
}


class Bytes(Protocol):
    """What is read from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class _Dict(dict[Any, Any]):
    """A dictionary that knows under which number it can be referred to."""

    __slots__ = ("number",)
    number: int


class _Frame(int):
    """The index of a frame."""


class _Stack(int):
    """The index of a stack."""


class _Mark:
    """Where the values of a container begin."""


_EVENT, _BLOCK, _OTHER = _Mark(), _Mark(), _Mark()
"""Stand for what was handed over."""


def read_pickle(stream: Bytes, path: str, collector: SnapshotCollector, budget: Budget) -> Any:
    """Read a pickle of plain values; hand over events, blocks and frames as they are complete.

    The stream is inflated. Returns the rest: what the file holds, with events and blocks only
    counted.
    """
    return _Machine(stream, path, collector, budget).run()


class _Machine:
    def __init__(
        self, stream: Bytes, path: str, collector: SnapshotCollector, budget: Budget
    ) -> None:
        self._stream, self._path, self._collector = stream, path, collector
        self._budget = budget
        self._items = self._text_bytes = self._charged_held = 0
        self._held: list[Any] = []
        self._lists: dict[bytes, Any] = {}
        self._texts: dict[bytes, str] = {}
        self._plain = 0

    def run(self) -> Any:
        try:
            return self._run()
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            # An instruction found less on the stack than it needs, or something else.
            raise self._damaged() from error

    def _run(self) -> Any:
        held, stack = self._held, []  # type: list[Any], list[Any]
        hold, push, pop = held.append, stack.append, stack.pop
        marks: list[int] = []
        known_list, from_bytes = _KNOWN_LIST.match, int.from_bytes
        data, at, is_end = self._stream.read(_READ_BYTES), 0, False
        while True:
            if not is_end and len(data) - at < _MARGIN:
                more = self._stream.read(_READ_BYTES)
                is_end = not more
                data, at = data[at:] + more, 0
            last = len(data) - 1 if is_end else len(data) - _MARGIN
            if is_end and at > last:
                raise self._truncated()
            self._check(len(stack), len(held))
            last = min(last, at + _UNCHECKED_BYTES)
            while at <= last:
                code = data[at]
                at += 1
                if code == 0x68:  # BINGET
                    push(held[data[at]])
                    at += 1
                elif code == 0x8A:  # LONG1
                    size = data[at]
                    if size > _MAX_INTEGER:
                        raise self._damaged()
                    at += 1 + size
                    push(from_bytes(data[at - size : at], "little", signed=True))
                elif code == 0x4A:  # BININT
                    push(from_bytes(data[at : at + 4], "little", signed=True))
                    at += 4
                elif code == 0x5D:  # EMPTY_LIST
                    found = known_list(data, at - 1)
                    if found is None:
                        self._items += 1
                        push([])
                    else:
                        at = found.end()
                        known = self._known_list(found[0])
                        hold(known)
                        push(known)
                elif code == 0x94:  # MEMOIZE
                    value = stack[-1]
                    if type(value) is _Dict:
                        value.number = len(held)
                    hold(value)
                elif code == 0x28:  # MARK
                    marks.append(len(stack))
                    if len(marks) > _MAX_DEPTH:
                        raise self._too_complex()
                elif code == 0x75:  # SETITEMS
                    begin = marks.pop()
                    entries = stack[begin - 1]
                    if type(entries) is not _Dict:
                        raise self._damaged()
                    entries.update(zip(stack[begin::2], stack[begin + 1 :: 2], strict=True))
                    if len(entries) > _MAX_ENTRIES:
                        raise self._too_complex()
                    del stack[begin:]
                    stack[-1] = self._complete(entries)
                elif code == 0x7D:  # EMPTY_DICT
                    value = _Dict()
                    value.number = -1
                    self._items += _ITEMS_OF_DICT
                    push(value)
                elif code == 0x4B:  # BININT1
                    push(data[at])
                    at += 1
                elif code == 0x4D:  # BININT2
                    push(data[at] | data[at + 1] << 8)
                    at += 2
                elif code == 0x6A:  # LONG_BINGET
                    push(held[from_bytes(data[at : at + 4], "little")])
                    at += 4
                elif code == 0x8C:  # SHORT_BINUNICODE
                    size = data[at]
                    at += 1 + size
                    push(self._short_text(data[at - size : at]))
                elif code == 0x65:  # APPENDS
                    begin = marks.pop()
                    values = stack[begin - 1]
                    if type(values) is not list:
                        raise self._damaged()
                    values.extend(stack[begin:])
                    self._items += len(stack) - begin
                    del stack[begin:]
                elif code == 0x61:  # APPEND
                    value = pop()
                    if type(stack[-1]) is not list:
                        raise self._damaged()
                    stack[-1].append(value)
                    self._items += 1
                elif code == 0x73:  # SETITEM
                    value, key = pop(), pop()
                    if type(stack[-1]) is not _Dict or len(stack[-1]) > _MAX_ENTRIES:
                        raise self._damaged()
                    stack[-1][key] = value
                    self._items += 1
                elif code == 0x4E:  # NONE
                    push(None)
                elif code in (0x88, 0x89):  # NEWTRUE, NEWFALSE
                    push(code == 0x88)
                elif code in (0x58, 0x8D, 0x42, 0x8E, 0x54, 0x43, 0x55):  # texts and bytes
                    width = {0x8D: 8, 0x8E: 8, 0x43: 1, 0x55: 1}.get(code, 4)
                    size = from_bytes(data[at : at + width], "little")
                    if size > _MAX_TEXT:
                        raise self._damaged("it has a text of more than a megabyte")
                    at += width + size
                    text = data[at - size : at]
                    self._text_bytes += size
                    push(text if code in (0x42, 0x8E, 0x43) else text.decode("utf-8", "replace"))
                elif code == 0x47:  # BINFLOAT
                    push(struct.unpack_from(">d", data, at)[0])
                    at += 8
                elif code in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
                    size = code - 0x84
                    if len(stack) < size:
                        raise self._damaged()
                    values = self._tuple(stack[-size:])
                    del stack[-size:]
                    push(values)
                elif code == 0x74:  # TUPLE
                    begin = marks.pop()
                    values = self._tuple(stack[begin:])
                    del stack[begin:]
                    push(values)
                elif code == 0x29:  # EMPTY_TUPLE
                    push(())
                elif code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
                    width = 1 if code == 0x71 else 4
                    if from_bytes(data[at : at + width], "little") != len(held):
                        raise self._damaged()
                    at += width
                    value = stack[-1]
                    if type(value) is _Dict:
                        value.number = len(held)
                    hold(value)
                elif code == 0x95:  # FRAME: its length does not matter here
                    at += 8
                elif code == 0x80:  # PROTO
                    at += 1
                elif code == 0x2E:  # STOP
                    if len(stack) != 1 or at > len(data):
                        raise self._damaged()
                    self._check(len(stack), len(held))
                    return pop()
                else:
                    raise self._refused(code)

    def _check(self, values: int, held: int) -> None:
        if values > 2 * _MAX_VALUES or held > _MAX_HELD:
            raise self._too_complex()
        added = held - self._charged_held
        self._charged_held = held
        self._budget.keep(self._items, self._text_bytes + _REFERENCE_BYTES * added)
        self._items = self._text_bytes = 0

    def _short_text(self, text: bytes) -> str:
        """A text, shared by all that are equal: each event has a few of its own."""
        known = self._texts.get(text)
        if known is None:
            known = text.decode("utf-8", "replace")
            self._items += 1
            self._text_bytes += len(text)
            if len(self._texts) < _MAX_SHARED:
                self._texts[text] = known
        return known

    def _tuple(self, values: list[Any]) -> tuple[Any, ...]:
        """A tuple of numbers and texts. Hashing deeply nested ones would overflow the stack."""
        if len(values) > _MAX_ENTRIES or not all(
            value is None or isinstance(value, (int, float, str)) for value in values
        ):
            raise self._too_complex()
        self._items += 1 + len(values)
        return tuple(values)

    def _known_list(self, text: bytes) -> Any:
        """A list of values that were read before; a call stack in nearly all cases."""
        known = self._lists.get(text)
        if known is None:
            held = self._held
            places = _REFERENCE.findall(text, 3)
            # The list is held, too, but only after its values.
            values = [held[int.from_bytes(short or long, "little")] for short, long in places]
            if not all(type(value) is _Frame for value in values):
                return values
            known = self._lists[text] = _Stack(self._collector.add_stack(values))
        return known

    def _complete(self, entries: _Dict) -> Any:
        """What stands for a dictionary that is complete."""
        collector = self._collector
        if "action" in entries:
            collector.add_event(entries, self._stack(entries.get("frames")))
            done: Any = _EVENT
        elif "filename" in entries and "line" in entries:
            done = _Frame(collector.add_frame(entries))
        elif "state" in entries:
            frames = entries.get("frames")
            if frames is None:
                frames = _frames_of_history(entries.get("history"))
            collector.add_block(entries, self._stack(frames))
            done = _BLOCK
        elif "stage" in entries:
            collector.add_annotation(entries)
            done = _OTHER
        else:
            self._plain += 1
            if self._plain > _MAX_PLAIN:
                raise self._too_complex()
            self._items += len(entries)
            return entries
        self._items -= _ITEMS_OF_DICT
        if entries.number >= 0:
            self._held[entries.number] = done
        return done

    def _stack(self, frames: Any) -> int:
        if type(frames) is _Stack:
            return int(frames)
        if type(frames) is not list or not all(type(frame) is _Frame for frame in frames):
            return -1
        return self._collector.add_stack(frames)

    def _refused(self, code: int) -> UnreadableProfileError:
        name = _FORBIDDEN.get(code)
        if name is not None:
            return UnreadableProfileError(
                f"this pickle would run code ({name}), so it was not read. A memory snapshot holds "
                "only plain values.",
                where=self._path,
                hint="Do not open it with pickle.load unless you trust its source.",
            )
        return self._damaged(f"it has an instruction (0x{code:02x}) that no snapshot needs")

    def _damaged(
        self, what: str = "its structure is broken, or its end is missing"
    ) -> UnreadableProfileError:
        return UnreadableProfileError(
            f"this pickle is damaged, or no memory snapshot: {what}.",
            where=self._path,
            hint="Write it again with torch.cuda.memory._dump_snapshot.",
        )

    def _truncated(self) -> UnreadableProfileError:
        return UnreadableProfileError(
            "this memory snapshot is truncated.",
            where=self._path,
            hint="Writing or copying it ended early: copy it again, or record it again.",
        )

    def _too_complex(self) -> UnreadableProfileError:
        return UnreadableProfileError(
            "this pickle holds more than a memory snapshot does.",
            where=self._path,
            hint="Write it with torch.cuda.memory._dump_snapshot.",
        )


def _frames_of_history(history: Any) -> Any:
    """The frames of a block's latest allocation, as PyTorch 2.0 recorded them."""
    if type(history) is not list or not history or not isinstance(history[0], dict):
        return None
    return history[0].get("frames")
