from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tb_perfadvisor.advice import Remedy
from tb_perfadvisor.engine.analysis import CombinedSaving, RankedFinding
from tb_perfadvisor.engine.ranking import first_finding, rank, severity_of
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Basis, Finding, Saving, Severity
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace.intervals import EMPTY, join, single, total_ns
from tb_perfadvisor.whatif import Fix, Remove


def rule(rule_id: str, refines: str | None = None) -> Rule:
    class Drawn(Rule):
        def check(self, signals: Signals) -> Iterable[Finding]:
            return ()

    Drawn.id, Drawn.title, Drawn.category, Drawn.refines = rule_id, "Do", "steps", refines
    return Drawn()


def saves(expected_ns: int, start_ns: int, end_ns: int, basis: Basis = "measured") -> Finding:
    claims = single(start_ns, end_ns)
    return Finding("", Saving(expected_ns, expected_ns, expected_ns, claims, basis))


def retimed(expected_ns: int, start_ns: int, end_ns: int, fix: Fix) -> Finding:
    claims = single(start_ns, end_ns)
    return Finding("", Saving(expected_ns, expected_ns, expected_ns, claims, "simulated", (fix,)))


def risk(severity: Severity) -> Finding:
    return Finding("", severity=severity)


def order(ranked: tuple[RankedFinding, ...]) -> list[str]:
    return [entry.rule.id for entry in ranked]


def test_overlapping_claims_are_never_added_twice() -> None:
    # b claims [50, 150), half of which a has claimed already: b adds half of its 50.
    ranked, combined = rank(
        [(rule("b"), saves(50, 50, 150)), (rule("a"), saves(60, 0, 100))], window_ns=1000
    )
    assert [(entry.rule.id, entry.marginal_ns) for entry in ranked] == [("a", 60), ("b", 25)]
    assert combined is not None
    # At most both save 110 of the 150 that they claim together.
    assert (combined.low_ns, combined.expected_ns, combined.high_ns) == (85, 85, 110)


def test_the_rest_of_the_step_gets_faster_only_once() -> None:
    # 60 + 20 of claimed time, plus the larger of the gains of 12 and 9 outside of it.
    shorter = Finding("", Saving(60, 60, 72, single(0, 60), "measured", outside_claims_ns=12))
    other = Finding("", Saving(20, 20, 29, single(100, 120), "measured", outside_claims_ns=9))
    _, combined = rank([(rule("a"), shorter), (rule("b"), other)], window_ns=1000)
    assert combined is not None
    assert (combined.expected_ns, combined.high_ns) == (80, 92)
    _, combined = rank([(rule("a"), shorter), (rule("b"), other)], window_ns=90)
    assert combined is not None
    assert combined.high_ns == 90  # never more than the step


def test_advice_about_the_same_time_adds_nothing() -> None:
    ranked, combined = rank(
        [(rule("a"), saves(60, 0, 100)), (rule("b"), saves(60, 0, 100))], window_ns=1000
    )
    assert [entry.marginal_ns for entry in ranked] == [60, 0]
    assert combined is not None
    assert combined.expected_ns == 60


def test_low_is_reduced_like_expected() -> None:
    wide = Finding("", Saving(20, 40, 80, single(50, 150), "modeled"))
    _, combined = rank([(rule("a"), saves(60, 0, 100)), (rule("b"), wide)], window_ns=1000)
    assert combined is not None
    # At most 60 and 80, which are less than the 150 that both claim.
    assert (combined.low_ns, combined.expected_ns, combined.high_ns) == (70, 80, 140)


@pytest.mark.parametrize(
    ("second", "high_ns"),
    [
        (saves(60, 0, 100), 100),  # no more than the time that they claim
        (saves(30, 0, 100), 90),  # no more than 60 + 30
        (saves(100, 50, 150), 150),
        (saves(10, 60, 70), 70),  # 10 is a part of the 100 that may save 60 anywhere
    ],
)
def test_together_findings_save_at_most_their_high_ends_and_what_they_claim(
    second: Finding, high_ns: int
) -> None:
    _, combined = rank([(rule("a"), saves(60, 0, 100)), (rule("b"), second)], 1000)
    assert combined is not None
    assert combined.high_ns == high_ns


