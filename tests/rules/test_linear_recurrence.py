from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.linear_recurrence import LinearRecurrence
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import drawn, program

ALL, ONE, STATE = "f32[512,32,64]{2,1,0}", "f32[32,64]{1,0}", "f32[32,64,64]{2,1,0}"
FUSION = f"%fusion = {STATE} fusion({STATE} %state, {ALL} %keys, {ALL} %values), kind=kLoop"
# One trip of 400 µs stands for the 512 of the program.
SLOW = """
    cell 100us
    step  |......|......|
    main  |LSSSSS|LSSSSS|
    tpu 0 |XXssss|XXssss|
"""
FIXED = """
    cell 100us
    step  |...|...|
    main  |LSS|LSS|
    tpu 0 |XXs|XXs|
"""
PROGRAM = f"""
    %keys = {ALL} parameter(0)
    %values = {ALL} parameter(1)
    %decay = f32[32]{{0}} parameter(2)
    %trip = s32[] parameter(3)
    %key = {ONE} dynamic-slice({ALL} %keys, s32[] %trip) // in fusion, runs=512
    %value = {ONE} dynamic-slice({ALL} %values, s32[] %trip) // in fusion, runs=512
    %column = {STATE} broadcast({ONE} %key), dimensions={{0,1}} // in fusion, runs=512
    %row = {STATE} broadcast({ONE} %value), dimensions={{0,2}} // in fusion, runs=512
    %outer = {STATE} multiply({STATE} %column, {STATE} %row) // in fusion, runs=512
    %decays = {STATE} broadcast(f32[32]{{0}} %decay), dimensions={{0}} // in fusion, runs=512
    %kept = {STATE} multiply({STATE} %decays, {STATE} %state) // in fusion, runs=512
    %state = {STATE} add({STATE} %kept, {STATE} %outer) // in fusion, result, runs=512
"""
IN_CHUNKS = program(f"""
    %keys = {ALL} parameter(0)
    %values = {ALL} parameter(1)
    %state = f32[32,512,512] dot({ALL} %keys, {ALL} %values) // in fusion, result
""")


def test_saves_what_going_one_by_one_takes() -> None:
    checked = check_rule(
        LinearRecurrence,
        slow=drawn(SLOW, FUSION, program(PROGRAM)),
        fixed=drawn(FIXED, FUSION, IN_CHUNKS),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Of a trip's 400 µs, a 128th of 10 µs remains, and little for products and scores.
    assert finding.saving.expected_ns == pytest.approx(2 * (400_000 - 78), rel=0.001)
    assert finding.saving.low_ns == pytest.approx(finding.saving.expected_ns / 2, rel=0.001)
    assert "512 trips in model.py:37" in finding.instance
    assert any("chunks of 128" in remedy.text for remedy in finding.remedies)


def test_a_state_without_outer_products_is_combined_in_pairs() -> None:
    text = "\n".join(
        line.replace(STATE, ONE)
        .replace(f"multiply({ONE} %column, {ONE} %row)", f"copy({ONE} %key)")
        .replace("broadcast(f32[32]{0} %decay)", f"dynamic-slice({ALL} %values, s32[] %trip)")
        for line in PROGRAM.splitlines()
        if not any(name in line for name in ("%column =", "%row ="))
    )
    (finding,) = find(LinearRecurrence, drawn(SLOW, FUSION, program(text))) or ()
    assert any("pairs of pairs" in remedy.text for remedy in finding.remedies)


def test_a_decay_of_each_element_fits_into_no_product() -> None:
    text = PROGRAM.replace("%decay = f32[32]{0} parameter(2)", f"%decay = {STATE} parameter(2)")
    text = text.replace(
        "broadcast(f32[32]{0} %decay), dimensions={0}", f"exponential({STATE} %decay)"
    )
    (finding,) = find(LinearRecurrence, drawn(SLOW, FUSION, program(text))) or ()
    assert any("pairs of pairs" in remedy.text for remedy in finding.remedies)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The state goes through a function that is not linear.
        (f"multiply({STATE} %decays, {STATE} %state)", f"tanh({STATE} %state)"),
        # What it is multiplied by depends on it.
        (f"multiply({STATE} %decays, {STATE} %state)", f"multiply({STATE} %state, {STATE} %state)"),
        # A sum of all trips, at which none looks.
        (f"multiply({STATE} %decays, {STATE} %state)", f"copy({STATE} %state)"),
        # Few trips.
        ("runs=512", "runs=16"),
        # What one trip stores decides on the next one's key.
        (
            f"%key = {ONE} dynamic-slice({ALL} %keys, s32[] %trip)",
            f"%stored = {ALL} dynamic-update-slice({ALL} %stored, {ONE} %key, s32[] %trip)"
            f" // runs=512\n    %key = {ONE} dynamic-slice({ALL} %stored, s32[] %trip)",
        ),
    ],
)
def test_trips_that_need_the_one_before_stay(before: str, after: str) -> None:
    assert before in PROGRAM
    assert (
        find(LinearRecurrence, drawn(SLOW, FUSION, program(PROGRAM.replace(before, after)))) == ()
    )


def test_a_state_that_moves_no_more_than_it_has_to_stays() -> None:
    # A state of 512 KiB that is moved six times takes 4.5 µs at 696 GB/s, more than a trip's 4 µs.
    fast = SLOW.replace("100us", "1us")
    text = PROGRAM.replace(f"multiply({STATE} %column, {STATE} %row)", f"copy({STATE} %column)")
    assert find(LinearRecurrence, drawn(fast, FUSION, program(text))) == ()
