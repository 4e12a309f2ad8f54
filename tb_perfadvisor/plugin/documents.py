"""Makes documents of stored results: exports, excerpts, combined savings, comparisons, histories.

Making one takes as long as dozens of other answers, so a separate process does it:
`python -m tb_perfadvisor.plugin.documents`. Does not import TensorBoard.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tb_perfadvisor.engine.result_cache import ResultCache
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.event_files.runs import CandidateRuns
from tb_perfadvisor.plugin.document_job import run_document_job
from tb_perfadvisor.plugin.worker import CHANGES, DOCUMENT, FACTS, REPORT, VIEWS, WINDOW
from tb_perfadvisor.remark import Remark

if TYPE_CHECKING:
    from tb_perfadvisor.report.report import Report


class Export(msgspec.Struct, frozen=True, tag="export"):
    """A report in some format."""

    key: str
    """The key of the capture's result in the cache."""
    format: str
    whole_run_key: str | None = None
    """The key of the view of its run, if that was made."""
    remarks: tuple[Remark, ...] = ()
    """What the user says about its findings."""


class Excerpt(msgspec.Struct, frozen=True, tag="excerpt"):
    """The events around a finding's evidence, or all, as a file for Perfetto."""

    key: str
    finding: int | None
    from_ns: int | None
    """None for what shows the finding best."""
    to_ns: int | None


class Patches(msgspec.Struct, frozen=True, tag="patches"):
    """Patches for the findings of a report that have a mechanical fix."""

    key: str
    directory: str
    """Of the program's code."""
    code: str
    """Tells its state, so that code that was edited gets new patches."""
    recording: str
    """What commands call the recording."""


class SuggestedPatch(msgspec.Struct, frozen=True):
    """What becomes of the user's code by the change for a finding, and how to prove it."""

    rule_id: str
    title: str
    """The finding's."""
    changes: list[str]
    notes: list[str]
    """What to check after the change."""
    patch: str
    """Empty if there is none."""
    reason: str
    """Why there is none."""
    places: list[str]
    """Where to look then."""
    command: str
    """Of `perfadvisor try`."""


class Measured(msgspec.Struct, frozen=True):
    """What trying the change of a finding showed, as shares of the step."""

    finding: int
    low_share: float
    share: float
    high_share: float


class Combination(msgspec.Struct, frozen=True, tag="combination"):
    """What some findings save together."""

    key: str
    findings: tuple[int, ...]
    """Their places in the report, in order."""
    measured: tuple[Measured, ...]


class Comparison(msgspec.Struct, frozen=True, tag="comparison"):
    """Captures compared with the first one."""

    keys: tuple[str, ...]
    runs: tuple[str, ...]
    """What the tab calls their runs."""
    sessions: tuple[str, ...]
    candidates: tuple[CandidateRuns, ...]
    """Where each run may have logged its scalars."""


class TimeLine(msgspec.Struct, frozen=True, tag="history"):
    """The history of a run."""

    name: str
    """What the tab calls the run."""
    keys: tuple[str, ...]
    runs: tuple[str, ...]
    """The directories of the recordings."""
    sessions: tuple[str, ...]
    candidates: tuple[CandidateRuns, ...]
    """Where each may have logged its scalars."""
    missing: tuple[tuple[str, str], ...]
    """The id of each recording without a result, and why it has none; empty if it is new."""
    earlier: int
    """How many older recordings there are."""


Request = Export | Excerpt | Patches | Combination | Comparison | TimeLine


def keys_of(request: Request) -> tuple[str, ...]:
    """The keys of the results that a document is made of."""
    return request.keys if isinstance(request, Comparison | TimeLine) else (request.key,)


def make_document(request: Request, cache: ResultCache) -> bytes:
    """Make a document."""
    if isinstance(request, Export):
        return _export(request, cache)
    if isinstance(request, Excerpt):
        return _excerpt(request, cache)
    if isinstance(request, Patches):
        return _patches(request, cache)
    if isinstance(request, Combination):
        return _combination(request, cache)
    if isinstance(request, TimeLine):
        return _history(request, cache)
    return _comparison(request, cache)


def _export(request: Export, cache: ResultCache) -> bytes:
    from tb_perfadvisor.proof.attach import with_proofs
    from tb_perfadvisor.proof.ledger import known_proofs
    from tb_perfadvisor.remarks.attach import with_remarks
    from tb_perfadvisor.report.formats.render import render
    from tb_perfadvisor.report.report import Report
    from tb_perfadvisor.report.timeline.window import decode_events, make_timelines

    analyzed = _read(cache, request.key, REPORT, Report)
    report = with_proofs(_with_whole_run(analyzed, request, cache), known_proofs())
    report = with_remarks(report, request.remarks)
    views = cache.read(request.key, VIEWS) if request.format == "html" else None
    if views is not None:  # only the page shows views and timelines
        decoded = msgspec.json.decode(views, type=dict[str, Any])
        if (window := cache.read(request.key, WINDOW)) is not None:
            decoded["timelines"] = make_timelines(analyzed.findings, decode_events(window))
        report = msgspec.structs.replace(report, views=decoded)
    return render(report, request.format).encode()


def _with_whole_run(report: Report, request: Export, cache: ResultCache) -> Report:
    """The report with what the scalars of its run say."""
    from tb_perfadvisor.contract.model import TrainingView

    key = request.whole_run_key
    content = cache.read(key, DOCUMENT) if key is not None else None
    view = msgspec.json.decode(content or b"null", type=TrainingView | None)
    about = [
        recording.whole_run
        for recording in (view.recordings if view is not None else ())
        if recording.capture_id == report.id
    ]
    return msgspec.structs.replace(report, whole_run=about[0]) if about else report