def unpriced(high_ns: int, start_ns: int, end_ns: int) -> Finding:
    bounds = Saving(0, 0, high_ns, single(start_ns, end_ns), "heuristic", is_unknown=True)
    return Finding("", bounds=bounds)


@pytest.mark.parametrize(("known_ns", "first"), [(99, "unknown"), (101, "known")])
def test_a_finding_without_a_price_ranks_by_the_middle_of_its_bounds(
    known_ns: int, first: str
) -> None:
    found = [(rule("unknown"), unpriced(200, 0, 300)), (rule("known"), saves(known_ns, 400, 600))]
    ranked, combined = rank(found, 1000)
    assert order(ranked)[0] == first
    assert [entry.marginal_ns for entry in ranked if entry.rule.id == "unknown"] == [0]
    # Nothing of it is expected, but it may be saved.
    assert combined is not None
    assert (combined.expected_ns, combined.high_ns) == (known_ns, known_ns + 200)


@pytest.mark.parametrize(("high_ns", "severity"), [(99, "low"), (100, "medium"), (1000, "medium")])
def test_without_a_price_the_bounds_decide_the_severity(high_ns: int, severity: Severity) -> None:
    ranked, combined = rank([(rule("a"), unpriced(high_ns, 0, 1000))], 1000)
    assert [entry.severity for entry in ranked] == [severity]
    assert combined == CombinedSaving(0, 0, high_ns)


def test_a_later_finding_may_take_what_the_first_one_claims_but_does_not_expect() -> None:
    # The first may save 80 of its 100, and expects the 30 at their start.
    waits = Finding("", Saving(0, 30, 80, single(0, 100), "simulated", priced=single(0, 30)))
    ranked, combined = rank([(rule("a"), waits), (rule("b"), saves(16, 20, 60))], 1000)
    # 30 of the 40 that b is taken from are left.
    assert [entry.marginal_ns for entry in ranked] == [30, 12]
    assert combined is not None
    assert (combined.expected_ns, combined.high_ns) == (42, 96)


def test_order_is_by_expected_then_confidence_then_id() -> None:
    found = [
        (rule("e"), saves(10, 0, 10, "heuristic")),
        (rule("d"), saves(10, 0, 10, "modeled")),
        (rule("c"), saves(10, 0, 10, "simulated")),
        (rule("b"), saves(10, 0, 10, "measured")),
        (rule("a"), saves(10, 0, 10, "measured")),
        (rule("z"), saves(11, 0, 11, "heuristic")),
    ]
    assert order(rank(found, 100)[0]) == ["z", "a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("sure_ns", "expected_ns", "first"),
    [
        (50, 270, "surer"),  # nine tenths of 300, and 50 of it are sure
        (50, 269, "larger"),
        (40, 270, "larger"),  # no surer
    ],
)
def test_of_findings_that_save_about_the_same_the_surest_leads(
    sure_ns: int, expected_ns: int, first: str
) -> None:
    larger = Finding("", Saving(40, 300, 400, single(0, 400), "measured"))
    surer = Finding("", Saving(sure_ns, expected_ns, 400, single(400, 800), "measured"))
    ranked, combined = rank([(rule("larger"), larger), (rule("surer"), surer)], 1000)
    assert order(ranked)[0] == first
    assert combined is not None
    assert combined.expected_ns == 300 + expected_ns  # the order changes no sum


LOSSY = Remedy(text="Use fp8.", costs=(("accuracy", "Results are rounded."),))
EXACT = Remedy(text="Fuse.", costs=(("memory", "A second buffer."),))


@pytest.mark.parametrize(
    ("exact_ns", "first"),
    [(49, "lossy"), (50, "exact")],  # half of 100
)
def test_lossy_advice_does_not_lead_while_other_advice_saves_half_as_much(
    exact_ns: int, first: str
) -> None:
    lossy = replace(saves(100, 0, 100), remedies=(LOSSY,))
    also_lossy = replace(saves(90, 300, 400), remedies=(LOSSY,))
    exact = replace(saves(exact_ns, 200, 300), remedies=(EXACT,))
    ranked, combined = rank(
        [(rule("lossy"), lossy), (rule("also"), also_lossy), (rule("exact"), exact)], window_ns=1000
    )
    others = [name for name in ("lossy", "also", "exact") if name != first]
    assert order(ranked) == [first, *others]
    assert first_finding(ranked) == 0
    assert combined is not None
    assert combined.expected_ns == 190 + exact_ns  # the order changes no sum


