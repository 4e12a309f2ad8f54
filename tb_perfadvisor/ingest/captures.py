"""What is found in a log directory: profile files, and the captures that they make up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.trace_names import stem_of
from tb_perfadvisor.machine.facts import SUFFIX

COMPILE_LOG_FORMAT = "torch-compile-log"
"""The format of captures that are no profile, but a log of torch.compile."""


class ProfileFile(FileEntry, frozen=True):
    """One file of a capture."""

    rank: int | None = None
    host: str = ""


def profile_file(entry: FileEntry, rank: int | None = None, host: str = "") -> ProfileFile:
    """A file that was listed, as one of a capture."""
    return ProfileFile(
        entry.path,
        entry.size_bytes,
        entry.mtime_ns,
        entry.version,
        entry.raw_path,
        entry.boundary,
        rank=rank,
        host=host,
    )


class WorkerFiles(Struct, frozen=True):
    """What one worker of a capture recorded: all that another process needs to read it."""

    files: tuple[ProfileFile, ...]
    run: str
    session: str
    format: str
    snapshot: ProfileFile | None
    """The memory snapshot beside them."""
    facts: ProfileFile | None
    """What the recorder stored beside them."""
    rich: ProfileFile | None
    """The same worker's rich recording of other steps, from which names are taken."""
    graphs: tuple[ProfileFile, ...]
    """The same worker's recordings of the capture of GPU graphs."""
    is_only: bool
    """Whether the capture has no other worker."""


class Capture(Struct, frozen=True, dict=True):
    """Files that were recorded together: one report."""

    id: str
    """Opaque and stable."""
    run: str
    session: str
    format: str
    """The name of one of `formats.FORMATS`."""
    files: tuple[ProfileFile, ...]
    compile_logs: tuple[ProfileFile, ...] = ()
    """Logs of torch.compile in the same directory: not needed, but they explain what it did."""
    snapshots: tuple[ProfileFile, ...] = ()
    """Memory snapshots in the same directory, at most one for each worker."""
    facts: tuple[ProfileFile, ...] = ()
    """What our recorders stored beside the files of the profile, at most one for each."""
    timers: tuple[ProfileFile, ...] = ()
    """What our recorders measured of the whole run, at most one file for each process."""
    rich: tuple[ProfileFile, ...] = ()
    """A rich recording of the same run: shapes and lines of operators are taken from it."""
    graphs: tuple[ProfileFile, ...] = ()
    """Recordings of the same server while it captured GPU graphs: replayed kernels take their
    operators from these."""
    merges_hosts: bool = False
    """The files of one host are read together, as one worker."""

    @property
    def attached(self) -> tuple[ProfileFile, ...]:
        """Files beside those of the profile that its report depends on."""
        beside = (*self.compile_logs, *self.snapshots, *self.facts, *self.timers)
        return (*beside, *self.rich, *self.graphs)

    @cached_property
    def workers(self) -> tuple[WorkerFiles, ...]:
        """The files of each worker."""
        by_worker: dict[object, list[ProfileFile]] = defaultdict(list)
        for place, file in enumerate(self.files):
            by_worker[file.host if self.merges_hosts else place].append(file)
        is_only = len(by_worker) == 1
        # Use the first snapshot of each rank.
        by_rank = {file.rank: file for file in reversed(self.snapshots)}
        rich = {file.rank: file for file in reversed(self.rich)}
        facts = {name_of_facts(file.path): file for file in self.facts}
        return tuple(
            WorkerFiles(
                files=tuple(files),
                run=self.run,
                session=self.session,
                format=self.format,
                snapshot=next(iter(self.snapshots), None)
                if is_only
                else by_rank.get(files[0].rank),
                facts=facts.get(name_of(files[0].path)),
                rich=next(iter(self.rich), None) if is_only else rich.get(files[0].rank),
                graphs=tuple(each for each in self.graphs if is_only or each.rank == files[0].rank),
                is_only=is_only,
            )
            for files in by_worker.values()
        )


class Rejected(Struct, frozen=True):
    """A file whose name says that it is a profile and whose content cannot be read as one."""

    path: str
    reason: str


class Listing(Struct, frozen=True):
    """What lies below a root."""

    root: str
    captures: tuple[Capture, ...]
    rejected: tuple[Rejected, ...]
    scanned_files: int
    is_complete: bool
    """Whether everything was looked at."""
    gaps: tuple[str, ...] = ()
    """What was not looked at, and why: a phrase each."""
    event_files: tuple[FileEntry, ...] = ()
    """What TensorBoard's writers wrote, in order of their paths; none of them was opened."""

    def capture(self, capture_id: str) -> Capture | None:
        """The capture with an id."""
        return next((capture for capture in self.captures if capture.id == capture_id), None)


def make_capture(
    run: str,
    session: str,
    format: str,
    files: Iterable[ProfileFile],
    *,
    merges_hosts: bool = False,
) -> Capture:
    """A capture with its files in order of rank, then host, and with an id made of their paths."""
    ordered = tuple(
        sorted(files, key=lambda file: (file.rank is None, file.rank or 0, file.host, file.path))
    )
    import hashlib  # loads OpenSSL, which reading a capture does not need

    text = "\0".join([run, session, *sorted(file.system_path for file in ordered)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Capture(digest, run, session, format, ordered, merges_hosts=merges_hosts)


def name_of(path: str) -> tuple[str, str]:
    """The directory of a file, and its name without suffixes."""
    return directory_of(path), stem_of(path)


def name_of_facts(path: str) -> tuple[str, str]:
    """The same for a file of facts: that of the file that they are of."""
    return name_of(path.removesuffix(SUFFIX))


def directory_of(path: str) -> str:
    """The directory of a file relative to the root; `.` for the root."""
    return path.rpartition("/")[0] or "."
