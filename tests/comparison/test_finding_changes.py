from __future__ import annotations

import msgspec
import pytest

from tb_perfadvisor.comparison.differences import StepCounts
from tb_perfadvisor.comparison.finding_changes import finding_changes
from tb_perfadvisor.comparison.run_facts import FindingFacts, OutcomeFacts, RunFacts
from tb_perfadvisor.contract.model import FindingChange
from tb_perfadvisor.testing import ms
from tests.support.comparison_facts import facts, finding

PASSED = OutcomeFacts(status="passed", reason=None)
BLIND = OutcomeFacts(status="not_applicable", reason="the profile has no device events")


def run(*findings: FindingFacts, steps: int = 2, **outcomes: OutcomeFacts) -> RunFacts:
    named = {name.replace("_", "-"): outcome for name, outcome in outcomes.items()}
    return facts(*[ms(10)] * steps, findings=list(findings), outcomes=named)


def only(base: RunFacts, target: RunFacts, **change_ns: int) -> FindingChange:
    changes = {cause.replace("_", "-"): change for cause, change in change_ns.items()}
    (found,) = finding_changes(base, target, StepCounts(base.steps, target.steps), changes)
    return found


STALL = finding("input-stall", ms(4), ms(12), ms(16), {"input": ms(16)})


def test_predicted_and_achieved_are_per_step() -> None:
    found = only(run(STALL), run(input_stall=PASSED), input=-ms(5), python=ms(3))
    assert found.status == "fixed"
    assert found.predicted is not None
    # Over 2 steps: 4, 12 and 16 ms.
    predicted = found.predicted
    assert (predicted.low_ns, predicted.expected_ns, predicted.high_ns) == (ms(2), ms(6), ms(8))
    # Input takes 5 ms less. Python takes more, but the finding does not claim it.
    assert (found.achieved_ns, found.is_in_range) == (ms(5), True)
    assert (found.base_severity, found.target_severity, found.remaining) == ("high", None, None)


@pytest.mark.parametrize(
    ("change_ns", "is_in_range"),
    [(-ms(8) - 1, False), (-ms(8), True), (-ms(2), True), (ms(1), False)],
)
def test_in_range_or_not(change_ns: int, is_in_range: bool) -> None:
    found = only(run(STALL), run(input_stall=PASSED), input=change_ns)
    assert found.is_in_range is is_in_range


def test_compute_in_fewer_bits_counts_as_compute() -> None:
    wide = finding("full-precision-compute", 0, ms(8), ms(16), {"compute-32": ms(16)})
    found = only(run(wide), run(full_precision_compute=PASSED), compute_32=-ms(8), compute_16=ms(3))
    # 8 ms of 32-bit compute became 3 of 16-bit compute.
    assert found.achieved_ns == ms(5)
    assert found.causes[0] == "compute-32"
    assert {"compute-16", "compute-8"} <= set(found.causes)


def test_causes_with_a_small_part_of_the_claims_do_not_count() -> None:
    claims = {"launching": ms(15), "framework": ms(5), "python": ms(1)}
    found = only(
        run(finding("launch-bound", 0, ms(8), ms(16), claims)),
        run(launch_bound=PASSED),
        launching=-ms(3), framework=-ms(1), python=-ms(9),
    )  # fmt: skip
    # Python has 1 of 21 ms, less than a twentieth.
    assert (found.causes, found.achieved_ns) == (["launching", "framework"], ms(4))


def test_a_finding_in_both_runs() -> None:
    # Nobody acted on it, so that what became faster is not its merit.
    same = only(run(STALL), run(STALL), input=-ms(1))
    assert (same.status, same.achieved_ns) == ("unchanged", None)
    # 6 ms per step before; a tenth of it is 0.6.
    for expected, status in ((10.8, "unchanged"), (10.7, "changed")):
        again = finding("input-stall", 0, ms(expected), ms(16), {"input": ms(16)})
        assert only(run(STALL), run(again)).status == status
    # Hardly any of the 16 ms reaches the step in either run.
    little, less = (
        finding("input-stall", 0, expected, ms(16), {"input": ms(16)}) for expected in (50_000, 0)
    )
    assert only(run(little), run(less)).status == "unchanged"
    milder = finding("input-stall", ms(4), ms(12), ms(16), {"input": ms(16)}, severity="medium")
    assert only(run(STALL), run(milder)).status == "changed"


