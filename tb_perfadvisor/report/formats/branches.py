"""Findings in the order and the numbering of text formats: 1, and what refines it: 1a, 1b."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import NamedTuple

from tb_perfadvisor.contract import model


class Entry(NamedTuple):
    """A finding and its number."""

    number: str
    finding: model.FindingInfo

    @property
    def title(self) -> str:
        """The heading of a group, or the finding's title."""
        return self.finding.heading or self.finding.title


class Branch(NamedTuple):
    """A finding with those that refine it."""

    entry: Entry
    refined: Sequence[Entry]

    @property
    def remedies(self) -> list[model.Remedy]:
        """The general finding's remedies; in a group, those that no specific one has as well."""
        general = self.entry.finding
        if general.heading is None:
            return general.remedies
        said = {remedy.text for entry in self.refined for remedy in entry.finding.remedies}
        return [remedy for remedy in general.remedies if remedy.text not in said]


def branches_of(report: model.Report) -> list[Branch]:
    """The findings of a report, best first."""
    branches: list[tuple[model.FindingInfo, list[model.FindingInfo]]] = []
    for finding in report.findings:
        if branches and finding.refines == branches[-1][0].rule_id:
            branches[-1][1].append(finding)
        else:
            branches.append((finding, []))
    return [
        Branch(
            Entry(f"{place}", general),
            [
                Entry(f"{place}{letter}", finding)
                for letter, finding in zip(_letters(len(refined)), refined, strict=True)
            ],
        )
        for place, (general, refined) in enumerate(branches, start=1)
    ]


def _letters(count: int) -> list[str]:
    """Letters from `a` to `z`, then `za`, `zb`, …."""
    return [
        ascii_lowercase[-1] * (place // len(ascii_lowercase))
        + ascii_lowercase[place % len(ascii_lowercase)]
        for place in range(count)
    ]
