"""A step is as fast as its slowest rank: two ranks, late for different reasons."""

from __future__ import annotations

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.signals import Cause, Signals, ranks_of, reference_worker
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import Run
from tb_perfadvisor.trace.intervals import EMPTY
from tb_perfadvisor.whatif import most_saved_ns

# One rank fetches for 6 of 11 ms; the other is busy for 3 ms in Python, in which nothing launches.
# Both compute for 3 ms, and reduce for 2 ms once both have arrived.
FETCHES = """
    cell 1ms
    step   |...........|...........|...........|
    main   |DDDDDDo'SSS|DDDDDDo'SSS|DDDDDDo'SSS|
    gpu 7  |......KKK..|......KKK..|......KKK..|
    gpu 13 |.........NN|.........NN|.........NN|
"""
THINKS = """
    cell 1ms
    step   |...........|...........|...........|
    main   |pppo'SSSSSS|pppo'SSSSSS|pppo'SSSSSS|
    gpu 7  |...KKK.....|...KKK.....|...KKK.....|
    gpu 13 |......NNNNN|......NNNNN|......NNNNN|
"""
# Without the fetching, the step is that of the other rank.
FIXED_FETCHES = """
    cell 1ms
    step   |........|........|........|
    main   |o'SSSSSS|o'SSSSSS|o'SSSSSS|
    gpu 7  |KKK.....|KKK.....|KKK.....|
    gpu 13 |...NNNNN|...NNNNN|...NNNNN|
"""
FIXED_THINKS = """
    cell 1ms
    step   |........|........|........|
    main   |pppo'SSS|pppo'SSS|pppo'SSS|
    gpu 7  |...KKK..|...KKK..|...KKK..|
    gpu 13 |......NN|......NN|......NN|
"""


def run(*texts: str) -> Run:
    return run_of(
        *(
            draw(text, rank=rank, world_size=len(texts), backend="nccl")
            for rank, text in enumerate(texts)
        )
    )


def step_ns(subject: Run) -> float:
    steps = reference_worker(subject).steps
    return steps.window_ns / steps.count


def test_saving_ends_when_another_rank_arrives_last() -> None:
    slow, fixed = run(FETCHES, THINKS), run(FIXED_FETCHES, FIXED_THINKS)
    report = analyze(slow)
    stall = next(finding for finding in report.findings if finding.rule_id == "input-stall")
    assert stall.saving is not None
    # 11 ms become 8: of 6 ms of fetching 3 would only make this rank wait for the other.
    assert step_ns(slow) - step_ns(fixed) == 3_000_000
    assert stall.saving.expected_ns == 3_000_000
    assert (
        stall.saving.high_ns == 6_000_000
    )  # the time of the other rank without the cause is unknown
    # Others wait because of the late rank's stall, so both findings together save no more.
    late = [
        finding for finding in report.findings if finding.rule_id in ("straggler", "input-stall")
    ]
    assert (
        sum(finding.saving.marginal_ns for finding in late if finding.saving is not None)
        == 3_000_000
    )


def test_fix_removes_the_same_cause_from_other_ranks() -> None:
    # The other rank fetches for 3 ms, so all of the 6 ms may disappear. At twice the rate of its
    # workers, a step of 11 ms takes 5.5 ms less, of which half counts at least; the middle is
    # expected.
    report = analyze(run(FETCHES, THINKS.replace("ppp", "DDD")))
    stall = next(finding for finding in report.findings if finding.rule_id == "input-stall")
    assert stall.saving is not None
    assert stall.saving.high_ns == 6_000_000
    assert stall.saving.expected_ns == (2_750_000 + 6_000_000) // 2


def test_largest_possible_saving() -> None:
    facts = reference_worker(run(FETCHES, THINKS))
    window_ns = 33_000_000
    # Nothing changed: the other rank takes 8 of 11 ms by itself.
    assert most_saved_ns(facts, EMPTY) == window_ns - 24_000_000
    # Compute takes 3 of the other rank's 8 ms.
    compute = facts.attribution.of(Cause.COMPUTE_32, Cause.COMPUTE_UNKNOWN)
    assert most_saved_ns(facts, compute) == window_ns - 15_000_000
    everything = facts.attribution.of(*Cause)
    assert most_saved_ns(facts, everything) == pytest.approx(window_ns - 9_000_000)


def test_saving_is_unknown_for_a_single_rank_or_with_ranks_missing() -> None:
    alone = Signals(run_of(draw(FETCHES)))
    assert most_saved_ns(alone, EMPTY) == alone.attribution.window_ns
    missing = reference_worker(run_of(draw(FETCHES, rank=0, world_size=2, backend="nccl")))
    assert most_saved_ns(missing, EMPTY) == missing.attribution.window_ns


def test_ranks_that_share_cores_take_turns() -> None:
    on_cpu = """
        cell 1ms
        step   |........|........|
        main   |DDDDoooo|DDDDoooo|
        gloo   |.......C|.......C|
    """
    ranks = [draw(on_cpu, rank=rank, world_size=2, backend="gloo") for rank in range(2)]
    facts = reference_worker(run_of(*ranks))
    assert facts.device.is_host_only
    assert len(ranks_of(facts).matched) == 2
    assert most_saved_ns(facts, EMPTY) == facts.attribution.window_ns
