"""Wording and formatting of reports, shared by all text formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import NamedTuple

from tb_perfadvisor.contract import model
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.units import (
    format_bytes,
    format_duration,
    format_duration_range,
    format_rate,
    format_share,
)


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


_UNKNOWN = "–"
_MOST_STEPS = 12
"""As many steps as fit into a line."""
_MOST_REJECTED = 20
"""More are no list to read."""


def format_cell(cell: model.Cell, unit: str) -> str:
    """A table cell in its column's unit; a dash if unknown."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return plain(cell)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if unit == "ns":
        return format_duration(cell)
    if unit == "bytes":
        return format_bytes(cell)
    if unit == "bytes/s":
        return format_rate(cell, "B/s")
    if unit == "share":
        return format_share(cell)
    if unit == "flop/s":
        return format_rate(cell, "FLOP/s")
    if unit in ("samples/s", "tokens/s"):
        return f"{cell:,.0f}/s" if cell >= 100 else f"{cell:,.3g}/s"
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.3g}"


def saving_text(finding: model.FindingInfo, report: model.Report) -> str:
    """The saving of a finding: `saves 26.1 ms per step (14.7 %), measured`."""
    whole = "per step" if report.steps.used else "of the profile"
    saving, bounds = finding.saving, finding.bounds
    if saving is None:
        if bounds is None:
            return "saving not estimated"
        most, share = format_duration(bounds.high_ns), format_share(bounds.share_high)
        least = f"{format_duration(bounds.low_ns)}" if bounds.low_ns > 0 else "up"
        return f"saves {least} to {most} {whole} ({share}); the profile cannot tell how much"
    low, expected, high = map(format_duration, (saving.low_ns, saving.expected_ns, saving.high_ns))
    if saving.expected_ns == 0:
        return f"saves nothing alone, at most {high} {whole}, {saving.basis}"
    if saving.low_ns < 0:
        span = f", from {format_duration(-saving.low_ns)} longer to {high} shorter"
    elif saving.low_ns == 0:
        span = f", at most {high}" if high != expected else ""
    else:
        span = f", between {low} and {high}" if low != high else ""
    share = format_share(saving.share_expected)
    return f"saves {expected} {whole} ({share}){span}, {saving.basis}"


def worth_text(finding: model.FindingInfo, report: model.Report) -> str:
    """What a finding saves: time, as `saving_text`, or else memory."""
    memory = finding.memory_saving
    if finding.saving is None and memory is not None:
        return f"frees {format_bytes(memory.bytes)} at the peak ({format_share(memory.share)})"
    return saving_text(finding, report)


def marginal_text(finding: model.FindingInfo) -> str:
    """What a finding adds to the findings above; empty if that is all of its saving.

    A finding that explains another one adds nothing to it.
    """
    saving = finding.saving
    if saving is None:
        return ""
    if finding.refines is not None:
        return "part of the saving above"
    added, alone = format_duration(saving.marginal_ns), format_duration(saving.expected_ns)
    if added == alone:
        return ""
    return f"adds {added if saving.marginal_ns else 'nothing'} to the changes above"


COUNTED_SHARE = 0.01
"""A change that adds less than a hundredth to the others is not worth counting."""


def together_text(report: model.Report) -> str:
    """What several changes save together: never the sum, as they may save the same time."""
    combined = report.combined_saving
    savings = [finding.saving for finding in report.findings if finding.refines is None]
    if combined is None:
        return ""
    least_ns = COUNTED_SHARE * combined.expected_ns
    count = sum(saving is not None and saving.marginal_ns > least_ns for saving in savings)
    if count < 2:
        return ""
    whole = "per step" if report.steps.used else "of the profile"
    span = format_duration_range(combined.low_ns, combined.high_ns)
    return (
        f"{count} changes together save {format_duration(combined.expected_ns)} {whole} "
        f"({format_share(combined.share_expected)}), in the range {span}."
    )


def trust_in_short(report: model.Report) -> str:
    """Why trust is limited, for where the headline stands alone; it says itself not to act."""
    trust = report.trust
    return f"Limited trust: {trust.reasons[0].in_short}." if trust.level == "limited" else ""


def saving_line(finding: model.FindingInfo, report: model.Report) -> str:
    """What a finding would save, and what the user and a trial say about it."""
    proof = "" if finding.proof is None else plain(finding.proof.text)
    parts = [remark_text(finding), proof, worth_text(finding, report), marginal_text(finding)]
    return "; ".join(filter(None, parts))


def remark_text(finding: model.FindingInfo) -> str:
    """What the user says about a finding; empty if nothing."""
    remark = finding.remark
    if remark is None:
        return ""
    label = "won't fix" if remark.wont_fix else "note"
    return f"{label}: {plain(remark.text)}" if remark.text else label


def caption_line(report: model.Report) -> str:
    """The caption, and a warning if the profile was not recorded but generated."""
    return plain(report.caption) + (" · synthetic profile" if report.is_synthetic else "")


