"""How far the analysis of a capture is, as the routes tell it."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.plugin.answers import ApiError
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.jobs import JobState
from tb_perfadvisor.plugin.results import Results


def started(results: Results, entry: Entry, *, retry: bool) -> dict[str, Any]:
    """How far an analysis is, which is started if it was not.

    Args:
        results: Where its result will be.
        entry: The capture.
        retry: Whether to start what has failed or was canceled once more. A page that polls
            does not ask for that, only a person does.

    Raises:
        ApiError: When it has failed or was canceled.
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
        raise ApiError(409, "the analysis was canceled.", where=entry.run, hint="Start it again.")
    if state.failure is not None:
        failure = state.failure
        status = 422 if failure.kind == "input" else 500
        where = failure.where or entry.run
        raise ApiError(status, failure.message, where=where, hint=failure.hint)