def test_a_finding_with_any_other_advice_is_not_lossy() -> None:
    either = replace(saves(100, 0, 100), remedies=(LOSSY, EXACT))
    exact = replace(saves(60, 200, 300), remedies=(EXACT,))
    ranked, _ = rank([(rule("either"), either), (rule("exact"), exact)], window_ns=1000)
    assert order(ranked) == ["either", "exact"]


def test_a_lossy_finding_does_not_speak_for_one_that_is_not() -> None:
    general = replace(saves(100, 0, 100), remedies=(EXACT,))
    lossy = replace(saves(90, 0, 100), remedies=(LOSSY,))
    exact = replace(saves(80, 0, 100), remedies=(EXACT,))  # 80 % is enough
    found = [(rule("general"), general), (rule("a", "general"), lossy)]
    assert first_finding(rank(found, window_ns=1000)[0]) == 0
    ranked, _ = rank([*found, (rule("b", "general"), exact)], window_ns=1000)
    assert order(ranked) == ["general", "a", "b"]
    assert first_finding(ranked) == 2


def test_findings_without_saving_come_last_the_most_severe_first() -> None:
    found = [
        (rule("a"), risk("low")),
        (rule("b"), risk("high")),
        (rule("c"), risk("medium")),
        (rule("d"), saves(1, 0, 10)),
    ]
    ranked, combined = rank(found, 1000)
    assert order(ranked) == ["d", "b", "c", "a"]
    assert [entry.severity for entry in ranked] == ["low", "high", "medium", "low"]
    assert combined is not None
    assert combined.expected_ns == 1
    assert rank(found[:3], 1000)[1] is None


def test_a_refining_finding_is_nested_and_adds_nothing() -> None:
    # It expected to save more than the finding it refines, which saves no more for its sake.
    found = [
        (rule("special", refines="general"), saves(90, 0, 100)),
        (rule("other"), saves(50, 200, 300)),
        (rule("general"), saves(80, 0, 100)),
    ]
    ranked, combined = rank(found, 1000)
    assert order(ranked) == ["general", "special", "other"]
    assert [entry.refines for entry in ranked] == [None, "general", None]
    assert [entry.marginal_ns for entry in ranked] == [80, 0, 50]
    special = ranked[1].finding.saving
    assert special is not None
    assert (special.low_ns, special.expected_ns, special.high_ns) == (80, 80, 80)
    assert combined is not None
    assert combined.expected_ns == 130


