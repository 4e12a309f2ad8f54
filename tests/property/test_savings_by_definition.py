"""Savings, their order and what they save together, worked out moment by moment."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import sqrt
from random import Random
from statistics import stdev

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.advice import Remedy
from tb_perfadvisor.engine.analysis import CombinedSaving
from tb_perfadvisor.engine.change_model import Combination
from tb_perfadvisor.engine.ranking import first_finding, rank, severity_of
from tb_perfadvisor.engine.savings import mark_wide_ranges
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Basis, Finding, Saving, Severity, ordered_range
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.signals.core.steps.windows import Pace, Side
from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.whatif import Remove
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)
WINDOW = 400
BASES: tuple[Basis, ...] = ("measured", "simulated", "modeled", "heuristic")
EXACT, LOSSY = Remedy("do"), Remedy("round", costs=(("accuracy", "It rounds."),))
ADVICE: tuple[tuple[Remedy, ...], ...] = ((), (EXACT,), (EXACT,), (LOSSY,))
DEGREES: tuple[Severity, ...] = ("high", "medium", "low")


def rule(rule_id: str, refines: str | None = None) -> Rule:
    class Drawn(Rule):
        def check(self, signals: Signals) -> Iterable[Finding]:
            return ()

    Drawn.id, Drawn.title, Drawn.category, Drawn.refines = rule_id, "Do", "steps", refines
    return Drawn()


def moments(random: Random, most: int = 3) -> set[int]:
    found: set[int] = set()
    for _ in range(random.randint(1, most)):
        begin = random.randrange(WINDOW - 100)
        found.update(range(begin, begin + random.choice((5, 20, 40, 100))))
    return found


def intervals_of(times: set[int]) -> Intervals:
    starts = np.array(sorted(times), dtype=np.int64)
    return union(starts, starts + 1)


def times_of(intervals: Intervals) -> set[int]:
    return {at for begin, end in intervals.tolist() for at in range(begin, end)}


def drawn_saving(random: Random) -> Saving:
    claims = moments(random)
    amounts = (0, len(claims) // 20, len(claims) // 4, len(claims) // 2, len(claims))
    low, expected, high = sorted(random.choice(amounts) for _ in range(3))
    part = {at for at in claims if at % 2} if random.random() < 0.2 else None
    return Saving(
        low, expected, high + random.choice((0, 0, 9)), intervals_of(claims), random.choice(BASES),
        outside_claims_ns=random.choice((0, 0, 9)),
        priced=None if part is None else intervals_of(part),
    )  # fmt: skip


@examples(40)
@given(randoms)
def test_a_saving_is_a_range_within_what_it_claims(random: Random) -> None:
    low, expected, high = (random.randrange(-10, 70) for _ in range(3))
    found = Saving(low, expected, high, intervals_of(set(range(50))), "measured",
                   outside_claims_ns=random.choice((0, 5)))  # fmt: skip
    most = min(max(high, 0), 50 + found.outside_claims_ns)
    likely = min(max(expected, 0), most)
    expected_range = (min(max(low, 0), likely), likely, most)
    assert (found.low_ns, found.expected_ns, found.high_ns) == expected_range
    assert ordered_range(low, expected, high, 50 + found.outside_claims_ns) == expected_range


@examples(80)
@given(randoms)
def test_what_several_changes_save_together(random: Random) -> None:
    most_of: dict[int, int] = {}

    def most_ns(taken: Intervals) -> int:
        length = len(times_of(taken))
        return most_of.setdefault(length, random.choice((WINDOW, WINDOW, length // 2)))

    together = Combination(WINDOW, None, most_ns)
    taken: set[int] = set()
    limits: list[tuple[int, int, set[int]]] = []
    low = expected = 0
    for _ in range(random.randint(0, 5)):
        saving = drawn_saving(random)
        has_price = random.random() < 0.8
        finding = Finding("", saving) if has_price else Finding("", bounds=saving)
        found = together.add(finding)
        claims = times_of(saving.claims)
        limits.append((saving.high_ns - saving.outside_claims_ns, saving.outside_claims_ns, claims))
        if not has_price:
            assert found == 0
            continue
        source = times_of(saving.expected_from)
        fresh, whole = len(source - taken), max(len(source), 1)
        taken |= source
        marginal = saving.expected_ns * fresh // whole
        marginal = min(marginal, max(most_ns(intervals_of(taken)) - expected, 0))
        low += saving.low_ns * fresh // whole
        expected += marginal
        low = min(low, expected)
        assert found == marginal
    limits.sort(key=lambda limit: -limit[0] / max(len(limit[2]), 1))
    # The changes up to some place save at most the time that they claim, the others their sum.
    most = min(
        len(set().union(*(claims for *_, claims in limits[:place])))
        + sum(inside for inside, *_ in limits[place:])
        for place in range(len(limits) + 1)
    )
    high = most + max((outside for _, outside, _ in limits), default=0)
    assert together.combined == CombinedSaving(low, expected, min(max(high, expected), WINDOW))


@examples(60)
@given(randoms)
def test_what_simulated_changes_save_together(random: Random) -> None:
    fixes = [Remove(intervals_of(moments(random, 1))) for _ in range(4)]
    alone = {id(fix): random.choice((10, 25, 60)) for fix in fixes}

    def saved_ns(chosen: Iterable[object]) -> int:
        return min(sum(alone[id(fix)] for fix in chosen), 90)

    together = Combination(WINDOW, saved_ns, lambda claims: WINDOW)
    taken: set[int] = set()
    unsimulated: set[int] = set()
    used: list[Remove] = []
    low = expected = 0
    for fix in fixes:
        saving = drawn_saving(random)
        is_simulated = random.random() < 0.7
        if is_simulated:
            saving = Saving(
                saving.low_ns, saving.expected_ns, saving.high_ns, saving.claims, "simulated",
                (fix,), realized_share=random.choice((1.0, 0.5)),
                elsewhere_ns=random.choice((0, 3)), recording_ns=random.choice((0, 4)),
                unproven_ns=random.choice((0, 6)),
            )  # fmt: skip
        found = together.add(Finding("", saving))
        source = times_of(saving.expected_from)
        whole = max(len(source), 1)
        if is_simulated:
            more_ns = saved_ns([*used, fix]) - saved_ns(used)
            used.append(fix)
            fresh = len(source - unsimulated)
            realized = int(saving.realized_share * more_ns) - saving.elsewhere_ns
            marginal = max(min(realized, len(source)) - saving.recording_ns, 0) * fresh // whole
            marginal += saving.unproven_ns * len(source - taken) // whole
            marginal = min(marginal, WINDOW - expected)
            low += min(saving.low_ns * fresh // whole, marginal)
        else:
            fresh = len(source - taken)
            marginal = saving.expected_ns * fresh // whole
            low += saving.low_ns * fresh // whole
            unsimulated |= source
        taken |= source
        marginal = min(marginal, WINDOW - expected)
        expected += marginal
        low = min(low, expected)
        assert found == marginal
    assert (together.combined.low_ns, together.combined.expected_ns) == (low, expected)


# --- order and severity ---------------------------------------------------------------------


def steps_of(count: int) -> Steps:
    starts = np.arange(count, dtype=np.int64) * (WINDOW // max(count, 1))
    return Steps(
        source="x", pace=Pace(Side.HOST, 0.0, 0.0), excluded=(), window_start_ns=0,
        window_end_ns=WINDOW, owner=np.empty(0, dtype=np.int32), start_ns=starts,
        end_ns=starts + WINDOW // max(count, 1),
    )  # fmt: skip


def by_share(saved: float) -> Severity:
    share = Fraction(saved) / WINDOW
    return "high" if share >= Fraction(1, 10) else "medium" if share >= Fraction(3, 100) else "low"


LOWER: dict[Severity, Severity] = {"high": "medium", "medium": "low", "low": "low"}


def severity(saving: Saving, steps: Steps | None) -> Severity:
    usual = by_share(saving.expected_ns)
    if 4 * saving.low_ns < saving.expected_ns:
        return LOWER[usual]
    if steps is None or len(steps) < 3:
        return usual
    claims = times_of(saving.claims)
    claimed = [
        len(claims.intersection(range(begin, end)))
        for begin, end in zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)
    ]
    total = sum(claimed)
    error = stdev(claimed) * sqrt(len(claimed)) * saving.expected_ns / total if total else 0.0
    return usual if by_share(saving.expected_ns - error) == usual else LOWER[usual]


@examples(120)
@given(randoms)
def test_severity_follows_from_the_sure_share(random: Random) -> None:
    # A tenth and three hundredths of the window are 40 and 12.
    expected = random.choice((0, 11, 12, 13, 39, 40, 41, 80))
    low = random.choice((0, expected // 4, expected // 4 - 1, -(-expected // 4), expected))
    claims = intervals_of(set(range(random.choice((0, 100, 300)), WINDOW)))
    saving = Saving(low, expected, 100, claims, "measured")
    steps = random.choice((None, steps_of(2), steps_of(3), steps_of(4), steps_of(8)))
    assert severity_of(saving, WINDOW, steps) == severity(saving, steps)
    assert severity_of(saving, 0) == "low" if saving.low_ns else True


def amount(finding: Finding) -> int:
    """What a finding ranks by."""
    if finding.saving is not None:
        return finding.saving.expected_ns
    assert finding.bounds is not None
    return -(-finding.bounds.high_ns // 2)


@examples(80)
@given(randoms)
def test_the_order_of_findings(random: Random) -> None:
    found: list[tuple[Rule, Finding]] = []
    for number in range(random.randint(1, 5)):
        saving = drawn_saving(random)
        what = random.random()
        remedies = random.choice(ADVICE)
        if what < 0.7:
            finding = Finding("", saving, remedies=remedies)
        elif what < 0.85:
            finding = Finding("", bounds=saving, remedies=remedies)
        else:
            finding = Finding("", severity=random.choice(DEGREES))
        found.append((rule(f"r{random.choice((number, number + 3))}{number}"), finding))
    steps = random.choice((None, steps_of(4)))
    ranked, _ = rank(found, WINDOW, steps=steps)

    def key(entry: tuple[Rule, Finding]) -> tuple[object, ...]:
        of_rule, finding = entry
        if finding.saving is not None:
            basis = BASES.index(finding.saving.basis)
            return False, -finding.saving.expected_ns, basis, of_rule.id
        if finding.bounds is not None:
            return False, -amount(finding), len(BASES), of_rule.id
        return True, DEGREES.index(finding.severity or "low"), 0, of_rule.id

    def rated(finding: Finding) -> str:
        if finding.saving is not None:
            return severity(finding.saving, steps)
        if finding.bounds is not None:
            return LOWER[by_share(finding.bounds.high_ns)]
        return finding.severity or "low"

    def surer(order: list[tuple[Rule, Finding]]) -> list[tuple[Rule, Finding]]:
        """Those that save nine tenths of what the first one does, and more of it for sure."""
        first = order[0][1]
        assert first.saving is not None
        return [
            entry
            for entry in order
            if entry[1].saving is not None
            and not entry[1].is_lossy
            and 10 * entry[1].saving.expected_ns >= 9 * first.saving.expected_ns
            and entry[1].saving.low_ns > first.saving.low_ns
            and DEGREES.index(rated(entry[1])) <= DEGREES.index(rated(first))
        ]

    kept = list(found)
    while True:
        order = sorted(kept, key=key)
        if order and order[0][1].saving is not None:
            sure = surer(order)
            sure = [max(sure, key=lambda entry: entry[1].saving.low_ns)] if sure else []  # type: ignore[union-attr]
            order = sure + [entry for entry in order if entry not in sure]
        elif order:
            sure = [
                entry
                for entry in order
                if entry[1].saving is not None and severity(entry[1].saving, steps) == "high"
            ]
            order = sure[:1] + [entry for entry in order if entry not in sure[:1]]
        first = order[0][1] if order else None
        if first is not None and first.is_lossy and first.saving is not None:
            other = [
                entry for entry in order if entry[1].saving is not None and not entry[1].is_lossy
            ]
            if other and 2 * other[0][1].saving.expected_ns >= first.saving.expected_ns:  # type: ignore[union-attr]
                order = other[:1] + [entry for entry in order if entry is not other[0]]
        together = Combination(WINDOW, None, lambda claims: WINDOW)
        marginal = [together.add(finding) for _, finding in order]
        idle = [
            entry
            for entry, more in zip(order, marginal, strict=True)
            if entry[1].saving is not None and entry[1].saving.expected_ns == more == 0
        ]
        if not idle:
            break
        kept = [entry for entry in kept if entry not in idle]
    assert [(entry.rule.id, entry.marginal_ns) for entry in ranked] == [
        (of_rule.id, more) for (of_rule, _), more in zip(order, marginal, strict=True)
    ]
    for entry in ranked:
        finding = entry.finding
        if finding.saving is not None:
            assert entry.severity == severity(finding.saving, steps)
        elif finding.bounds is not None:
            assert entry.severity == LOWER[by_share(finding.bounds.high_ns)]
        else:
            assert entry.severity == finding.severity


@examples(80)
@given(randoms)
def test_findings_that_explain_another_one(random: Random) -> None:
    whole = intervals_of(set(range(100)))
    general = Finding("", Saving(50, 50, 80, whole, "modeled"))
    # The part claims 40 moments, of which 19, 20 or 21 are the other's.
    inside = random.choice((0, 19, 20, 21, 40))
    claims = intervals_of(set(range(100 - inside, 140 - inside)))
    expected, high = random.choice((10, 39, 40)), 40
    remedies = random.choice(ADVICE)
    part = Finding("", Saving(10, expected, high, claims, "measured"), remedies=remedies)
    ranked, _ = rank([(rule("general"), general), (rule("part", "general"), part)], WINDOW)
    by_id = {entry.rule.id: entry for entry in ranked}
    assert [entry.rule.id for entry in ranked] == ["general", "part"]
    is_part = 2 * inside >= 40
    assert by_id["part"].refines == ("general" if is_part else None)
    # It speaks for the general one if it saves four fifths of its 50.
    speaks = is_part and remedies == (EXACT,) and expected >= 40
    assert by_id["general"].is_group == speaks
    assert first_finding(ranked) == (1 if speaks else 0)


@examples(30)
@given(randoms)
def test_a_part_saves_at_most_what_the_whole_saves(random: Random) -> None:
    claims = intervals_of(set(range(100)))
    expected, high = random.choice((29, 30, 31)), random.choice((59, 60, 61))
    has_price = random.random() < 0.7
    whole = Saving(20, 30, 60, claims, "modeled")
    general = Finding("", whole) if has_price else Finding("", bounds=whole)
    part = Finding("", Saving(5, expected, high, claims, "measured"))
    ranked, _ = rank([(rule("general"), general), (rule("part", "general"), part)], WINDOW)
    found = ranked[1].finding.saving
    assert found is not None
    most = 30 if has_price else 60
    assert (found.expected_ns, found.high_ns) == (min(expected, most), min(high, 60))
    assert found.basis == ("modeled" if expected > most else "measured")


def test_a_range_wider_than_four_times_the_expected_saving_is_a_heuristic() -> None:
    claims = intervals_of(set(range(300)))
    for low, expected, high, is_wide in ((0, 20, 80, False), (0, 20, 81, True), (5, 20, 85, False)):
        finding = Finding("", Saving(low, expected, high, claims, "modeled"))
        ((_, found),) = mark_wide_ranges([(rule("a"), finding)])
        assert found.saving is not None
        assert found.saving.basis == ("heuristic" if is_wide else "modeled")