def test_a_new_finding() -> None:
    found = only(run(input_stall=PASSED), run(STALL), input=ms(6))
    assert (found.status, found.predicted, found.achieved_ns) == ("new", None, None)
    assert found.remaining is not None
    assert found.remaining.expected_ns == ms(6)
    assert (found.base_severity, found.target_severity) == (None, "high")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (BLIND, "the profile has no device events"),
        (OutcomeFacts(status="failed", reason="KeyError: 'x'"), "KeyError: 'x'"),
        (None, "the rule did not run"),
    ],
)
def test_a_rule_that_could_not_run_leaves_the_state_unknown(
    outcome: OutcomeFacts | None, reason: str
) -> None:
    silent = run(input_stall=outcome) if outcome else run()
    gone = only(run(STALL), silent, input=-ms(8))
    assert (gone.status, gone.reason) == ("unknown", f"not checked in the target: {reason}")
    assert (gone.achieved_ns, gone.is_in_range) == (None, None)
    come = only(silent, run(STALL))
    assert (come.status, come.reason) == ("unknown", f"not checked in the base: {reason}")


def test_a_finding_without_saving_has_nothing_to_achieve() -> None:
    risk = FindingFacts(rule_id="memory-near-capacity", title="t", severity="medium", saving=None)
    found = only(run(risk), run(risk))
    assert (found.status, found.predicted, found.achieved_ns) == ("unchanged", None, None)


def test_several_findings_of_a_rule_are_one() -> None:
    low = finding("input-stall", 0, ms(2), ms(2), {"python": ms(2)}, severity="low")
    found = only(run(STALL, low), run(input_stall=PASSED), input=-ms(5), python=-ms(1))
    assert found.predicted is not None
    assert (found.predicted.expected_ns, found.base_severity) == (ms(7), "high")
    assert found.achieved_ns == ms(6)


def test_the_time_of_a_refining_finding_counts_once() -> None:
    detail = finding("loader", 0, ms(12), ms(16), {"input": ms(16)}, refines="input-stall")
    stall, loader = finding_changes(
        run(STALL, detail),
        run(input_stall=PASSED, loader=PASSED),
        StepCounts(2, 2),
        {"input": -ms(5)},
    )
    assert (stall.achieved_ns, loader.achieved_ns) == (ms(5), None)
    assert (loader.refines, loader.status, loader.is_in_range) == ("input-stall", "fixed", None)


def test_a_refining_finding_without_a_saving_is_not_compared() -> None:
    hint = msgspec.structs.replace(
        finding("small-files", 0, 0, 0, {}, refines="input-stall"), saving=None
    )
    found = only(run(STALL, hint), run(input_stall=PASSED, small_files=PASSED), input=-ms(5))
    assert found.rule_id == "input-stall"


def test_findings_about_the_same_time_share_what_disappeared() -> None:
    other = finding("step-gap", 0, ms(8), ms(16), {"input": ms(16)})
    # 6 and 4 ms per step are expected, and 7 ms disappeared.
    first, second = finding_changes(
        run(STALL, other),
        run(input_stall=PASSED, step_gap=PASSED),
        StepCounts(2, 2),
        {"input": -ms(7)},
    )
    assert (first.achieved_ns, second.achieved_ns) == (ms(6), ms(1))


def test_findings_of_the_base_come_before_new_ones() -> None:
    gap = finding("step-gap", 0, ms(2), ms(2), {"between-steps": ms(2)})
    sync = finding("device-synchronization", 0, ms(2), ms(2), {"synchronization": ms(2)})
    found = finding_changes(run(gap, STALL), run(sync, gap), StepCounts(2, 2), {})
    assert [change.rule_id for change in found] == [
        "step-gap",
        "input-stall",
        "device-synchronization",
    ]
