from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.independent_trips import IndependentTrips
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

ALL, ONE, W = "bf16[16,64,4096]{2,1,0}", "bf16[64,4096]{1,0}", "bf16[4096,16384]{1,0}"
Y = "bf16[64,16384]{1,0}"
FUSION = f"%fusion = {Y} fusion({ALL} %x, {W} %w, s32[] %trip), kind=kOutput"
PROGRAM = f"""
    %x = {ALL} parameter(0)
    %w = {W} parameter(1)
    %trip = s32[] parameter(2)
    %part = {ONE} dynamic-slice({ALL} %x, s32[] %trip) // in fusion, runs=16
    %hidden = {ONE} tanh({ONE} %part) // in fusion, runs=16
    %y = {Y} dot({ONE} %hidden, {W} %w), lhs_contracting_dims={{1}} // in fusion, runs=16
    %sum = {Y} add({Y} %sum, {Y} %y) // result, runs=16
"""
TOGETHER = program(f"""
    %x = {ALL} parameter(0)
    %w = {W} parameter(1)
    %y = bf16[16,64,16384] dot({ALL} %x, {W} %w), lhs_contracting_dims={{2}} // in fusion, result
""")


def test_saves_reading_the_weights_in_each_trip() -> None:
    checked = check_rule(
        IndependentTrips,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, TOGETHER),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 2 x 64 x 4096 x 16384 FLOP at three quarters of 197 TFLOP/s take 58.1 µs, longer than a
    # sixteenth of the weights. In the drawing, one trip of 400 µs stands for all.
    assert finding.saving.expected_ns == pytest.approx(2 * (400_000 - 58_140), rel=0.001)
    assert finding.saving.low_ns == pytest.approx(finding.saving.expected_ns / 2, rel=0.001)
    assert "16 trips in model.py:37" in finding.instance


def test_two_trips_are_joined_if_nothing_shows_that_all_fit() -> None:
    # Another argument of 15 GiB.
    full = PROGRAM + "    %rest = bf16[65536,122880]{1,0} parameter(3)\n"
    (finding,) = find(IndependentTrips, drawn(SLOW, FUSION, program(full))) or ()
    assert finding.saving is not None
    # Half of the weights' 134 MB at 696 GB/s, and the rest as above.
    assert finding.saving.expected_ns == pytest.approx(2 * (400_000 - 111_460), rel=0.001)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Each trip starts from what the one before computed.
        (f"tanh({ONE} %part)", f"add({ONE} %part, {ONE} %hidden)"),
        (f"add({Y} %sum, {Y} %y)", f"multiply({Y} %sum, {Y} %y)"),
        # Other weights in each trip.
        (
            f"dot({ONE} %hidden, {W} %w)",
            f"dot({ONE} %hidden, {W} %own)",
        ),
        # No loop.
        (", runs=16", ""),
    ],
)
def test_other_loops_stay(before: str, after: str) -> None:
    assert before in PROGRAM
    text = PROGRAM.replace(before, after)
    if "%own" in after:
        text += f"    %own = {W} dynamic-slice({W} %w, s32[] %trip) // runs=16\n"
    if before.startswith("tanh"):
        text = text.replace(f"add({ONE} %part, {ONE} %hidden)", f"tanh({ONE} %mixed)")
        text += f"    %mixed = {ONE} multiply({ONE} %part, {ONE} %hidden) // runs=16\n"
    assert find(IndependentTrips, drawn(SLOW, FUSION, program(text))) == ()


def test_a_state_that_an_inner_loop_passes_on_ties_the_trips() -> None:
    text = PROGRAM.replace(f"tanh({ONE} %part)", f"tanh({ONE} %inner)")
    text += f"    %inner = {ONE} multiply({ONE} %part, {ONE} %hidden) // runs=64\n"
    assert find(IndependentTrips, drawn(SLOW, FUSION, program(text))) == ()


CACHE = "bf16[64,1024,4096]{2,1,0}"
CACHED = f"""
    %x = {ALL} parameter(0)
    %w = {W} parameter(1)
    %trip = s32[] parameter(2)
    %cache = {CACHE} parameter(3)
    %part = {ONE} dynamic-slice({ALL} %x, s32[] %trip) // in fusion, runs=16
    %row = bf16[64,1,4096] bitcast({ONE} %part) // in fusion, runs=16
    %stored = {CACHE} dynamic-update-slice({CACHE} %cache, bf16[64,1,4096] %row) // runs=16
    %seen = {ONE} dot({ONE} %part, {CACHE} %stored), lhs_contracting_dims={{1}} // runs=16
    %y = {Y} dot({ONE} %seen, {W} %w), lhs_contracting_dims={{1}} // in fusion, runs=16
    %sum = {Y} add({Y} %sum, {Y} %y) // result, runs=16
"""


def test_known_rows_that_read_a_cache_go_through_at_once() -> None:
    (finding,) = find(IndependentTrips, drawn(SLOW, FUSION, program(CACHED)))
    assert "No trip needs more of another than what it stores." in finding.summary
    assert "causal mask" in finding.remedies[0].text


def test_what_is_stored_may_not_depend_on_what_was_stored_before() -> None:
    text = CACHED.replace(f"bitcast({ONE} %part)", f"bitcast({ONE} %seen)")
    assert text != CACHED
    assert find(IndependentTrips, drawn(SLOW, FUSION, program(text))) == ()