@pytest.mark.parametrize(("start_ns", "refines"), [(50, "general"), (51, None)])
def test_a_finding_that_is_mostly_about_other_time_stands_for_itself(
    start_ns: int, refines: str | None
) -> None:
    special = rule("special", refines="general"), saves(60, start_ns, start_ns + 100)
    ranked, combined = rank([(rule("general"), saves(100, 0, 100)), special], 1000)
    assert [entry.refines for entry in ranked] == [None, refines]
    assert combined is not None
    # 51 of its 100 are new.
    assert combined.expected_ns == 100 + (0 if refines else 60 * 51 // 100)


def test_a_refining_finding_stands_alone_if_the_general_rule_found_nothing() -> None:
    ranked, _ = rank([(rule("special", refines="general"), saves(90, 0, 100))], 1000)
    assert [(entry.refines, entry.marginal_ns) for entry in ranked] == [(None, 90)]


def test_a_refining_finding_is_shown_once_though_the_general_rule_found_two() -> None:
    general = rule("general")
    found = [
        (general, saves(80, 0, 100)),
        (general, saves(20, 100, 200)),
        (rule("special", refines="general"), saves(10, 0, 100)),
    ]
    assert order(rank(found, 1000)[0]) == ["general", "special", "general"]


FIRST, SECOND = Remove(single(0, 100)), Remove(single(50, 150))


def test_simulated_fixes_add_what_simulating_them_together_shows() -> None:
    # 60 and 50 alone, 80 together. The claims, which overlap by half, do not matter.
    together = {1: 60, 2: 80}
    ranked, combined = rank(
        [(rule("b"), retimed(50, 50, 150, SECOND)), (rule("a"), retimed(60, 0, 100, FIRST))],
        1000,
        lambda fixes: together[len(fixes)],
    )
    assert [(entry.rule.id, entry.marginal_ns) for entry in ranked] == [("a", 60), ("b", 20)]
    assert combined is not None
    # The high ends are not simulated: 60 and 50.
    assert (combined.low_ns, combined.expected_ns, combined.high_ns) == (80, 80, 110)


def test_a_fix_that_adds_nothing_to_another_adds_not_even_a_nanosecond() -> None:
    ranked, combined = rank(
        [(rule("b"), retimed(50, 50, 150, SECOND)), (rule("a"), retimed(60, 0, 100, FIRST))],
        1000,
        lambda fixes: 60,
    )
    assert [(entry.rule.id, entry.marginal_ns) for entry in ranked] == [("a", 60), ("b", 0)]
    assert combined is not None
    assert combined.expected_ns == 60


def test_a_fix_may_add_more_after_another_than_alone() -> None:
    # If two threads are equally slow, speeding up one of them saves nothing.
    together = {1: 60, 2: 100}
    ranked, _ = rank(
        [(rule("b"), retimed(0, 50, 150, SECOND)), (rule("a"), retimed(60, 0, 100, FIRST))],
        1000,
        lambda fixes: together[len(fixes)],
    )
    assert [entry.marginal_ns for entry in ranked] == [60, 40]


def test_alone_a_finding_adds_its_saving_less_the_cost_of_recording() -> None:
    # A replay saves 120 of the 100 that are claimed, 10 of which went into recording.
    claims = single(0, 100)
    saving = Saving(50, 90, 100, claims, "simulated", (Remove(claims),), recording_ns=10)
    ranked, combined = rank([(rule("a"), Finding("", saving))], 1000, lambda fixes: 120)
    assert [entry.marginal_ns for entry in ranked] == [90]
    assert combined is not None
    assert combined.expected_ns == 90


def test_simulated_savings_exclude_time_that_other_findings_claimed() -> None:
    # b claims [50, 150), half of which a has claimed.
    ranked, combined = rank(
        [(rule("b"), retimed(50, 50, 150, SECOND)), (rule("a"), saves(60, 0, 100))],
        1000,
        lambda fixes: 50,
    )
    assert [entry.marginal_ns for entry in ranked] == [60, 25]
    # In the other order, b's saving is reduced as usual.
    ranked, combined = rank(
        [(rule("b"), retimed(70, 50, 150, SECOND)), (rule("a"), saves(60, 0, 100))],
        1000,
        lambda fixes: 70,
    )
    assert [entry.marginal_ns for entry in ranked] == [70, 30]
    assert combined is not None
    assert combined.expected_ns == 100


def test_an_unproven_saving_counts_once() -> None:
    # The simulation shows 10 of the 30 that a faster device is expected to save; 20 is unproven.
    claims = single(0, 60)
    unsure = Saving(10, 30, 60, claims, "modeled", (Remove(claims),), unproven_ns=20)
    ranked, combined = rank(
        [(rule("a"), Finding("", unsure)), (rule("b"), saves(20, 40, 60))],
        window_ns=1000,
        saved_ns=lambda fixes: 10,
    )
    # The second finding claims the same time as the first.
    assert [(entry.rule.id, entry.marginal_ns) for entry in ranked] == [("a", 30), ("b", 0)]
    assert combined is not None
    assert combined.expected_ns == 30


def test_combined_savings_never_exceed_the_step() -> None:
    ranked, combined = rank(
        [(rule("b"), retimed(60, 0, 100, SECOND)), (rule("a"), retimed(70, 0, 100, FIRST))],
        100,
        lambda fixes: 70 * len(fixes),
    )
    assert [entry.marginal_ns for entry in ranked] == [70, 30]
    assert combined is not None
    assert (combined.expected_ns, combined.high_ns) == (100, 100)


@pytest.mark.parametrize(
    ("expected_ns", "severity"),
    [(1000, "high"), (100, "high"), (99, "medium"), (30, "medium"), (29, "low"), (0, "low")],
)
def test_severity_just_below_and_just_above_its_limits(
    expected_ns: int, severity: Severity
) -> None:
    saving = Saving(expected_ns, expected_ns, 1000, single(0, 1000), "measured")
    assert severity_of(saving, 1000) == severity


@pytest.mark.parametrize(
    ("low_ns", "expected_ns", "severity"),
    [
        (24, 99, "low"),  # a quarter of 99 is 24.75
        (25, 99, "medium"),
        (24, 100, "medium"),
        (25, 100, "high"),
        (0, 20, "low"),
    ],
)
def test_a_saving_that_may_be_next_to_nothing_has_a_lower_severity(
    low_ns: int, expected_ns: int, severity: Severity
) -> None:
    saving = Saving(low_ns, expected_ns, 1000, single(0, 1000), "measured")
    assert severity_of(saving, 1000) == severity


def test_two_doubts_lower_the_severity_once() -> None:
    # All of the saving lies in one of three steps, and its low end is 0.
    unsure = Saving(0, 45, 45, single(0, 45), "measured")
    assert severity_of(unsure, 301, steps_of(3)) == "medium"


@pytest.mark.parametrize(
    ("claims", "severity"),
    [
        # 45 ns of 300 are 15 %. Deviation and its share of the sum of three steps:
        ((45, 0, 0), "medium"),  # 26.0 x 1.73 = 45: nothing is sure, and yet one degree
        ((25, 10, 10), "medium"),  # 8.7 x 1.73 = 15: 10.0 %, a little less
        ((23, 11, 11), "high"),  # 6.9 x 1.73 = 12: 11 %
        ((15, 15, 15), "high"),
    ],
)
def test_savings_that_vary_between_steps_have_a_lower_severity(
    claims: tuple[int, ...], severity: Severity
) -> None:
    intervals = np.array(
        [(100 * step, 100 * step + claim_ns) for step, claim_ns in enumerate(claims)]
    )
    saving = Saving(45, 45, 45, intervals, "measured")
    assert severity_of(saving, 301, steps_of(3)) == severity
    assert severity_of(saving, 301) == "high"


def test_a_saving_outside_the_steps_does_not_vary_between_them() -> None:
    saving = Saving(45, 45, 45, single(1000, 1045), "measured")
    assert severity_of(saving, 301, steps_of(3)) == "high"


def test_two_steps_do_not_lower_the_severity() -> None:
    saving = Saving(60, 60, 60, single(0, 60), "measured")
    assert severity_of(saving, 200, steps_of(2)) == "high"


def steps_of(count: int) -> Steps:
    """Steps of a hundred nanoseconds each."""
    lane = "|".join(["." * 10] * count)
    return Signals(run_of(draw(f"cell 10ns\nstep |{lane}|\nmain |{lane.replace('.', 'o')}|"))).steps


def test_nothing_found() -> None:
    assert rank([], 1000) == ((), None)
    saving = Saving(0, 0, 0, EMPTY, "measured")
    assert severity_of(saving, 0) == "low"
    assert rank([(rule("a"), Finding("", saving))], 0) == ((), None)


def saves_up_to(high_ns: int, start_ns: int, end_ns: int) -> Finding:
    return Finding("", Saving(0, 0, high_ns, single(start_ns, end_ns), "modeled"))


def test_what_saves_nothing_is_not_shown_and_claims_nothing() -> None:
    found = [(rule("a"), saves_up_to(40, 0, 100)), (rule("b"), saves(60, 50, 150))]
    ranked, combined = rank(found, 1000)
    assert [(entry.rule.id, entry.marginal_ns) for entry in ranked] == [("b", 60)]
    assert combined is not None
    assert (combined.expected_ns, combined.high_ns) == (60, 60)


def test_what_saves_something_only_after_another_change_is_shown() -> None:
    together = {1: 60, 2: 100}
    ranked, _ = rank(
        [(rule("b"), retimed(0, 50, 150, SECOND)), (rule("a"), retimed(60, 0, 100, FIRST))],
        1000,
        lambda fixes: together[len(fixes)],
    )
    assert order(ranked) == ["a", "b"]


def test_a_refining_finding_stands_alone_if_the_general_one_saves_nothing() -> None:
    found = [
        (rule("other"), saves(10, 200, 300)),
        (rule("general"), saves_up_to(80, 0, 100)),
        (rule("special", refines="general"), saves(20, 0, 100)),
        (rule("vain", refines="other"), saves_up_to(80, 200, 300)),
    ]
    ranked, _ = rank(found, 1000)
    assert [(entry.rule.id, entry.refines, entry.marginal_ns) for entry in ranked] == [
        ("special", None, 20),
        ("other", None, 10),
    ]


@st.composite
def claims(draw: st.DrawFn) -> Finding:
    start = draw(st.integers(0, 900))
    length = draw(st.integers(1, 1000 - start))
    low, expected, high = sorted(draw(st.lists(st.integers(0, length), min_size=3, max_size=3)))
    interval = np.array([[start, start + length]], dtype=np.int64)
    return Finding("", Saving(low, expected, high, interval, "measured"))


@st.composite
def some_rules(draw: st.DrawFn) -> list[tuple[Rule, Finding]]:
    """Findings of a few rules, of which some explain others, and some have no price."""
    found = []
    for number, finding in enumerate(draw(st.lists(claims(), max_size=8))):
        refines = draw(st.sampled_from([None, None, *(f"r{i}" for i in range(number))]))
        saving = finding.saving
        assert saving is not None
        if draw(st.booleans()) and draw(st.booleans()):
            bounds = replace(saving, low_ns=0, expected_ns=0)
            found.append((rule(f"r{number}", refines), Finding("", bounds=bounds)))
        else:
            found.append((rule(f"r{number}", refines), finding))
    return found


@given(some_rules())
def test_parents_and_children_agree_and_nothing_counts_twice(
    found: list[tuple[Rule, Finding]],
) -> None:
    ranked, combined = rank(found, 1000)
    general = {entry.rule.id: entry.finding for entry in ranked if entry.refines is None}
    for entry in ranked:
        if entry.refines is None:
            continue
        limits = general[entry.refines].saving or general[entry.refines].bounds
        part = entry.finding.saving
        assert entry.marginal_ns == 0
        if limits is None or part is None:
            continue
        most_ns = limits.expected_ns if general[entry.refines].saving else limits.high_ns
        assert part.expected_ns <= most_ns
        assert part.high_ns <= limits.high_ns
    if combined is None:
        return
    assert sum(entry.marginal_ns for entry in ranked) == combined.expected_ns
    assert combined.low_ns <= combined.expected_ns <= combined.high_ns
    limits_of_all = [finding.saving or finding.bounds for finding in general.values()]
    known = [limits for limits in limits_of_all if limits is not None]
    assert combined.high_ns <= total_ns(join(*(limits.claims for limits in known)))
    assert combined.high_ns <= sum(limits.high_ns for limits in known)
    assert combined.high_ns >= max((limits.high_ns for limits in known), default=0)


@given(st.lists(claims(), max_size=8))
def test_marginals_add_up_to_a_union_within_the_window(findings: list[Finding]) -> None:
    ranked, combined = rank([(rule(f"r{i}"), finding) for i, finding in enumerate(findings)], 1000)
    if combined is None:
        assert not any(finding.saving.expected_ns for finding in findings if finding.saving)
        return
    assert sum(entry.marginal_ns for entry in ranked) == combined.expected_ns
    assert combined.low_ns <= combined.expected_ns <= combined.high_ns
    everything = join(
        *(finding.saving.claims for finding in findings if finding.saving is not None)
    )
    assert combined.high_ns <= total_ns(everything) <= 1000
    for entry in ranked:
        assert entry.finding.saving is not None
        assert 0 <= entry.marginal_ns <= entry.finding.saving.expected_ns
