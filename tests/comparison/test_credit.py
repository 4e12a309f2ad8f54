from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.comparison.finding_changes import Claim, credit, divided

IDLE = ("launching", "framework", "python")


def test_the_best_finding_is_credited_first() -> None:
    # 50 of 60 ns of idle time disappeared: the first one expected 40, and 10 are left.
    claims = [Claim("first", 40, 40, 60, IDLE), Claim("second", 30, 30, 30, IDLE)]
    credited = credit(claims, {"launching": -20, "framework": -30, "python": 0})
    assert credited == {"first": 40, "second": 10}


def test_a_finding_that_is_still_there_is_not_credited() -> None:
    claims = [Claim("kept", 40, 0, 0, IDLE), Claim("fixed", 30, 30, 30, IDLE)]
    assert credit(claims, {"framework": -25}) == {"kept": 0, "fixed": 25}


def test_more_than_was_expected_is_credited_up_to_the_high_end() -> None:
    claims = [Claim("first", 40, 40, 45, IDLE), Claim("second", 30, 30, 50, IDLE)]
    # 40 and 30; then 5 and 20; the last 5 may be of either.
    assert credit(claims, {"framework": -100}) == {"first": 45, "second": 50}


def test_what_only_one_finding_claims_is_its_own() -> None:
    claims = [Claim("first", 40, 40, 40, ("framework",)), Claim("second", 10, 10, 10, ("input",))]
    assert credit(claims, {"framework": -90, "input": -5, "copies": -7}) == {
        "first": 90,
        "second": 5,
    }


def test_more_time_is_shared_in_proportion() -> None:
    claims = [Claim("first", 30, 30, 30, IDLE), Claim("second", 10, 10, 10, IDLE)]
    assert credit(claims, {"framework": 40, "python": -20}) == {"first": 20 - 30, "second": -10}


def test_all_compute_is_one_cause() -> None:
    claims = [Claim("precision", 8, 8, 8, ("compute-32",)), Claim("copies", 4, 4, 4, ("copies",))]
    assert credit(claims, {"compute-32": -8, "compute-16": 3, "copies": -4}) == {
        "precision": 5,
        "copies": 4,
    }


CAUSES = ("launching", "framework", "compute-32", "compute-16", "input")


@st.composite
def claim(draw: st.DrawFn) -> Claim:
    gone, more, kept = (draw(st.integers(0, 100)) for _ in range(3))
    causes = draw(st.lists(st.sampled_from(CAUSES), unique=True, max_size=3))
    return Claim(str(draw(st.uuids())), gone + kept, gone, gone + more, causes)


@given(
    st.lists(claim(), max_size=5),
    st.dictionaries(st.sampled_from(CAUSES), st.integers(-300, 300)),
)
def test_no_nanosecond_is_credited_twice(claims: list[Claim], change_ns: dict[str, int]) -> None:
    credited = credit(claims, change_ns)
    compute = sum(change for cause, change in change_ns.items() if cause.startswith("compute"))
    others = [change for cause, change in change_ns.items() if not cause.startswith("compute")]
    disappeared = sum(max(-change, 0) for change in (compute, *others))
    assert sum(max(part, 0) for part in credited.values()) <= disappeared
    for each in claims:
        if not each.causes:
            assert credited[each.rule_id] == 0


@given(st.integers(-1000, 1000), st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_the_parts_add_up(amount: int, weights: list[int]) -> None:
    parts = divided(amount, weights)
    assert sum(parts) == (amount if any(weights) else 0)
    if 0 <= amount <= sum(weights):
        assert all(0 <= part <= weight for part, weight in zip(parts, weights, strict=True))
