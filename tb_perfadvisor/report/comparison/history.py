"""The recordings of one run as a time line: what each changed, and whether advice came true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.profile_tab import is_dated
from tb_perfadvisor.ingest.recordings import order_of, series_of
from tb_perfadvisor.ingest.trace_names import session_label
from tb_perfadvisor.report.comparison import model
from tb_perfadvisor.report.comparison.compare import as_run, compare_facts, split_per_step
from tb_perfadvisor.report.comparison.finding_histories import FindingHistory, finding_histories
from tb_perfadvisor.report.comparison.pairing import Choice, place_of
from tb_perfadvisor.report.comparison.run_facts import RunFacts
from tb_perfadvisor.report.model import Generator
from tb_perfadvisor.signals.core.causes import LABELS


class CauseTime(msgspec.Struct, frozen=True, kw_only=True):
    """One cause's part of a step; the parts sum exactly to it."""

    cause: str
    label: str
    per_step_ns: int


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Where in its run a recording was made, and how long steps usually took there."""

    step: int | None
    """The step of the run: by its directory, else by the scalars of the run."""
    usual_step_ns: int | None
    """Usual time per step around it without the profiler, by the scalars of the run."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One recording, and what changed since the one before."""

    run: model.ComparedRun
    recorded: str
    """When, in the form of session names; empty if unknown."""
    moment: Moment
    causes: list[CauseTime]
    """In the order of their precedence; empty without steps."""
    verdict: model.Verdict | None
    """Compared with the recording before; null for the first."""
    headline: str
    """One sentence about the change; empty for the first recording."""
    change: model.Change | None
    """Null for the first recording."""
    open_findings: list[str]
    """The rules that find something in this recording, best first."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The recordings of one run, the oldest first."""

    name: str
    verdict: model.Verdict | None
    """Of the latest recording, compared with the first; null for fewer than two."""
    headline: str
    """One sentence about that change; empty for fewer than two."""
    recordings: list[Recording]
    findings: list[FindingHistory]
    """Those of the latest recordings first."""


class MissingRecording(msgspec.Struct, frozen=True, kw_only=True):
    """A recording of the run that the time line lacks, and why."""

    id: str
    """The capture's."""
    is_new: bool
    """Whether it was not analyzed yet."""
    reason: str


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The time line of a run as far as its recordings are analyzed."""

    history: History
    missing: list[MissingRecording]
    earlier: int
    """How many recordings are older than those in the view."""


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfadvisor history --format json` prints."""

    schema_version: int
    generator: Generator
    histories: list[History]
    notes: list[str]
    """Which recordings were left out, and why."""


def make_history(
    name: str, recordings: Sequence[RunFacts], moments: Sequence[Moment] = ()
) -> History:
    """The time line of some recordings.

    Args:
        name: Of the run.
        recordings: The oldest first.
        moments: Of each recording; by default unknown.
    """

    @cache
    def compare(base: int, target: int) -> model.ComparedTarget:
        return compare_facts(recordings[base], [recordings[target]]).targets[0]

    entries: list[Recording] = []
    for place, facts in enumerate(recordings):
        rules = [finding.rule_id for finding in facts.findings]
        compared = compare(place - 1, place) if place else None
        entries.append(
            Recording(
                run=as_run(facts),
                recorded=_recorded(facts),
                moment=moments[place] if moments else Moment(step=None, usual_step_ns=None),
                causes=_causes(facts),
                verdict=compared.verdict if compared else None,
                headline=compared.headline if compared else "",
                change=compared.change if compared else None,
                open_findings=list(dict.fromkeys(rules)),
            )
        )
    whole = compare(0, len(recordings) - 1) if len(recordings) > 1 else None
    return History(
        name=name,
        verdict=whole.verdict if whole else None,
        headline=whole.headline if whole else "",
        recordings=entries,
        findings=finding_histories(recordings, compare),
    )


def in_order_of_time(recordings: Sequence[RunFacts]) -> list[int]:
    """The places of recordings in order of time; as they are unless all tell their time."""
    started = [facts.recorded.start_unix_ns for facts in recordings if facts.recorded is not None]
    places = list(range(len(recordings)))
    return sorted(places, key=started.__getitem__) if len(started) == len(recordings) else places


def _recorded(facts: RunFacts) -> str:
    if is_dated(facts.session.partition(".")[0]):
        return facts.session
    return "" if facts.recorded is None else session_label(facts.recorded.start_unix_ns)


def _causes(facts: RunFacts) -> list[CauseTime]:
    if not facts.steps:
        return []
    per_step_ns = split_per_step(facts.causes, facts.steps)
    return [
        CauseTime(cause=cause.value, label=label, per_step_ns=per_step_ns[cause.value])
        for cause, label in LABELS.items()
        if per_step_ns.get(cause.value)
    ]


def recordings_of(listings: Sequence[Listing]) -> Mapping[str, list[Choice]]:
    """The recordings of each run, the oldest first.

    Args:
        listings: Of one path: each run that was recorded more than once. Of several paths: one
            time line in their order, with a recording each.

    Raises:
        UsageError: If no run was recorded twice.
    """
    if len(listings) > 1:
        choices = [Choice(listing, capture) for listing in listings for capture in listing.captures]
        if len(choices) > len(listings):
            raise UsageError(
                "several paths must hold one recording each.",
                hint="Name runs or sessions, the oldest first; or one logdir.",
            )
        return {choices[-1].place[-1]: choices}
    (listing,) = listings
    series: dict[tuple[str, str], list[Choice]] = defaultdict(list)
    for capture in listing.captures:
        series[series_of(capture)].append(Choice(listing, capture))
    repeated = {
        key: sorted(choices, key=lambda choice: order_of(choice.capture))
        for key, choices in series.items()
        if len(choices) > 1
    }
    if not repeated:
        raise UsageError(
            "contains no run that was recorded twice.",
            where=listing.root,
            hint="Name the recordings one by one, the oldest first.",
        )
    runs = Counter(run for run, _ in repeated)
    return {
        _name(run, listing) if runs[run] == 1 else f"{_name(run, listing)} ({format})": choices
        for (run, format), choices in repeated.items()
    }


def _name(run: str, listing: Listing) -> str:
    """A run's name; that of the directory for the root of a listing."""
    return place_of(listing.root, run)[-1] if run == "." else run
