"""Loops whose trips, or a part of whose work, could run at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

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


def test_vectors_times_what_is_computed_of_the_same_matrix_are_one_product() -> None:
    # XLA multiplies on single elements, and computes the other factor anew in each trip.
    whole, stored = "f32[8192,16384]{1,0}", "s8[8192,16384]{1,0}"
    fusion = f"%fusion = f32[16384]{{0}} fusion({stored} %m, f32[8,8192]{{1,0}} %x), calls=%c"
    text = (
        COUNTER
        + f"""
        %m = {stored} parameter(0)
        %x = f32[8,8192]{{1,0}} parameter(1)
        %part = f32[8192]{{0}} dynamic-slice(f32[8,8192] %x, s32[] %trip) // in fusion, runs=8
        %row = {whole} broadcast(f32[8192] %part) // in fusion, runs=8
        %wide = {whole} convert({stored} %m) // in fusion, runs=8
        %square = {whole} multiply({whole} %wide, {whole} %wide) // in fusion, runs=8
        %rest = {whole} subtract({whole} %square, {whole} %wide) // in fusion, runs=8
        %term = {whole} multiply({whole} %row, {whole} %rest) // in fusion, runs=8
        %all = f32[16384]{{0}} reduce({whole} %term, s32[] %begin) // in fusion, result, runs=8
    """
    )
    text = text.replace("runs=256", "runs=8")
    (finding,) = find(ExcessWork, drawn(SLOW, fusion, program(text))) or ()
    # Eight trips read the matrix once, and each has a vector and a result. The arithmetic would
    # take longer if each operation took a cycle, but a trip takes less than that already.
    bytes_us = (2**27 + 8 * 4 * (8192 + 16384)) / BYTES_PER_US
    assert expected_us(finding) == pytest.approx(800 - 2 * bytes_us / 8, rel=0.001)
    # Sums are no product: each trip keeps the arithmetic that its own vector is in.
    sums = program(text.replace(f"multiply({whole} %row", f"add({whole} %row"))
    (finding,) = find(ExcessWork, drawn(SLOW, fusion, sums)) or ()
    assert expected_us(finding) < 400


@pytest.mark.parametrize(("written", "remedy"), [("gates", "all trips"), ("mixed", "inputs of")])
def test_trips_may_read_what_trips_before_have_written(written: str, remedy: str) -> None:
    # As of attention to the tokens of a prompt. What is read may decide what is written, or not.
    keys = "bf16[256,32,4096]{2,1,0}"
    update = f"dynamic-update-slice({keys} %keys, {GATES} %{written}, s32[] %trip)"
    text = (
        COUNTER
        + INPUTS
        + f"""
        %keys = {keys} {update} // runs=256
        %read = {GATES} reduce({keys} %keys) // runs=256
        %mixed = {GATES} add({GATES} %gates, {GATES} %read) // result, runs=256
    """
    )
    (finding,) = find(ExcessWork, drawn(SLOW, FUSION, program(text))) or ()
    assert remedy in finding.remedies[0].text


def test_the_rest_of_a_loop_may_stay_on_the_chip_at_best() -> None:
    def high_ns(weights: str) -> int:
        other = f"%before = {GATES} dot({GATES} %state, {weights} %recurrent)"
        legend = {
            "s": xla_op("fusion", FUSION, module=MODULE),
            "t": xla_op("before", other, module=MODULE),
        }
        trace = draw(SLOW.replace("ssss", "sstt"), legend=legend, device="TPU v5 lite")
        text = LOOP.replace(STATE, weights)
        (finding,) = find(ExcessWork, replace(trace, programs=(program(text),))) or ()
        assert finding.saving is not None
        return finding.saving.high_ns

    # Beside it, the recurrence reads 32 MiB in each trip, or 16 KiB more than there is room for.
    more_ns = high_ns(STATE) - high_ns("bf16[4098,4096]{1,0}")
    assert more_ns == pytest.approx(2 * 1000 * 2**25 / BYTES_PER_US, rel=0.001)


def test_independent_trips_wait_for_the_same_array_only_once() -> None:
    brought = W.replace("0}", "0:S(1)}")
    text = COUNTER + INPUTS.replace("{W} %w)", f"{brought} %near)").replace(
        "%part = ", f"%near = {brought} copy-start({W} %w) // runs=256\n%part = "
    )
    text += f"%mapped = {GATES} tanh({GATES} %gates) // result, runs=256"
    wait = f"%done = {brought} copy-done(({brought}, {W}, u32[]) %near)"
    (finding,) = find(ExcessWork, drawn(SLOW, wait, program(text))) or ()
    assert expected_us(finding) == pytest.approx(2 * 400 * 255 / 256, rel=0.001)
    # A recurrence may need the room on the chip for its state.
    serial = f"%recurrent = {STATE} parameter(2)" + text + RECURRENCE.replace("%gates", "%mapped")
    assert find(ExcessWork, drawn(SLOW, wait, program(serial))) == ()


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


BLOCK = f"%first = {GATES} fusion({ONE} %x, {W} %w), kind=kOutput"
PASSES = f"""
    %x = {ONE} parameter(0)
    %y = {ONE} parameter(1)
    %w = {W} parameter(2)
    %one = {GATES} dot({ONE} %x, {W} %w), lhs_contracting_dims={{1}} // in first, result
    %two = {GATES} dot({ONE} %y, {W} %w), lhs_contracting_dims={{1}} // in second, result