def _excerpt(request: Excerpt, cache: ResultCache) -> bytes:
    from tb_perfadvisor.report.report import Report
    from tb_perfadvisor.report.timeline.perfetto_excerpt import evidence_range, make_excerpt
    from tb_perfadvisor.report.timeline.window import decode_events

    report = _read(cache, request.key, REPORT, Report)
    window = cache.read(request.key, WINDOW)
    if window is None:
        raise _missing()
    stored, index = decode_events(window), request.finding
    from_ns, to_ns = 0, stored.whole_ns
    if index is not None:
        from_ns, to_ns = evidence_range(report.findings[index], stored, index)
    if request.from_ns is not None:
        from_ns = request.from_ns
    to_ns = request.to_ns if request.to_ns is not None else max(to_ns, from_ns + 1)
    return make_excerpt(report, stored, index, from_ns, to_ns)


def _patches(request: Patches, cache: ResultCache) -> bytes:
    from tb_perfadvisor.plain_text import shell_line
    from tb_perfadvisor.report.report import Report
    from tb_perfadvisor.sources import Repository
    from tb_perfadvisor.suggest import suggest

    report = _read(cache, request.key, REPORT, Report)
    # Changes that are not of the catalog have no id: then `try` tries all of the recording's.
    options = {
        (finding.rule_id, finding.title): ["--change", remedy.change]
        for finding in report.findings
        for remedy in reversed(finding.remedies)
        if remedy.fixes and remedy.change
    }
    command = ["perfadvisor", "try", request.recording]
    repository = Repository(request.directory)
    program = ["--", "python", report.workload.script or "train.py"]
    patches = [
        SuggestedPatch(
            rule_id=each.rule_id,
            title=each.title,
            changes=each.changes,
            notes=each.notes,
            patch=each.patch,
            reason=each.reason,
            places=each.places,
            command=shell_line([*command, *options.get((each.rule_id, each.title), ()), *program]),
        )
        # Each on the code as it is, whatever other findings would change.
        for rule in dict.fromkeys(finding.rule_id for finding in report.findings)
        for each in suggest(report, repository, (rule,))
    ]
    return msgspec.json.encode(patches)


def _combination(request: Combination, cache: ResultCache) -> bytes:
    from tb_perfadvisor.contract.model import CombinedSaving
    from tb_perfadvisor.engine.change_model import MeasuredSaving, decode_model

    content = cache.read(request.key, CHANGES)
    if content is None:
        raise _missing()
    model = decode_model(content)
    combined = model.combined(
        request.findings,
        [
            MeasuredSaving(each.finding, each.low_share, each.share, each.high_share)
            for each in request.measured
        ],
    )
    return msgspec.json.encode(
        CombinedSaving(
            low_ns=round(combined.low_ns / model.steps),
            expected_ns=round(combined.expected_ns / model.steps),
            high_ns=round(combined.high_ns / model.steps),
            share_expected=combined.expected_ns / max(model.window_ns, 1),
        )
    )


def _comparison(request: Comparison, cache: ResultCache) -> bytes:
    from tb_perfadvisor.api.comparisons import logged_of
    from tb_perfadvisor.comparison.compare import compare_facts
    from tb_perfadvisor.comparison.logged import with_logged
    from tb_perfadvisor.comparison.pairing import distinct_names
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache

    facts = [_read(cache, key, FACTS, RunFacts) for key in request.keys]
    names = distinct_names([(run,) for run in request.runs], request.sessions)
    base, *targets = (
        msgspec.structs.replace(run, name=name) for run, name in zip(facts, names, strict=True)
    )
    logged = [
        logged_of(candidates, run, cache=ScalarCache(cache.directory))
        for candidates, run in zip(request.candidates, facts, strict=True)
    ]
    return msgspec.json.encode(with_logged(compare_facts(base, targets), logged[0], logged[1:]))


def _history(request: TimeLine, cache: ResultCache) -> bytes:
    from tb_perfadvisor.api.comparisons import history_of
    from tb_perfadvisor.comparison.history import in_order_of_time
    from tb_perfadvisor.comparison.pairing import distinct_names
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.contract.model import HistoryView, MissingRecording
    from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache

    names = distinct_names([(run,) for run in request.runs], request.sessions)
    facts = [
        msgspec.structs.replace(_read(cache, key, FACTS, RunFacts), name=name)
        for key, name in zip(request.keys, names, strict=True)
    ]
    order = in_order_of_time(facts)
    history = history_of(
        request.name,
        [facts[at] for at in order],
        [request.runs[at] for at in order],
        [request.candidates[at] for at in order],
        cache=ScalarCache(cache.directory),
    )
    missing = [
        MissingRecording(id=capture_id, is_new=not problem, reason=problem or "Not analyzed yet.")
        for capture_id, problem in request.missing
    ]
    return msgspec.json.encode(
        HistoryView(history=history, missing=missing, earlier=request.earlier)
    )


def _read(cache: ResultCache, key: str, name: str, kind: type[Any]) -> Any:
    content = cache.read(key, name)
    if content is None:
        raise _missing()
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        cache.remove(key)
        raise _missing() from error


def _missing() -> PerfAdvisorError:
    return PerfAdvisorError("the result of the analysis is gone.", hint="Open its report again.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one document, and return the exit status."""
    module = "tb_perfadvisor.plugin.documents"
    return run_document_job(module, Request, make_document, arguments)


if __name__ == "__main__":
    sys.exit(main())
