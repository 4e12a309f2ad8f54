"""Writes large Kineto traces for benchmarks by repeating a real one.

    python benchmarks/big_kineto.py RECORDED.json.gz big.pt.trace.json --megabytes 1000
    python benchmarks/big_kineto.py RECORDED.json.gz run/ --ranks 16

The copies follow one another in time. Step numbers continue, and each copy has its own ids, so that
nothing is linked across copies. Otherwise the events' text is unchanged: a reader gets what PyTorch
wrote, only more of it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from isal import igzip

# Fields with an id of the event itself or of another event. Zero means none.
_IDS = (
    *("correlation", "External id", "external id", "id", "Sequence number", "Ev Idx", "Seq"),
    *("Python id", "Python parent id", "Record function id", "wait_on_cuda_event_record_corr_id"),
)
# A quote inside a string is escaped, so only keys can match these.
_NUMBERED = re.compile(
    rb'("ts"\s*:\s*"?)(\d+)'
    rb'|("(?:' + "|".join(_IDS).encode() + rb')"\s*:\s*"?)([1-9]\d*)'
    rb"|(ProfilerStep#)(\d+)"
)
_TS, _ID, _STEP = 2, 4, 6  # the groups that hold the number
# Some versions write 2^64 - 1 for none.
_LARGEST_ID = 2**53
# A high compression level makes writing a gigabyte slow, but does not affect reading.
_COMPRESSION = 1


class _Event(msgspec.Struct):
    """The fields that determine the length of the trace."""

    ph: Any = None
    cat: Any = None
    ts: Any = None
    dur: Any = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A parsed trace: its top level, its events as text, and the distance between copies."""

    top: dict[str, msgspec.Raw]
    events: bytes
    """Between the brackets of `traceEvents`."""
    offsets: dict[int, int]
    """By how much each kind of number grows per copy."""

    def count(self, size_bytes: int) -> int:
        """The number of copies for a size."""
        return max(1, math.ceil(size_bytes / max(1, len(self.events))))

    def copies(self, count: int) -> Iterator[bytes]:
        """The events' text, copy by copy."""
        yield self.events
        for number in range(1, count):

            def shifted(found: re.Match[bytes], number: int = number) -> bytes:
                group = cast(int, found.lastindex)
                value = int(found[group])
                if group == _ID and value > _LARGEST_ID:
                    return found[0]
                return found[group - 1] + b"%d" % (value + number * self.offsets[group])

            yield b",\n" + _NUMBERED.sub(shifted, self.events)


def repeat(source: Path, target: Path, *, size_bytes: int = 0) -> int:
    """Write a trace that repeats another one.

    Args:
        source: A Kineto trace, plain or gzipped.
        target: The file to write; its directory is created. Gzipped if its name ends in `.gz`.
        size_bytes: The minimum uncompressed size; at least one copy is written.

    Returns:
        The number of copies.
    """
    recorded = read(source)
    count = recorded.count(size_bytes)
    write(recorded.top, recorded.copies(count), target)
    return count


def ranks(source: Path, folder: Path, count: int, *, size_bytes: int = 0) -> list[Path]:
    """Write identical traces for the ranks of a distributed run; returns the files by rank."""
    recorded = read(source)
    events = b"".join(recorded.copies(recorded.count(size_bytes)))
    given = recorded.top.get("distributedInfo")
    info = json.loads(bytes(given)) if given else {"backend": "nccl"}
    files = [folder / f"rank{rank}.1700000000000000000.pt.trace.json.gz" for rank in range(count)]
    for rank, file in enumerate(files):
        distributed = json.dumps(info | {"rank": rank, "world_size": count}).encode()
        write(recorded.top | {"distributedInfo": msgspec.Raw(distributed)}, [events], file)
    return files


def read(source: Path) -> _Recorded:
    """Parse a trace, plain or gzipped."""
    data = source.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = igzip.decompress(data)
    top = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    events = bytes(top["traceEvents"]).strip()[1:-1].strip()
    return _Recorded(top, events, _offsets(events))


def _offsets(events: bytes) -> dict[int, int]:
    timed = [
        (float(event.ts), float(event.ts) + float(event.dur or 0))
        for event in msgspec.json.decode(b"[" + events + b"]", type=list[_Event])
        if event.ph == "X" and event.cat != "Trace"
    ]
    if not timed:
        raise SystemExit("the trace has no events with a duration: nothing to repeat")
    starts, ends = zip(*timed, strict=True)
    numbers: dict[int, set[int]] = {_TS: set(), _ID: set(), _STEP: set()}
    for found in _NUMBERED.finditer(events):
        group = cast(int, found.lastindex)
        numbers[group].add(int(found[group]))
    steps = numbers[_STEP]
    return {
        # Whole microseconds, so that the decimals stay unchanged.
        _TS: math.ceil(max(ends) - min(starts)) + 1,
        _ID: 1 + max((value for value in numbers[_ID] if value <= _LARGEST_ID), default=0),
        _STEP: max(steps) - min(steps) + 1 if steps else 0,
    }


def write(top: Mapping[str, msgspec.Raw], events: Iterable[bytes], target: Path) -> None:
    """Write a trace from its top level and the text between the brackets of `traceEvents`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        if not target.name.endswith(".gz"):
            file.writelines(_text(top, events))
            return
        with igzip.IGzipFile(fileobj=file, mode="wb", compresslevel=_COMPRESSION) as packed:
            packed.writelines(_text(top, events))


def _text(top: Mapping[str, msgspec.Raw], events: Iterable[bytes]) -> Iterator[bytes]:
    separator = b"{\n  "
    for key, value in top.items():
        yield separator + json.dumps(key).encode() + b": "
        separator = b",\n  "
        if key != "traceEvents":
            yield bytes(value)
            continue
        yield b"[\n"
        yield from events
        yield b"\n  ]"
    yield b"\n}\n"


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="a Kineto trace, plain or gzipped")
    parser.add_argument("target", type=Path, help="where to write; with --ranks, the folder")
    parser.add_argument("--megabytes", type=float, default=0, help="size of each, inflated")
    parser.add_argument(
        "--ranks", type=int, default=0, help="write one file for each of this many ranks"
    )
    given = parser.parse_args()
    size_bytes = int(given.megabytes * 1e6)
    if given.ranks:
        ranks(given.source, given.target, given.ranks, size_bytes=size_bytes)
    else:
        repeat(given.source, given.target, size_bytes=size_bytes)


if __name__ == "__main__":
    main()
