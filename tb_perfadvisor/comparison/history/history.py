"""Make the time line of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tb_perfadvisor.comparison.compare import as_run, compare_facts, split_per_step
from tb_perfadvisor.comparison.history.findings import finding_histories
from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import CauseTime, History, Moment, Recording
from tb_perfadvisor.ingest.profile_tab import is_dated
from tb_perfadvisor.ingest.trace_names import session_label
from tb_perfadvisor.signals.core.causes import Cause


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
        CauseTime(cause=cause.value, label=cause.label, per_step_ns=per_step_ns[cause.value])
        for cause in Cause
        if per_step_ns.get(cause.value)
    ]
