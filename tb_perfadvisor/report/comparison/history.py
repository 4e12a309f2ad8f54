"""The recordings of one run as a time line: what each changed, and whether advice came true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.report.comparison import model
from tb_perfadvisor.report.comparison.compare import as_run, compare_facts
from tb_perfadvisor.report.comparison.pairing import Choice
from tb_perfadvisor.report.comparison.run_facts import RunFacts
from tb_perfadvisor.report.model import Generator


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One recording, and what changed since the one before."""

    run: model.ComparedRun
    verdict: model.Verdict | None
    """Compared with the recording before; null for the first."""
    headline: str
    """One sentence about the change; empty for the first recording."""
    change: model.Change | None
    """Null for the first recording."""
    findings: list[model.FindingChange]
    """What became of the findings of the recording before, and the new ones. For the first
    recording, none."""
    open_findings: list[str]
    """The rules that find something in this recording, best first."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The recordings of one run, the oldest first."""

    name: str
    recordings: list[Recording]


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfadvisor history --format json` prints."""

    schema_version: int
    generator: Generator
    histories: list[History]
    notes: list[str]
    """Which recordings were left out, and why."""


def make_history(name: str, recordings: Sequence[RunFacts]) -> History:
    """The time line of some recordings.

    Args:
        name: Of the run.
        recordings: The oldest first.
    """
    entries: list[Recording] = []
    for place, facts in enumerate(recordings):
        rules = [finding.rule_id for finding in facts.findings]
        compared = compare_facts(recordings[place - 1], [facts]).targets[0] if place else None
        entries.append(
            Recording(
                run=as_run(facts),
                verdict=compared.verdict if compared else None,
                headline=compared.headline if compared else "",
                change=compared.change if compared else None,
                findings=compared.findings if compared else [],
                open_findings=list(dict.fromkeys(rules)),
            )
        )
    return History(name=name, recordings=entries)


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
    by_run: dict[str, list[Choice]] = defaultdict(list)
    for capture in listing.captures:
        by_run[capture.run].append(Choice(listing, capture))
    repeated = {
        run: sorted(choices, key=lambda choice: choice.capture.session)
        for run, choices in by_run.items()
        if len(choices) > 1
    }
    if not repeated:
        raise UsageError(
            "contains no run that was recorded twice.",
            where=listing.root,
            hint="Name the recordings one by one, the oldest first.",
        )
    return repeated