"""


def two_passes(text: str) -> Trace:
    legend = {
        letter: xla_op(name, BLOCK.replace("%first", f"%{name}"), module=MODULE)
        for letter, name in (("s", "first"), ("t", "second"))
    }
    trace = draw(SLOW.replace("ssss", "sstt"), legend=legend, device="TPU v5 lite")
    return replace(trace, programs=(program(text),))


def test_weights_are_read_in_one_pass() -> None:
    (finding,) = find(ExcessWork, two_passes(PASSES)) or ()
    assert "2 passes over the same arrays" in finding.summary
    assert "along the batch" in finding.remedies[0].text
    # Two passes read 8 MiB of weights twice; inputs and results of 320 KiB stay. So 8 MiB and twice
    # these take their share of four times 200 µs.
    beside = 320 / 1024
    share = (8 + 2 * beside) / (2 * (8 + beside))
    assert expected_us(finding) == pytest.approx(800 * (1 - share), rel=0.001)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The second needs the first.
        (f"%y = {ONE} parameter(1)", f"%y = {ONE} slice({GATES} %one)"),
        # It has weights of its own, or more of them.
        (f"{ONE} %y, {W} %w", f"{ONE} %y, {W} %v"),
        (f"{ONE} %y, {W} %w)", f"{ONE} %y, {W} %w, {W} %v)"),
        # It computes something else.
        (f"%two = {GATES} dot", f"%two = {GATES} add"),
    ],
)
def test_passes_that_differ_stay_two(before: str, after: str) -> None:
    text = f"%v = {W} parameter(3)" + PASSES.replace(before, after)
    assert before in PASSES
    found = find(ExcessWork, two_passes(text)) or ()
    assert all("passes" not in finding.summary for finding in found)


# Gradients of eight micro-batches, each summed up over four devices before it is added.
SUM, FACTOR = "f32[1024,1024]{1,0}", "bf16[4096,1024]{1,0}"
ACCUMULATED = f"""
    %x = {FACTOR} parameter(0)
    %gradient = {SUM} dot({FACTOR} %x, {FACTOR} %x), {CONTRACTED} // runs=8
    %reduced = {SUM} all-reduce({SUM} %gradient) // runs=8
    %mean = {SUM} convert({SUM} %reduced) // in add, runs=8
    %sum = {SUM} add({SUM} %sum, {SUM} %mean) // in add, result, runs=8
"""
REDUCED = f"%reduced = {SUM} all-reduce({SUM} %gradient)"


def accumulated(text: str) -> Trace:
    return drawn(SLOW, REDUCED, program(text, devices=4))


def test_what_trips_add_up_is_summed_over_the_devices_once() -> None:
    text = ACCUMULATED.replace(
        f"multiply({SUM} %reduced, {SUM} %reduced)", f"convert({SUM} %reduced)"
    )
    (finding,) = find(ExcessWork, accumulated(text)) or ()
    # Of 400 µs in each of two steps, one of eight trips remains.
    assert expected_us(finding) == pytest.approx(2 * 400 * 7 / 8, rel=0.001)
    assert "pmean" in (finding.remedies[0].snippet or "")
    # Each trip needs a sum that it squares, or that decides on the next trip.
    read = f"\n%step = {SUM} multiply({SUM} %step, {SUM} %reduced) // result, runs=8"
    squared = ACCUMULATED.replace(
        f"convert({SUM} %reduced)", f"multiply({SUM} %reduced, {SUM} %reduced)"
    )
    assert squared != ACCUMULATED
    assert find(ExcessWork, accumulated(ACCUMULATED + read)) == ()
    assert find(ExcessWork, accumulated(squared)) == ()


def test_a_loss_may_be_summed_with_the_gradients() -> None:
    loss = """
        %part = f32[] convert(f32[] %reduced) // in add, runs=8
        %loss = f32[] add(f32[] %loss, f32[] %part) // in add, result, runs=8
    """
    (finding,) = find(ExcessWork, accumulated(ACCUMULATED + loss)) or ()
    assert expected_us(finding) == pytest.approx(2 * 400 * 7 / 8, rel=0.001)
