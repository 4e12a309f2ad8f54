"""A fork of this process that works something out for it.

A fork costs a millisecond where a process that is started afresh costs a tenth of a second. It is
made before this process has threads, since a fork of a process with threads can hang. Columns
come back in shared memory, of which only their places are told.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")

_ALIGNMENT = 64


def can_fork() -> bool:
    """Whether a fork is safe here and now, and has a processor to run on."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return False
    if not hasattr(os, "memfd_create"):  # Pythons that are built for glibc before 2.27
        return False
    try:  # libraries have threads that Python does not know of
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - pathlib is not imported
    except OSError:
        return False


class Fork(Generic[T]):
    """What a fork works out. A context that ends the fork.

    Args:
        prepare: Called in the fork, which has no threads yet; returns what does the work.
    """

    def __init__(self, prepare: Callable[[], Callable[[], T]]) -> None:
        """Fork.

        Raises:
            OSError: When that cannot be done.
        """
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
            _work(prepare, self._memory, telling)
        os.close(telling)

    def __enter__(self) -> Fork[T]:
        """It is running already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """End the fork, whether or not anybody asked for its result."""
        if self._fork:
            os.kill(self._fork, signal.SIGKILL)
            os.waitpid(self._fork, 0)
            self._fork = 0
            self._close()

    def result(self) -> T:
        """What it has worked out, once; what it has raised is raised.

        Raises:
            ChildProcessError: When it was ended from outside.
        """
        import pickle

        with os.fdopen(os.dup(self._told), "rb") as told:
            message = told.read()
        try:
            content, spans = pickle.loads(message)
        except (EOFError, pickle.UnpicklingError) as error:
            raise ChildProcessError from error
        # It has said all, and is left to end while this goes on.
        size = os.fstat(self._memory).st_size
        # Read-only, as columns are; they keep the mapping as long as they live.
        shared = memoryview(mmap.mmap(self._memory, size, prot=mmap.PROT_READ) if size else b"")
        result: Any = pickle.loads(content, buffers=[shared[start:end] for start, end in spans])
        if isinstance(result, Exception):
            raise result
        made: T = result
        return made

    def _close(self) -> None:
        os.close(self._memory)
        os.close(self._told)


def _work(prepare: Callable[[], Callable[[], Any]], memory: int, telling: int) -> NoReturn:
    """Work in the fork, and end it without the cleaning up that is the parent's."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is the parent that says what happened
        buffers: list[Any] = []
        try:
            work = prepare()
            threading.Thread(target=_end_with_reader, args=(telling,), daemon=True).start()
            content = _pickled(work(), buffers)
        except Exception as error:
            content, buffers = _pickled(error, []), []
        spans, end = [], 0
        with os.fdopen(memory, "wb") as shared, os.fdopen(telling, "wb") as told:
            for buffer in buffers:
                start = -(-end // _ALIGNMENT) * _ALIGNMENT
                shared.seek(start)
                end = start + shared.write(buffer.raw())
                spans.append((start, end))
            shared.flush()
            told.write(_pickled((content, spans), []))
        status = 0
    finally:
        os._exit(status)


def _pickled(made: Any, buffers: list[Any]) -> bytes:
    """What was worked out; its columns go to the buffers, those of one value as that value."""
    import io
    import pickle

    from tb_perfadvisor.trace.tables import is_repeated, repeated

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if is_repeated(value):
                return repeated, (value[0], len(value), value.dtype)
            return NotImplemented

    content = io.BytesIO()
    Pickler(content, protocol=5, buffer_callback=buffers.append).dump(made)
    return content.getvalue()


def _end_with_reader(telling: int) -> None:
    """End when nobody can hear what this process would say: when its parent has ended."""
    watch = select.poll()
    watch.register(telling, 0)
    watch.poll()
    os._exit(1)
