"""The progress of analyses, as the routes report it."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.jobs import JobState
from tb_perfadvisor.plugin.responses import ApiError
from tb_perfadvisor.plugin.results import Results


def ensure_started(results: Results, entry: Entry, *, retry: bool) -> dict[str, Any]:
    """Start the analysis of a capture if necessary, and report its progress.

    Args:
        results: Where the result will be.
        entry: The capture.
        retry: Whether to restart an analysis that failed or was canceled. Only requests of the
            user do that, not polling.

    Raises:
        ApiError: If the analysis failed or was canceled.
    """
    state = results.state(entry)
    if state is None or (retry and state.status in ("failed", "canceled")):
        results.start(entry)
        state = results.state(entry) or JobState("queued", "waiting", queue_position=0)
    _refuse_failed(state, entry)
    return {
        "status": state.status,
        "stage": state.stage,
        "progress": state.progress,
        "queue_position": state.queue_position,
    }


def _refuse_failed(state: JobState, entry: Entry) -> None:
    if state.status == "canceled":
        raise ApiError(
            409, "the analysis was canceled.", where=entry.run, hint="Try again to restart it."
        )
    if state.failure is not None:
        failure = state.failure
        status = 422 if failure.kind == "input" else 500
        where = failure.where or entry.run
        raise ApiError(status, failure.message, where=where, hint=failure.hint)
