"""A Dask cluster whose workers read files that lie near to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.extras import install_command
from tb_perfadvisor.plain_text import shell_word

_CONNECT_S = 15


@contextmanager
def open_cluster(address: str) -> Iterator[Executor]:
    """The workers of a scheduler, as an executor.

    When a worker dies, another one reads its file again. Files stay on the workers; only the
    summary of each rank comes back.

    The address is that of the scheduler: `tcp://host:8786`, `tls://…`.
    """
    try:
        from distributed import Client
        from distributed.comm import resolve_address
    except ImportError as error:
        raise UsageError(
            "reading through a Dask cluster needs the package distributed.",
            where="--scheduler",
            hint=f"Install it with `{install_command('dask')}`.",
        ) from error
    try:
        resolve_address(address)  # a client with another text waits half a minute before it ends
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, Warning) as error:  # ucx:// is a FutureWarning
        raise UsageError(
            f"no Dask scheduler answers at {address}.",
            where="--scheduler",
            hint="Check that it runs and can be reached from here: dask scheduler --port 8786",
        ) from error
    try:
        _check_workers(client, address)
        yield _ClusterExecutor(client.get_executor(pure=False))
    finally:
        client.close(timeout=_CONNECT_S)


def _check_workers(client: Any, address: str) -> None:
    """Require the same version of the package on every worker: they exchange its objects."""
    expected = _version()
    try:
        versions: dict[str, str] = client.run(_version)
    except Exception as error:  # whatever a worker without the package makes of the call
        raise UsageError(
            f"the workers of {address} cannot import tb_perfadvisor: {error}",
            where="--scheduler",
            hint="Install it on the workers, in the same version as here.",
        ) from error
    if not versions:
        raise UsageError(
            f"the scheduler at {address} has no workers.",
            where="--scheduler",
            hint=f"Start some: dask worker {shell_word(address)}",
        )
    if different := sorted({found for found in versions.values() if found != expected}):
        raise UsageError(
            f"workers of {address} have tb_perfadvisor {', '.join(different)}, this is {expected}.",
            where="--scheduler",
            hint="Install the same version everywhere.",
        )


def _version() -> str:
    """The package's version, here or on a worker."""
    try:
        return version("tb_perfadvisor")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


class _ClusterExecutor(Executor):
    """The client's executor, with Dask's errors turned into ours."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._inner.submit(fn, *args, **kwargs).add_done_callback(
            lambda done: _copy_outcome(done, future)
        )
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait=wait)


def _copy_outcome(done: Future[Any], future: Future[Any]) -> None:
    try:
        future.set_result(done.result())
    except PerfAdvisorError as error:
        future.set_exception(error)
    except CancelledError:
        future.set_exception(_cluster_error("the cluster dropped the task."))
    except Exception as error:  # KilledWorker, a lost connection, an error inside Dask
        name = type(error).__name__
        future.set_exception(_cluster_error(f"the cluster's workers could not read it ({name})."))


def _cluster_error(message: str) -> PerfAdvisorError:
    return PerfAdvisorError(
        message, hint="See the workers' logs; give them more memory, or fewer threads each."
    )