def _remarks(number: model.KeyNumber, report: model.Report) -> str:
    if number.id == "mfu" and number.value is None:
        # Text has no definitions to open, so it says at once how to record what is missing.
        flop = report.overview.flop
        notes = [note for note in number.notes if note != flop.unknown_in_short]
        return ". ".join([*notes, flop.unknown_because])
    reference = number.reference
    return ", ".join(
        [
            *([f"of {number.of}"] if number.of else []),
            *number.notes,
            *([] if reference is None else [f"{reference.verdict}: {reference.text}"]),
        ]
    )


def number_rows(report: model.Report) -> list[tuple[str, str, str]]:
    """The label, the value and the notes of each key number."""
    return [
        (
            number.label,
            "unknown" if number.value is None else format_cell(number.value, number.unit),
            plain(_remarks(number, report)),
        )
        for number in report.key_numbers
    ]


def costliest_rows(report: model.Report) -> list[tuple[str, ...]]:
    """What takes most of the time, under a row of headings; columns that say nothing are left out.

    Empty if nothing is known.
    """
    overview = report.overview
    if not overview.costliest:
        return []
    steps = max(overview.steps, 1)
    rows = [
        (
            "Most of the time",
            "Per step" if overview.steps else "Time",
            "Share",
            "Of achievable rate",
            "Where",
        ),
        *(
            (
                plain(work.name) + " (idle)" * work.is_idle,
                format_duration(work.time_ns / steps),
                format_share(work.share),
                _achieved(work.achieved_share),
                plain(work.place),
            )
            for work in overview.costliest
        ),
    ]
    columns = zip(*rows, strict=True)
    return list(zip(*(column for column in columns if {*column[1:]} - {"", _UNKNOWN}), strict=True))


def _achieved(share: float | None) -> str:
    """How near work is to what it can reach. More than that is work that is not fully known."""
    return _UNKNOWN if share is None else format_share(min(share, 1.0))


def place_line(place: model.Place) -> str:
    """Where a place is: `models/net.py:57 in forward`, and what is uncertain about it."""
    source = place.source
    path = source.path if source is not None and source.path is not None else place.file
    name = f" in {place.function}" if place.function else ""
    if source is None:
        return f"{path}:{place.line}{name}"
    uncertain = f" ({source.note}: {', '.join(source.candidates)})" if source.candidates else ""
    if source.note and not uncertain:
        uncertain = f" ({source.note})"
    link = f"  {source.link}" if source.link else ""
    return f"{path}:{place.line}{name}{uncertain}{link}"


def source_lines(place: model.Place) -> list[str]:
    """The lines of code around a place, numbered; the place itself is marked."""
    source = place.source
    if source is None or source.first_line is None:
        return []
    return [
        f"{'>' if number == place.line else ' '} {number:4d}  {plain(line)}".rstrip()
        for number, line in enumerate(source.lines, start=source.first_line)
    ]


def checks_lines(report: model.Report) -> list[str]:
    """How many checks passed, failed, or cannot concern the program."""
    of = {
        status: [outcome.rule_id for outcome in report.outcomes if outcome.status == status]
        for status in ("passed", "failed", "not_applicable")
    }
    unconcerned = len(of["not_applicable"]) - len(recordable_checks(report))
    lines = [f"Checks passed: {len(of['passed'])}"]
    if unconcerned:
        lines[0] += f"; {unconcerned} more cannot concern this program"
    if of["failed"]:
        lines.append(f"Checks failed: {', '.join(of['failed'])}")
    return lines


def recordable_checks(report: model.Report) -> set[str]:
    """The rules that another recording would let run."""
    return {rule_id for gap in report.not_checked for rule_id in gap.rule_ids}


def trust_lines(report: model.Report) -> list[str]:
    """How far to trust the report: the level, then each reason; empty if it is solid."""
    trust = report.trust
    if trust.level == "solid":
        return []
    what = "Do not act on this report" if trust.level == "do not act" else "Limited trust"
    return [f"{what}:", *(f"{each.message} {each.remedy}".strip() for each in trust.reasons)]


def steps_left_out(report: model.Report) -> str:
    """`Left out: step 7 (partial: …); 20 steps (warm-up)`; empty if all are used."""
    numbers: dict[str, list[int]] = {}
    for step in report.steps.excluded:
        numbers.setdefault(step.reason, []).append(step.index)
    parts = [f"{_listed(steps)} ({reason})" for reason, steps in numbers.items()]
    return f"Left out: {'; '.join(parts)}." if parts else ""


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > _MOST_STEPS:
        return f"{len(numbers):,} steps"
    *others, last = map(str, numbers)
    return f"steps {', '.join(others)} and {last}" if others else f"step {last}"


def remaining_notes(report: model.Report) -> list[model.NoteInfo]:
    """The notes, without reasons for trust, and those whose remedy stands among what to record."""
    said = {gap.remedy for gap in report.not_checked}
    reasons = {reason.message for reason in report.trust.reasons}
    return [
        note
        for note in report.notes
        if note.message not in reasons and (not note.remedy or note.remedy not in said)
    ]


def rejected_lines(document: model.Document) -> Iterator[str]:
    """The first files that were not read, each with the reason, and how many there are more."""
    for file in document.rejected[:_MOST_REJECTED]:
        yield f"{file.path}: {file.reason}"
    more = len(document.rejected[_MOST_REJECTED:]) + document.rejected_truncated
    if more:
        yield f"and {more:,} more: perfadvisor doctor --all lists them"
