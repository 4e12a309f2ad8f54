"""Loops whose trips, or a part of whose work, could run at once."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

# Of a v5e: 819 GB/s and 197 TFLOP/s, of which large transfers reach 85 % and products 75 %.
BYTES_PER_US, FLOP_PER_US = 819e3 * 0.85, 197e6 * 0.75

ALL, ONE, W = "bf16[256,32,1024]{2,1,0}", "bf16[32,1024]{1,0}", "bf16[1024,4096]{1,0}"
GATES, STATE = "bf16[32,4096]{1,0}", "bf16[4096,4096]{1,0}"
FUSION = f"%fusion = {GATES} fusion({ALL} %x, {W} %w, s32[] %trip), kind=kOutput"
CONTRACTED = "lhs_contracting_dims={0}"
COUNTER = """
    %begin = s32[] constant(0)
    %one = s32[] constant(1)
    %trip = s32[] add(s32[] %trip, s32[] %one) // runs=256
"""
INPUTS = f"""
    %x = {ALL} parameter(0)
    %w = {W} parameter(1)
    %part = {ONE} dynamic-slice({ALL} %x, s32[] %trip) // in fusion, runs=256
    %gates = {GATES} dot({ONE} %part, {W} %w), lhs_contracting_dims={{1}} // in fusion, runs=256
"""
RECURRENCE = f"""
    %before = {GATES} dot({GATES} %state, {STATE} %recurrent) // runs=256
    %both = {GATES} add({GATES} %gates, {GATES} %before) // runs=256
    %state = {GATES} tanh({GATES} %both) // result, runs=256
"""
LOOP = f"%recurrent = {STATE} parameter(2)" + COUNTER + INPUTS + RECURRENCE
BEFORE = program(f"""
    %x = {ALL} parameter(0)
    %w = {W} parameter(1)
    %gates = bf16[256,32,4096] dot({ALL} %x, {W} %w) // in fusion, result
""")
# All trips at once are limited by their FLOP; one trip is by the 8 MiB of its weights, beside
# which it moves 64 KiB of inputs and 256 KiB of results.
AT_ONCE_US = 256 * 2 * 32 * 1024 * 4096 / FLOP_PER_US
TRIPS_US = 256 * (8 * 2**20 + 320 * 2**10) / BYTES_PER_US


def expected_us(finding: Finding) -> float:
    assert finding.saving is not None
    return finding.saving.expected_ns / 1000


def test_inputs_of_a_recurrence_are_multiplied_at_once() -> None:
    checked = check_rule(
        ExcessWork,
        slow=drawn(SLOW, FUSION, program(LOOP)),
        fixed=drawn(FIXED, FUSION, BEFORE),
        saves=300_000,
        tolerance=0.2,
        exactly=False,
        scales=False,
    )
    (finding,) = checked.findings
    # Of two times 400 µs, what takes longer than bytes and FLOP say stays longer.
    saved_us = 800 * (1 - AT_ONCE_US / TRIPS_US)
    assert expected_us(finding) == pytest.approx(saved_us, rel=0.001)
    assert "256 trips of a loop" in finding.summary
    assert "before the loop" in finding.remedies[0].text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The state is multiplied, not the input.
        (f"dot({ONE} %part", f"dot({ONE} %state"),
        # Each trip has weights of its own.
        (f"%w = {W} parameter(1)", f"%w = {W} dynamic-slice({ALL} %x, s32[] %trip) // runs=256"),
        # Whatever the loop sliced before, it slices anew from what the trip before has left.
        (f"dynamic-slice({ALL} %x", f"dynamic-slice({GATES} %state"),
    ],
)
def test_what_depends_on_the_trip_before_stays(before: str, after: str) -> None:
    text = LOOP.replace(before, after)
    assert text != LOOP
    assert find(ExcessWork, drawn(SLOW, FUSION, program(text))) == ()


def test_examples_are_processed_at_once() -> None:
    text = COUNTER + INPUTS + f"%mapped = {GATES} tanh({GATES} %gates) // result, runs=256"
    (finding,) = find(ExcessWork, drawn(SLOW, FUSION, program(text))) or ()
    assert "vmap" in (finding.remedies[0].snippet or "")


def test_products_that_are_added_up_are_one_product() -> None:
    gradient = f"%fusion = {W} fusion({ALL} %x, {GATES} %w, s32[] %trip), kind=kOutput"
    text = (
        COUNTER
        + f"""
        %x = {ALL} parameter(0)
        %y = bf16[256,32,4096]{{2,1,0}} parameter(1)
        %part = {ONE} dynamic-slice({ALL} %x, s32[] %trip) // in fusion, runs=256
        %other = {GATES} dynamic-slice(bf16[256,32,4096] %y, s32[] %trip) // in fusion, runs=256
        %term = {W} dot({ONE} %part, {GATES} %other), {CONTRACTED} // in fusion, runs=256
        %sum = {W} add({W} %sum, {W} %term) // in fusion, result, runs=256
    """
    )
    (finding,) = find(ExcessWork, drawn(SLOW, gradient, program(text))) or ()
    # A trip reads the sum and writes it, 8 MiB each, and reads 64 and 256 KiB of its factors.
    trip_us = (16 * 2**20 + 320 * 2**10) / BYTES_PER_US
    assert expected_us(finding) == pytest.approx(800 * (1 - AT_ONCE_US / 256 / trip_us), rel=0.001)
    # A sum that each trip reads in between is not known before its last term.
    read = f"\n%read = {W} tanh({W} %sum) // result, runs=256"
    scaled = text.replace("add(", "multiply(")
    assert find(ExcessWork, drawn(SLOW, gradient, program(text + read))) == ()
    assert find(ExcessWork, drawn(SLOW, gradient, program(scaled))) == ()


def test_results_of_all_trips_have_to_fit_into_memory() -> None:
    # 256 times 32 x 4096 results have 64 MiB; 256 times as many rows would have all 16 GiB.
    many = {"[256,32,": "[256,8192,", "[32,": "[8192,"}
    text = COUNTER + INPUTS + f"%mapped = {GATES} tanh({GATES} %gates) // result, runs=256"
    fusion = FUSION
    for old, new in many.items():
        text, fusion = text.replace(old, new), fusion.replace(old, new)
    assert find(ExcessWork, drawn(SLOW, fusion, program(text))) == ()
