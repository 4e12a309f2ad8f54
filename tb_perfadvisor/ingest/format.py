"""What a file format has to say about itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from tb_perfadvisor.ingest.captures import (
    Capture,
    Rejected,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.trace_names import stem_of

# Listing a log directory must not wait for numpy.
if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tb_perfadvisor.trace import Source, Trace

HEAD_BYTES = 262_144
"""How much of a file is sniffed. Kineto's headers with the properties of eight devices and a list
of process groups take some tens of kilobytes before the first event."""

Opener = Callable[[], AbstractContextManager[BinaryIO]]
Reader = Callable[[Mapping[str, Opener], "Source"], "Iterator[Trace]"]
"""Reads one worker from its files: what opens each, by path. Completes the source. Yields several
traces if a file holds several documents."""


class Slicing(Struct, frozen=True):
    """How one file is decoded in several processes, or as many threads."""

    executor: Executor
    processes: int
    """How many it has, beside this one."""
    piece_bytes: int = 4_000_000
    """What a process gets at a time: it takes longer than handing it over, and fits the memory."""


class RunOfRank(Struct, frozen=True):
    """What a file says of the run that it is a rank of."""

    world_size: int
    group: str
    """The group of all ranks, as the file describes it: the same in all of them."""
    start_ns: int
    """When the first event began, on the wall clock."""


class Sniffed(Struct, frozen=True):
    """What the beginning of a file shows of it."""

    format: str | None
    """None for a file that no format can read."""
    reason: str = ""
    """Why no format can read it."""
    rank: int | None = None
    run: RunOfRank | None = None
    is_certain: bool = True
    """False if other formats may be tried first."""
    is_profile: bool = True
    """False for what is not a profile at all: it is reported only if its name says otherwise."""


class FoundFile(Struct, frozen=True):
    """A file of a known format."""

    entry: FileEntry
    session: tuple[str, str] | None = None
    """Run and session of a file in `RUN/plugins/profile/SESSION/`."""
    rank: int | None = None
    run: RunOfRank | None = None
    is_only_file: bool = False
    """The user named this very file."""


class Grouped(Struct, frozen=True):
    """The captures that files make up."""

    captures: tuple[Capture, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    @property
    def directories(self) -> set[str]:
        """Where the captures lie."""
        return {directory_of(file.path) for capture in self.captures for file in capture.files}


class Format(Struct, frozen=True):
    """One file format."""

    name: str
    label: str
    """What `doctor` calls a file of this format."""
    claims: Callable[[str], bool]
    """Whether a path says that the file is of this format."""
    group: Callable[[Sequence[FoundFile], Grouped], Grouped]
    """Groups files of this format into captures; adds them to those of earlier formats."""
    reader: Callable[[], Reader]
    """Imports the reader, which takes as long as reading a small file."""
    slicing_reader: Callable[[Slicing], Reader] | None = None
    """A reader that lets several processes or threads decode a file; None if there is none."""
    least_sliced_bytes: int = 0
    """A smaller file is decoded here before processes have started."""
    sniff: Callable[[bytes, bool], Sniffed | None] | None = None
    """Recognizes the inflated beginning of a file; told whether the name claims a trace. None for
    formats whose name is proof enough."""
    framework: str = "unknown"
    """What wrote such files, as far as the format alone tells."""
    owns_sessions: bool = False
    """Other files of a profile session are copies of this format's."""
    is_read_by_profile_tab: bool = False
    is_export: bool = False
    """Made from an xplane, which the Profile tab would need."""


def host_capture(
    run: str, session: str, format: str, entries: Sequence[FileEntry], hosts: Sequence[str]
) -> Capture:
    """A capture of files that are named after the hosts that recorded them.

    `hosts` has the host of each file; empty where the name says none.
    """
    files = [profile_file(entry, host=host) for entry, host in zip(entries, hosts, strict=True)]
    return make_capture(run, session, format, files)


def by_session(files: Sequence[FoundFile]) -> dict[tuple[str, str], list[FileEntry]]:
    """Files of one profile session together; each of the others by its directory and name."""
    groups: dict[tuple[str, str], list[FileEntry]] = defaultdict(list)
    for file in files:
        path = file.entry.path
        groups[file.session or (directory_of(path), stem_of(path))].append(file.entry)
    return groups


def reader_of_one_trace(read: Callable[[Mapping[str, Opener], Source], Trace]) -> Reader:
    """A reader of workers whose files never hold several traces."""
    return lambda files, source: iter((read(files, source),))


def reader_of_documents(read: Callable[[BinaryIO, Source], Iterator[Trace]]) -> Reader:
    """A reader of workers that have one file each, from a reader of streams."""

    def read_worker(files: Mapping[str, Opener], source: Source) -> Iterator[Trace]:
        (open_file,) = files.values()
        with open_file() as stream:
            yield from read(stream, source)

    return read_worker


def reader_of_one_file(read: Callable[[BinaryIO, Source], Trace]) -> Reader:
    """The same for files that never hold several documents."""
    return reader_of_documents(lambda stream, source: iter((read(stream, source),)))
