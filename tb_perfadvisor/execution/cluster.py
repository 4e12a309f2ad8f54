"""A Dask cluster as the place where files are read, each by a worker that it lies near to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tb_perfadvisor.errors import PerfAdvisorError, UsageError

_CONNECT_S = 15
_EXTRA = "pip install 'tb_perfadvisor[dask]'"


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of a scheduler, as an executor.

    A worker that dies costs what it was reading, which another reads again. Only files go
    through the cluster; what they are summed up to comes back.

    Args:
        address: Of the scheduler: `tcp://host:8786`, `tls://…`.

    Raises:
        UsageError: When the extra is missing, nobody answers, or no worker can do the work.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "reading through a Dask cluster needs the package distributed.",
            where="--scheduler",
            hint=f"Install it: {_EXTRA}",
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address}.",
            where="--scheduler",
            hint="See that it runs and can be reached from here: dask scheduler --port 8786",
        ) from error
    try:
        _check_workers(client, address)
        yield _Workers(client.get_executor(pure=False))
    finally:
        client.close(timeout=_CONNECT_S)


def _check_workers(client: Any, address: str) -> None:
    """Every worker must have the package, in this version: they exchange its objects."""
    own = _version()
    try:
        found: dict[str, str] = client.run(_version)
    except Exception as error:  # whatever a worker without the package makes of the call
        raise UsageError(
            f"the workers of {address} cannot import tb_perfadvisor: {error}",
            where="--scheduler",
            hint=f"On the workers: {_EXTRA}",
        ) from error
    if not found:
        raise UsageError(
            f"the scheduler at {address} has no workers.",
            where="--scheduler",
            hint=f"Start some: dask worker {address}",
        )
    other = {one for one in found.values() if one != own}
    if other:
        versions = ", ".join(sorted(other))
        raise UsageError(
            f"workers of {address} have tb_perfadvisor {versions}, this is {own}.",
            where="--scheduler",
            hint="Install the same version everywhere.",
        )


def _version() -> str:
    """Of the package here; on a worker, there."""
    try:
        return version("tb_perfadvisor")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


class _Workers(Executor):
    """The client's executor, whose own errors are turned into ours."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._inner.submit(fn, *args, **kwargs).add_done_callback(
            lambda done: _settle(done, future)
        )
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait=wait)


def _settle(done: Future[Any], future: Future[Any]) -> None:
    try:
        future.set_result(done.result())
    except PerfAdvisorError as error:
        future.set_exception(error)
    except CancelledError:
        future.set_exception(_lost("the cluster dropped the work."))
    except Exception as error:  # KilledWorker, a lost connection, an error of the cluster's own
        named = type(error).__name__
        future.set_exception(_lost(f"the cluster's workers could not read it ({named})."))


def _lost(message: str) -> PerfAdvisorError:
    return PerfAdvisorError(
        message, hint="See the workers' logs; give them more memory, or fewer threads each."
    )
