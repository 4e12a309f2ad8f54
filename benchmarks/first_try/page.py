"""What was judged of a batch of profiles, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from first_try.judge import HistoryVerdict, ProfileVerdict
from first_try.recipes import table

_ORDINALS = ("first", "second", "third")


def section(
    verdicts: Sequence[ProfileVerdict],
    test: Sequence[HistoryVerdict],
    tuning: Sequence[HistoryVerdict],
    judged: str,
) -> Iterator[str]:
    """The lines about the first batch."""
    yield from _judged_once(verdicts, judged)
    yield from _shares("first finding right", sum(v.is_right for v in verdicts), len(verdicts))
    for half, rows, target in (("test", test, "≥ 70 %"), ("tuning", tuning, "–")):
        counted = [row for row in rows if row.counts]
        inside = sum(row.is_in_range for row in counted)
        beyond = sum(row.exceeds_bound for row in rows)
        yield f"| histories, {half} half: gain in range | {inside} of {len(counted)} | {target} |"
        yield f"| histories, {half} half: upper bound violated | {beyond} of {len(rows)} | never |"
    yield ""
    yield from _cause_table(verdicts)
    yield ""
    yield from _misses(verdicts)
    yield ""
    yield from _history_table([*test, *tuning])


def later_section(
    verdicts: Sequence[ProfileVerdict], earlier: Sequence[tuple[int, int]], judged: str
) -> Iterator[str]:
    """The lines about the second batch, or a later one.

    Args:
        verdicts: Of the batch.
        earlier: How many profiles of each batch before were judged right, and of how many.
        judged: When, and which version.
    """
    right, number = sum(verdict.is_right for verdict in verdicts), len(verdicts)
    yield from _judged_once(verdicts, judged)
    yield from _shares("first finding right", right, number)
    for place in reversed(range(len(earlier))):
        before = earlier[place:]
        what = f"with the {_ORDINALS[place]} batch" if place else "all batches"
        yield from _shares(
            what, right + sum(row[0] for row in before), number + sum(row[1] for row in before)
        )
    yield ""
    yield from _cause_table(verdicts)
    yield ""
    yield from _misses(verdicts)


def _judged_once(verdicts: Sequence[ProfileVerdict], judged: str) -> Iterator[str]:
    repositories = {file.repository for v in verdicts for file in v.profile.files}
    yield f"Judged once, {judged}: {len(verdicts)} profiles of {len(repositories)} repositories."
    yield ""
    yield "| what | result | target |"
    yield "|---|---|---|"


def _shares(what: str, right: int, number: int) -> Iterator[str]:
    low, high = interval(right, number)
    yield (
        f"| {what} | {right} of {number} = {_percent(right / max(number, 1))}"
        f" (95 % interval: {_percent(low)} to {_percent(high)}) | ≥ 90 % |"
    )


def interval(right: int, number: int) -> tuple[float, float]:
    """Wilson's interval for a share, with 95 % confidence.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference,
    JASA 22 (1927).
    """
    if not number:
        return 0.0, 1.0
    z = 1.96
    share = right / number
    middle = share + z * z / (2 * number)
    reach = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    scale = 1 + z * z / number
    return (middle - reach) / scale, (middle + reach) / scale


def _cause_table(verdicts: Sequence[ProfileVerdict]) -> Iterator[str]:
    yield "| what an expert would name first | profiles | right |"
    yield "|---|---|---|"
    for cause in sorted({verdict.causes[0] for verdict in verdicts}):
        rows = [verdict for verdict in verdicts if verdict.causes[0] == cause]
        yield f"| {cause} | {len(rows)} | {sum(row.is_right for row in rows)} |"


def _misses(verdicts: Sequence[ProfileVerdict]) -> Iterator[str]:
    why = {row["name"]: row["why"] for row in table("misses.toml").get("profile", [])}
    missed = [verdict for verdict in verdicts if not verdict.is_right]
    yield f"Misses ({len(missed)}):" if missed else "No misses."
    yield ""
    for verdict in missed:
        repository = verdict.profile.files[0].repository
        reason = why.get(verdict.profile.name, "not looked into yet")
        yield f"- {verdict.profile.name} ({repository}): expected {' or '.join(verdict.causes)}"
        yield f"  ({verdict.reason}); said {verdict.said} – {reason}"


def _history_table(rows: Sequence[HistoryVerdict]) -> Iterator[str]:
    yield "| history | half | gain | predicted for this change | all together, at most | in range |"
    yield "|---|---|---|---|---|---|"
    why = {row["name"]: row["why"] for row in table("misses.toml").get("history", [])}
    for row in rows:
        predicted = " – ".join(map(_percent, row.predicted)) if row.predicted else "not named"
        outside = f"no: {why.get(row.history.name, 'not looked into yet')}"
        inside = "yes" if row.is_in_range else outside
        bound = "unknown" if row.bound is None else _percent(row.bound)
        yield (
            f"| {row.history.name} | {row.history.half} | {_percent(row.gain)} | {predicted}"
            f" | {bound} | {inside if row.counts else 'not counted: ' + row.reason} |"
        )


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
