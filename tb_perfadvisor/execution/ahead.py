"""Reads one file in forks of this process, while this one imports what will analyze it.

Importing the rules takes as long as reading thirty megabytes, and neither needs the other. The
fork is made before anything is imported, numpy included: both processes take as long for what
both need, but side by side. It has imported what it reads with when it is told what to read. Of a
long trace a fork of its own reads the second half; where that leaves this process no processor,
it waits with what it may as well import while one of the two puts the halves together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from tb_perfadvisor.execution.heap import keep_freed_memory
from tb_perfadvisor.ingest.fork import Fork, can_fork

if TYPE_CHECKING:
    from types import TracebackType

    from tb_perfadvisor.ingest.discovery import Capture, Format
    from tb_perfadvisor.ingest.load import Reader, Worker
    from tb_perfadvisor.trace import Source, Trace

    Halves = tuple[
        Callable[[BinaryIO], "int | None"],
        Callable[[BinaryIO, int], Any],
        Callable[[BinaryIO, Source, Any], Trace],
    ]

# Below this, a file is read in less time than it takes to fork and to hand its columns over.
_WORTH_BYTES = 300_000

# As many processors as there are readers of a long file leave none to the command.
_READERS = 2

_standing_by: Ahead | None = None


def stand_by() -> None:
    """Fork; `begin_reading` will say what to read, or that there is nothing."""
    global _standing_by
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # nothing here is linear algebra
    keep_freed_memory()  # the fork's too
    _standing_by = _new()


def dismiss() -> None:
    """End what still stands by, which holds the terminal or the pipe open."""
    global _standing_by
    ahead, _standing_by = _standing_by, None
    if ahead is not None:
        ahead.__exit__()


def begin_reading(root: str, captures: Sequence[Capture]) -> Ahead | None:
    """Begin to read the one file that there is to read, where that is safe and worth it.

    Args:
        root: Of the listing.
        captures: What will be analyzed here; none where others read it.

    Returns:
        None where there are more files, or where this process had better read it itself.
    """
    global _standing_by
    if not _is_worth_it(root, captures):
        dismiss()
        return None
    ahead, _standing_by = _standing_by or _new(), None
    if ahead is not None:
        ahead.begin(root, captures[0])
    return ahead


class Ahead:
    """The worker of a capture that has one, as a fork reads it. A context that ends the fork."""

    def __init__(self) -> None:
        """Fork.

        Raises:
            OSError: When that cannot be done.
        """
        self._where = ""
        asked, self._asking = os.pipe()
        self._idle, idling = os.pipe()
        try:
            self._fork = Fork(partial(_prepare, asked, self._asking, idling))
        except OSError:
            os.close(self._asking)
            os.close(self._idle)
            raise
        finally:
            os.close(asked)
            os.close(idling)

    def __enter__(self) -> Ahead:
        """It is running already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """End the fork, whether or not anybody asked for its result."""
        self._fork.__exit__(kind, error, trace)

    def begin(self, root: str, capture: Capture) -> None:
        """Say what to read, once.

        Args:
            root: Of the listing.
            capture: Out of it, with one file.
        """
        import msgspec

        self._where = capture.files[0].path
        with os.fdopen(self._asking, "wb") as asking:
            asking.write(msgspec.msgpack.encode((root, capture)))

    def make_way(self) -> None:
        """Wait until there is a processor that reads nothing: for what can as well be done then."""
        with os.fdopen(self._idle, "rb") as idle:
            if len(os.sched_getaffinity(0)) <= _READERS:
                idle.read(1)  # or the end of all who could write: nothing is being read

    def read(self) -> Worker:
        """What it has read, once.

        Raises:
            PerfAdvisorError: When the file cannot be read.
        """
        from tb_perfadvisor.hardware import known_devices
        from tb_perfadvisor.ingest.load import ended_early

        known_devices()  # read from a file when first asked for: best while there is time
        import numpy.ma  # noqa: F401 - so is this, which `numpy.unique` asks for

        try:
            return self._fork.result()
        except ChildProcessError as error:
            raise ended_early(self._where) from error


class _SecondHalf:
    """What a fork of the fork reads."""

    def __init__(self, fork: Fork[Any], begins_behind: int, idling: int) -> None:
        self._fork = fork
        self._idling = idling
        self.begins_behind = begins_behind

    def result(self) -> Any:
        """What it has read; None too where it could not, which reading all will explain."""
        _tell(self._idling)
        try:
            return self._fork.result()
        except Exception:  # who reads all meets what it met, or does not
            return None


def _new() -> Ahead | None:
    if not can_fork():
        return None
    try:
        return Ahead()
    except OSError:  # no further process, no shared memory
        return None


def _is_worth_it(root: str, captures: Sequence[Capture]) -> bool:
    from tb_perfadvisor.ingest.files.local_and_remote import is_url

    if len(captures) != 1 or len(captures[0].files) != 1 or is_url(root):
        return False
    return captures[0].files[0].size_bytes >= _WORTH_BYTES


def _prepare(asked: int, asking: int, idling: int) -> Callable[[], Worker]:
    """In the fork: import what reads, and hear what to read."""
    os.close(asking)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # this process may fork once more
    import msgspec

    import tb_perfadvisor.ingest.kineto.reader  # noqa: F401 - most files are such
    from tb_perfadvisor.ingest.discovery import Capture
    from tb_perfadvisor.ingest.load import read_worker, reader_of

    with os.fdopen(asked, "rb") as hearing:
        request = hearing.read()
    if not request:  # the command has ended
        os._exit(0)
    root, capture = msgspec.msgpack.decode(request, type=tuple[str, Capture])
    reader = _in_halves(root, capture, idling)
    if reader is None:
        _tell(idling)
        reader = reader_of(capture.format)
    return partial(read_worker, root, capture, capture.files, None, True, reader)


def _tell(idling: int) -> None:
    """Tell the command that there is a processor for it."""
    with suppress(BrokenPipeError):  # it does not wait for that
        os.write(idling, b".")


def _in_halves(root: str, capture: Capture, idling: int) -> Reader | None:
    """A reader whose second half is being read from now on; None where that is of no use."""
    from tb_perfadvisor.ingest.load import open_profile

    halves = _halves_of(capture.format)
    if halves is None or not can_fork():
        return None
    middle_of, read_rest, read_with = halves
    try:
        with open_profile(root, capture.files[0]) as stream:
            middle = middle_of(stream)
    except OSError:
        return None

    def read() -> Any:
        assert middle is not None
        with open_profile(root, capture.files[0]) as stream:
            rest = read_rest(stream, middle)
        _tell(idling)
        return rest

    if middle is None:
        return None
    try:
        fork: Fork[Any] = Fork(lambda: read)
    except OSError:
        return None

    def read_both(stream: BinaryIO, source: Source) -> Trace:
        with fork:
            return read_with(stream, source, _SecondHalf(fork, middle, idling))

    return read_both


def _halves_of(format: Format) -> Halves | None:
    """What finds the middle of a file, what reads the rest of it, and what reads it with that."""
    if format == "kineto":
        from tb_perfadvisor.ingest.kineto import halves as of_kineto
        from tb_perfadvisor.ingest.kineto.reader import read_kineto

        return of_kineto.middle_of, of_kineto.read_rest, read_kineto
    if format == "xplane":
        from tb_perfadvisor.ingest.xplane import halves as of_xplane
        from tb_perfadvisor.ingest.xplane.reader import read_xplane

        return of_xplane.middle_of, of_xplane.read_rest, read_xplane
    return None
