"""Routes of the log directory: its captures, its programs, and problems with the setup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.contract.partners import Partner, nearest_partner
from tb_perfadvisor.contract.run_row import Mark, RunRow
from tb_perfadvisor.ingest.formats import format_of
from tb_perfadvisor.ingest.recordings import order_of
from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.imports import import_whole
from tb_perfadvisor.plugin.origins import TOKEN
from tb_perfadvisor.plugin.responses import ApiError, integer, respond
from tb_perfadvisor.plugin.results import Results
from tb_perfadvisor.remark import Remark
from tb_perfadvisor.remarks.store import known_remarks

_PAGE = 100
"""How many files that were not read an answer lists; there may be a hundred thousand."""


def captures(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """All captures with their status, and the first files that were rejected."""
    backend.refresh()
    entries = backend.catalog.snapshot.entries.values()
    listed = describe(backend, entries)
    if any(capture["status"] == "new" for capture in listed):
        backend.results().warm_up()
    notes_hint = backend.notes_hint(request)
    return respond(
        request,
        {
            "captures": listed,
            "token": TOKEN,
            "allows_notes": not notes_hint,
            "notes_hint": notes_hint,
            "has_code": backend.code is not None,
            "programs": 0 if notes_hint else _programs_to_ask(backend),
            **_scan(backend),
        },
    )


def _programs_to_ask(backend: Backend) -> int:
    from tb_perfadvisor.instrument.record_requests import can_be_asked

    return sum(map(can_be_asked, backend.catalog.snapshot.programs))


def record(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """Ask all programs in the log directories to record their next steps."""
    from tb_perfadvisor.instrument.record_requests import ask

    if hint := backend.notes_hint(request):
        raise ApiError(403, "programs cannot be asked at this address.", hint=hint)
    backend.refresh()
    answers = [ask(path) for path in backend.catalog.snapshot.programs]
    backend.catalog.expect_recording()
    return respond(request, {"programs": sum(each != "cannot be asked" for each in answers)})


def rejected(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """A page of the files that were rejected, of those whose path and reason contain all words."""
    words = request.args.get("text", "").casefold().split()
    found = [
        (path, reason)
        for path, reason in _unread(backend)
        if all(word in f"{path}\n{reason}".casefold() for word in words)
    ]
    return respond(request, _page(found, integer(request, "from", 0, 0)))


def doctor(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """Notes on the log directory, the Profile tab and this machine."""
    import_whole("tb_perfadvisor.trace")
    from tb_perfadvisor.plugin.doctor import diagnose

    backend.refresh()
    notes = [
        {
            "id": note.id,
            "severity": note.severity,
            "message": note.message,
            "remedy": note.remedy,
        }
        for note in diagnose(backend.catalog.snapshot, backend.surroundings())
    ]
    backend.results()
    if backend.cache_problem:
        notes.append(
            {
                "id": "cache-unwritable",
                "severity": "info",
                "message": backend.cache_problem,
                "remedy": "Set PERFADVISOR_CACHE_DIR to a directory that only you can write to.",
            }
        )
    return respond(request, {**_scan(backend), "notes": notes})


def _scan(backend: Backend) -> dict[str, Any]:
    snapshot = backend.catalog.snapshot
    return {
        **_page(_unread(backend), 0),
        "scan": {
            # Do not send the path: a tunnel may make the page public.
            "root": ", ".join(root.label for root in backend.catalog.roots),
            "scanned_files": snapshot.scanned_files,
            "is_complete": snapshot.is_complete,
            "gaps": snapshot.gaps,
            "is_scanning": backend.catalog.is_scanning,
        },
    }


def _unread(backend: Backend) -> Sequence[tuple[str, str]]:
    """The log directories and files that could not be read, and why."""
    snapshot = backend.catalog.snapshot
    problems = (
        (problem.where, f"{problem.message} {problem.hint}".strip())
        for problem in snapshot.problems
    )
    return (*problems, *snapshot.rejected)


def _page(files: Sequence[tuple[str, str]], start: int) -> dict[str, Any]:
    page = files[start : start + _PAGE]
    return {
        "rejected": [{"path": path, "reason": reason} for path, reason in page],
        "rejected_count": len(files),
    }


def marks(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """How each analyzed capture compares with the recording before it, or with a baseline."""
    results, entries = backend.results(), backend.catalog.snapshot.entries
    baseline = request.args.get("baseline")
    found: dict[str, Mark] = {}
    for base, target in (
        _pairs_in_series(results, entries.values())
        if baseline is None
        else ((backend.entry(baseline), entry) for entry in entries.values())
    ):
        made = results.mark(base, target) if base.id != target.id else None
        if made is not None:
            found[target.id] = made
    return respond(request, {"marks": found})


def _pairs_in_series(results: Results, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Each analyzed recording with the analyzed one before it of the same run."""
    series: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in entries:
        if results.pace(entry) is not None:
            series[entry.series].append(entry)
    for recordings in series.values():
        yield from pairwise(sorted(recordings, key=lambda entry: order_of(entry.capture)))


def describe(backend: Backend, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Captures as the tab lists them: files, state of the analysis, row, and what to compare."""
    neighbors, remarks = backend.neighbors(), known_remarks()
    return [
        {
            **_capture(backend, entry, tuple(remarks.get(entry.run_digest, {}).values())),
            "series": entry.series_name,
            "recordings": neighbors.recordings.get(entry.series, 1),
            "partners": _partners(backend, entry),
        }
        for entry in entries
    ]


def _partners(backend: Backend, entry: Entry) -> tuple[Partner, ...]:
    """What names suggest, and then the nearest capture of the same program and device."""
    neighbors, entries = backend.neighbors(), backend.catalog.snapshot.entries
    named = neighbors.partners.get(entry.id, ())
    nearby = neighbors.nearby.get(entry.id)

    def program_of(id: str) -> tuple[str, ...] | None:
        row = backend.results().known_row(entries[id]) if id in entries else None
        return None if row is None else (row.framework, row.device, row.program)

    nearest = None if nearby is None else nearest_partner(entry.id, nearby, program_of)
    if nearest is None or any(partner.id == nearest.id for partner in named):
        return named
    return (*named, nearest)


def _capture(backend: Backend, entry: Entry, remarks: tuple[Remark, ...]) -> dict[str, Any]:
    results = backend.results()
    row, state = results.row(entry, remarks), results.state(entry)
    if row is not None:
        status = "done"
    else:
        status = "new" if state is None or state.status == "canceled" else state.status
    failure = state.failure if state is not None and row is None else None
    files = entry.capture.files
    run, host = backend.profile_target(entry)
    format = format_of(entry.capture.format)
    return {
        **(dict.fromkeys(RunRow.__struct_fields__) if row is None else msgspec.structs.asdict(row)),
        "id": entry.id,
        "run": entry.run,
        "session": entry.capture.session,
        "recorded": entry.recorded,
        "framework": row.framework if row else format.framework,
        "format_label": format.label,
        "is_for_profile_tab": format.is_read_by_profile_tab,
        "files": len(files),
        "has_scalars": bool(entry.candidates.runs),
        "reads_scalars": entry.candidates.is_read_beside,
        "size_bytes": sum(file.size_bytes for file in files),
        "status": status,
        "version": entry.key,
        "failure": failure.message if failure else None,
        "profile_run": run,
        "profile_host": host,
    }
