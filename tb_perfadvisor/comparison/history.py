"""What each recording of a run changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tb_perfadvisor.comparison.compare import as_run, compare_facts, split_per_step
from tb_perfadvisor.comparison.finding_changes import (
    comparable_findings,
    highest_severity,
    saving_per_step,
)
from tb_perfadvisor.comparison.pairing import Choice, place_of
from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import (
    CauseTime,
    FindingHistory,
    History,
    Moment,
    Occurrence,
    Recording,
)
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.profile_tab import is_dated
from tb_perfadvisor.ingest.recordings import order_of, series_of
from tb_perfadvisor.ingest.trace_names import session_label
from tb_perfadvisor.signals.core.causes import Cause


def finding_histories(
    recordings: Sequence[RunFacts], compare: Callable[[int, int], model.ComparedTarget]
) -> list[FindingHistory]:
    """The history of each finding, those that the latest recordings have first.

    `compare` compares two recordings, by the indices of base and target.
    """
    found = [comparable_findings(facts.findings) for facts in recordings]
    rules = dict.fromkeys(rule for findings in reversed(found) for rule in findings)

    def history(rule: str) -> FindingHistory:
        states = [_state(rule, facts) for facts in recordings]
        savings = [
            saving_per_step(findings.get(rule, ()), facts.steps or 1)
            for findings, facts in zip(found, recordings, strict=True)
        ]
        latest = next(findings[rule] for findings in reversed(found) if rule in findings)
        occurrences = []
        for absent_before, first, last, gone in _runs_of(states):
            target = None if gone is None else compare(last, gone)
            changes = target.findings if target is not None else []
            occurrences.append(
                Occurrence(
                    absent_before=absent_before,
                    first=first,
                    last=last,
                    gone=gone,
                    saving=savings[last],
                    verdict=None if target is None else target.verdict,
                    change=next((each for each in changes if each.rule_id == rule), None),
                )
            )
        return FindingHistory(
            rule_id=rule,
            title=latest[0].title,
            refines=latest[0].refines,
            states=states,
            expected_ns=[None if saving is None else saving.expected_ns for saving in savings],
            severities=[highest_severity(findings.get(rule, ())) for findings in found],
            occurrences=occurrences,
        )

    return [history(rule) for rule in rules]


def _state(rule: str, facts: RunFacts) -> model.FindingState:
    if any(finding.rule_id == rule for finding in facts.findings):
        return "found"
    outcome = facts.outcomes.get(rule)
    # Only a rule that ran and found nothing shows that there is nothing.
    return "absent" if outcome is not None and outcome.status == "passed" else "unknown"


def _runs_of(
    states: Sequence[model.FindingState],
) -> list[tuple[int | None, int, int, int | None]]:
    """Absent before, first, last and gone of each occurrence."""
    runs: list[tuple[int | None, int, int, int | None]] = []
    absent: int | None = None
    first: int | None = None
    last = 0
    for place, state in enumerate(states):
        if state == "found":
            first, last = place if first is None else first, place
        elif state == "absent":
            if first is not None:
                runs.append((absent, first, last, place))
            first, absent = None, place
    if first is not None:
        runs.append((absent, first, last, None))
    return runs


def make_history(
    name: str, recordings: Sequence[RunFacts], moments: Sequence[Moment] = ()
) -> History:
    """The time line of some recordings.

    Recordings are sorted, the oldest first.
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
        CauseTime(cause=cause.value, label=cause.label, per_step_ns=per_step_ns[cause.value])
        for cause in Cause
        if per_step_ns.get(cause.value)
    ]


def recordings_of(listings: Sequence[Listing]) -> Mapping[str, list[Choice]]:
    """The recordings of each run, the oldest first.

    Listings of one path give each run that was recorded more than once. Those of several paths give
    one time line in their order, with a recording each.
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
