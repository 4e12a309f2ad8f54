"""Times the worker processes of a PyTorch DataLoader, which no profiler of the program sees.

In a worker, the fetcher of batches is wrapped: it sends what each batch took through a pipe. In the
training process, the loader's iterator puts those messages into the profile, as marks inside the
fetches. Both cost microseconds per batch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.machine.this_machine import open_cores

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    Loader = TypeVar("Loader", bound=DataLoader[Any])

_IO = Path("/proc/self/io")
_UNKNOWN = -1


class WorkerBatch(NamedTuple):
    """What one batch took in its worker."""

    worker: int
    workers: int
    cores: int
    """How many processors the worker may use."""
    wall_us: int
    cpu_us: int
    """Of all threads of the worker."""
    files: int
    """How many files Python code opened."""
    read_bytes: int
    """From files and pipes; -1 where the system does not tell."""
    samples: int = _UNKNOWN
    """-1 if the dataset makes whole batches itself."""
    system_us: int = _UNKNOWN
    """Part of the processor time that the operating system took; -1 where it does not tell."""
    collate_us: int = _UNKNOWN
    """Part of the wall time that the loader's `collate_fn` took."""

    def mark(self, threads: int) -> str:
        """The mark in the profile; tb_perfadvisor.signals.input.loader_workers reads it.

        Args:
            threads: How many threads an operator of the training process may use.
        """
        return (
            f"DataLoader worker {self.worker} of {self.workers} on {self.cores} cores beside"
            f" {threads} threads: {self.wall_us} us, CPU {self.cpu_us} us, {self.files} files,"
            f" {self.read_bytes} bytes, {self.samples} samples, system {self.system_us} us,"
            f" collate {self.collate_us} us"
        )


def time_workers(loader: Loader) -> Loader:
    """Time the worker processes of a loader in all profiles recorded from now on.

    A profile of the training process shows only that it waits for the workers. With this, each
    fetch also carries what the workers' latest batches took: wall time, processor time, the time in
    `collate_fn`, and the number of samples, files and bytes.

    Args:
        loader: A DataLoader before its first epoch. It changes in place: its workers start with
            one more function, and its class becomes a subclass of its own. A loader without
            workers stays as it is, because the profiler sees its work.

    Returns:
        The same loader.

    Raises:
        UsageError: If the loader has already started persistent workers.
    """
    if not loader.num_workers or hasattr(loader, "_timed_batches"):
        return loader
    if loader._iterator is not None:  # only loaders with persistent workers keep it
        raise UsageError(
            "The loader has started its workers already.",
            hint="Call time_workers before the first epoch.",
        )
    context: Any = loader.multiprocessing_context or multiprocessing
    batches = context.SimpleQueue()
    loader.worker_init_fn = _TimedWorker(loader.worker_init_fn, loader.num_workers, batches)
    loader.__class__ = _timed_loader(type(loader))
    loader._timed_batches = batches
    return loader


def _timed_loader(kind: Any) -> Any:
    """A class of loaders whose iterators mark what the workers report.

    Derived classes instead of wrapped methods, which would hold their own object: an iterator must
    end its workers as soon as nobody uses it.
    """

    def get_iterator(loader: Any) -> Any:
        iterator = kind._get_iterator(loader)
        iterator._timed_batches = loader._timed_batches
        iterator.__class__ = _timed_iterator(type(iterator))
        return iterator

    return type(kind.__name__, (kind,), {"_get_iterator": get_iterator})


def _timed_iterator(kind: Any) -> Any:
    import torch
    from torch.autograd.profiler import record_function

    def next_data(iterator: Any) -> Any:
        data = kind._next_data(iterator)
        while not iterator._timed_batches.empty():
            batch = iterator._timed_batches.get()
            if torch.autograd._profiler_enabled():
                with record_function(batch.mark(torch.get_num_threads())):
                    pass
        return data

    return type(kind.__name__, (kind,), {"_next_data": next_data})


