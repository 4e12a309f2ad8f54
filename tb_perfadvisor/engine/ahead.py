"""Reads one file in a fork of this process, while this one imports what will analyse it.

Importing the rules takes as long as reading thirty megabytes, and neither needs the other. A fork
costs a millisecond where a process that is started afresh costs as much as either; it is made
before anything is imported that has threads, since a fork of a process with threads can hang.
The columns come back in shared memory, of which only their places are told.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import TracebackType

    from tb_perfadvisor.ingest.discovery import Capture
    from tb_perfadvisor.ingest.load import Worker

# Below this, a file is read in less time than it takes to fork and to hand its columns over.
_WORTH_BYTES = 300_000
_ALIGNMENT = 64


def begin_reading(root: str, captures: Sequence[Capture]) -> Ahead | None:
    """Begin to read the one file that there is to read, where that is safe and worth it.

    Args:
        root: Of the listing.
        captures: What will be analysed.

    Returns:
        None where there are more files, or where this process had better read it itself.
    """
    from tb_perfadvisor.ingest.files import is_url

    if len(captures) != 1 or len(captures[0].files) != 1 or is_url(root) or not _can_fork():
        return None
    if captures[0].files[0].size_bytes < _WORTH_BYTES:
        return None
    try:
        return Ahead(root, captures[0])
    except OSError:  # no further process, no shared memory
        return None


class Ahead:
    """The worker of a capture that has one, as a fork reads it. A context that ends the fork.

    Args:
        root: Of the listing.
        capture: What to read.
    """

    def __init__(self, root: str, capture: Capture) -> None:
        """Fork.

        Raises:
            OSError: When that cannot be done.
        """
        self._where = capture.files[0].path
        self._memory = os.memfd_create("tb_perfadvisor")
        self._told, telling = os.pipe()
        try:
            self._fork = os.fork()
        except OSError:
            self._close()
            os.close(telling)
            raise
        if self._fork == 0:
            os.close(self._told)
            _work(root, capture, self._memory, telling)
        os.close(telling)

    def __enter__(self) -> Ahead:
        """It is running already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the fork if nobody asked for its result."""
        if self._fork:
            os.kill(self._fork, signal.SIGKILL)
            os.waitpid(self._fork, 0)
            self._close()

    def read(self) -> Worker:
        """What it has read, once.

        Raises:
            PerfAdvisorError: When the file cannot be read.
        """
        import pickle

        from tb_perfadvisor.hardware import known_devices
        from tb_perfadvisor.ingest.load import ended_early

        known_devices()  # read from a file when first asked for: best while there is time
        with os.fdopen(os.dup(self._told), "rb") as told:
            message = told.read()
        _, status = os.waitpid(self._fork, 0)
        self._fork = 0
        size = os.fstat(self._memory).st_size
        # Read-only, as columns are; they keep the mapping as long as they live.
        shared = memoryview(mmap.mmap(self._memory, size, prot=mmap.PROT_READ) if size else b"")
        self._close()
        if status:
            raise ended_early(self._where)
        content, spans = pickle.loads(message)
        result = pickle.loads(content, buffers=[shared[start:end] for start, end in spans])
        if isinstance(result, Exception):
            raise result
        worker: Worker = result
        return worker

    def _close(self) -> None:
        os.close(self._memory)
        os.close(self._told)


def _can_fork() -> bool:
    """Whether a fork is safe here and now, and has a processor to run on."""
    return (
        sys.platform == "linux"
        and "numpy" not in sys.modules
        and threading.active_count() == 1
        and len(os.sched_getaffinity(0)) > 1
    )


def _work(root: str, capture: Capture, memory: int, telling: int) -> NoReturn:
    """Read in the fork, and end it without the cleaning up that is the parent's."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is the parent that says what happened
        threading.Thread(target=_end_with_reader, args=(telling,), daemon=True).start()
        import pickle

        from tb_perfadvisor.ingest.load import read_worker

        buffers: list[pickle.PickleBuffer] = []
        try:
            worker = read_worker(root, capture, capture.files, None, keeps_trace=True)
            content = pickle.dumps(worker, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            content, buffers = pickle.dumps(error), []
        spans, end = [], 0
        with os.fdopen(memory, "wb") as shared, os.fdopen(telling, "wb") as told:
            for buffer in buffers:
                start = -(-end // _ALIGNMENT) * _ALIGNMENT
                shared.seek(start)
                end = start + shared.write(buffer.raw())
                spans.append((start, end))
            shared.flush()
            told.write(pickle.dumps((content, spans)))
        status = 0
    finally:
        os._exit(status)


def _end_with_reader(telling: int) -> None:
    """End when nobody can hear what this process would say: when its parent has ended."""
    watch = select.poll()
    watch.register(telling, 0)
    watch.poll()
    os._exit(1)
