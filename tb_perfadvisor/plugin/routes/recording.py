"""The route that asks running programs to record their next steps."""

from __future__ import annotations

from pathlib import Path

from werkzeug import wrappers

from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.responses import ApiError, respond


def record(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """Ask all programs in the log directories."""
    from tb_perfadvisor.instrument.record_requests import ask

    if hint := backend.notes_hint(request):
        raise ApiError(403, "programs cannot be asked at this address.", hint=hint)
    answers = [ask(path) for path in _programs(backend)]
    return respond(request, {"programs": sum(each != "cannot be asked" for each in answers)})


def programs(request: wrappers.Request, backend: Backend) -> int:
    """How many programs a page may ask."""
    return 0 if backend.notes_hint(request) else len(_programs(backend))


def _programs(backend: Backend) -> list[Path]:
    from tb_perfadvisor.instrument.record_requests import programs_below

    local = (root for root in backend.catalog.roots if not root.is_remote)
    return [path for root in local for path in programs_below(root.path)]