class _TimedWorker:
    """Runs when a worker starts; a class, because it may have to be pickled."""

    def __init__(self, init: Callable[[int], None] | None, workers: int, batches: Any) -> None:
        self._init = init
        self._workers = workers
        self._batches = batches

    def __call__(self, worker: int) -> None:
        from torch.utils.data._utils import fetch

        if self._init is not None:
            self._init(worker)
        files, cores = _OpenedFiles(), len(open_cores()) or os.cpu_count() or 1

        def report(begin: _Usage, end: _Usage, collate: _TimedCollate) -> None:
            self._batches.put(
                WorkerBatch(
                    worker,
                    self._workers,
                    cores,
                    (end.wall_ns - begin.wall_ns) // 1000,
                    (end.cpu_ns - begin.cpu_ns) // 1000,
                    end.files - begin.files,
                    _difference(end.read_bytes, begin.read_bytes),
                    collate.samples,
                    _difference(end.system_us, begin.system_us),
                    collate.wall_ns // 1000,
                )
            )

        fetchers: tuple[Any, ...] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
        for fetcher in fetchers:
            fetcher.fetch = _timed(fetcher.fetch, files, report)


class _OpenedFiles:
    """Counts the files that Python code opens in this process."""

    def __init__(self) -> None:
        self.count = 0
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        self.count += event == "open"


class _Usage(NamedTuple):
    """What a worker has used since it started."""

    read_bytes: int
    files: int
    system_us: int
    cpu_ns: int
    wall_ns: int


def _difference(end: int, begin: int) -> int:
    return _UNKNOWN if _UNKNOWN in (end, begin) else end - begin


class _TimedCollate:
    """Times a loader's `collate_fn`, and counts the samples that it gets."""

    def __init__(self, collate: Callable[[Any], Any], counts_samples: bool) -> None:
        self._collate = collate
        self._counts_samples = counts_samples
        self.samples = _UNKNOWN
        self.wall_ns = 0

    def __call__(self, data: Any) -> Any:
        if self._counts_samples and isinstance(data, list | tuple):
            self.samples = len(data)
        begin_ns = time.perf_counter_ns()
        batch = self._collate(data)
        self.wall_ns = time.perf_counter_ns() - begin_ns
        return batch


def _timed(
    fetch: Callable[..., Any],
    files: _OpenedFiles,
    report: Callable[[_Usage, _Usage, _TimedCollate], None],
) -> Callable[..., Any]:
    @wraps(fetch)
    def timed(fetcher: Any, *arguments: Any) -> Any:
        # Without automatic batching, the data is whatever the dataset makes.
        if not isinstance(fetcher.collate_fn, _TimedCollate):
            fetcher.collate_fn = _TimedCollate(fetcher.collate_fn, fetcher.auto_collation)
        # Read the clocks last here and first below: counting bytes opens a file and takes time.
        begin = _Usage(
            read_bytes=_read_bytes(),
            files=files.count,
            system_us=_system_us(),
            cpu_ns=time.process_time_ns(),
            wall_ns=time.perf_counter_ns(),
        )
        batch = fetch(fetcher, *arguments)
        end = _Usage(
            wall_ns=time.perf_counter_ns(),
            cpu_ns=time.process_time_ns(),
            system_us=_system_us(),
            files=files.count,
            read_bytes=_read_bytes(),
        )
        report(begin, end, fetcher.collate_fn)
        return batch

    return timed


def _system_us() -> int:
    """Processor time that the operating system took for this process; -1 on Windows."""
    if resource is None:
        return _UNKNOWN
    return round(1e6 * resource.getrusage(resource.RUSAGE_SELF).ru_stime)


def _read_bytes() -> int:
    """How much this process has read; -1 where the system does not tell."""
    with contextlib.suppress(OSError):
        first_line, _, _ = _IO.read_bytes().partition(b"\n")
        return int(first_line.removeprefix(b"rchar: "))
    return _UNKNOWN
