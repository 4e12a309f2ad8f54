"""Starts what requests need, and reports its progress or its failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from werkzeug import wrappers

from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.documents import Request, keys_of
from tb_perfadvisor.plugin.jobs import JobState
from tb_perfadvisor.plugin.origins import client_of, require_same_origin
from tb_perfadvisor.plugin.responses import ApiError, NotReady
from tb_perfadvisor.plugin.results import Results
from tb_perfadvisor.plugin.whole_runs import WholeRun

# Clicks come one by one.
_MOST_WAITING = 32
# Documents of the largest reports take a few seconds; proxies wait for a minute.
_WAIT_S = 45.0
_LATER = "Try again in a moment."


def ensure_started(request: wrappers.Request, results: Results, entry: Entry) -> dict[str, Any]:
    """Start the analysis of a capture if necessary, and report its progress.

    An analysis that failed or was canceled starts again only if the user asks for that.
    """
    client = client_of(request)
    results.join(entry, client)
    return _ensure_started(
        request,
        lambda: results.state(entry, client),
        lambda: results.start(entry, client),
        entry.run,
    )


def ensure_view_started(
    request: wrappers.Request, results: Results, wanted: WholeRun
) -> dict[str, Any]:
    """Start to make the view of a whole run if necessary, and report the progress."""
    return _ensure_started(
        request,
        lambda: results.whole_run_state(wanted),
        lambda: results.start_whole_run(wanted),
        wanted.place,
    )


def _ensure_started(
    request: wrappers.Request,
    read_state: Callable[[], JobState | None],
    start: Callable[[], None],
    where: str,
) -> dict[str, Any]:
    state = read_state()
    if state is None or is_retry(request):
        require_same_origin(request)
        start()
        state = read_state() or JobState("queued", "waiting", queue_position=0)
    _refuse_failed(state, where)
    return _progress_of(state)


def _progress_of(state: JobState) -> dict[str, Any]:
    return {
        "status": state.status,
        "stage": state.stage,
        "progress": state.progress,
        "queue_position": state.queue_position,
    }


def document(request: wrappers.Request, results: Results, wanted: Request) -> bytes | None:
    """A document from the cache, or made now; None if one of the results that it needs is missing.

    A request waits only for what is being made, as each one that waits has a thread of TensorBoard.

    Raises:
        ApiError: If it cannot be made, or the request must not start that.
        NotReady: If others are made before it, or it takes long.
    """
    if not _has_results(results, wanted):
        return None
    content = results.document(wanted)
    if content is not None:
        return content
    require_same_origin(request)
    if results.documents_waiting >= _MOST_WAITING and not results.is_making(wanted):
        raise ApiError(503, "too many documents are being made.", hint=_LATER)
    state = results.make(wanted, _WAIT_S)
    if not _has_results(results, wanted):  # one was removed meanwhile
        return None
    content = results.document(wanted)
    if content is not None:
        return content
    if state is None or state.status == "canceled":  # TensorBoard ends, or the cache is too small
        raise ApiError(503, "this could not be kept.", hint=_LATER)
    if state.failure is None:
        raise NotReady(_progress_of(state))
    raise ApiError(500, state.failure.message, where=state.failure.where, hint=state.failure.hint)


def _has_results(results: Results, wanted: Request) -> bool:
    return all(results.has(key) for key in keys_of(wanted))


def _refuse_failed(state: JobState, run: str) -> None:
    if state.status == "canceled":
        raise ApiError(
            409, "the analysis was canceled.", where=run, hint="Try again to restart it."
        )
    if state.failure is not None:
        failure = state.failure
        status = 422 if failure.kind == "input" else 500
        where = failure.where or run
        raise ApiError(status, failure.message, where=where, hint=failure.hint)


def is_retry(request: wrappers.Request) -> bool:
    """Whether the user asks to restart an analysis that failed or was canceled."""
    return request.args.get("retry") == "1"
