from __future__ import annotations

import pytest

from tb_perfadvisor.rules.input.stalls import InputStall
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |oo....|oo....|
    worker |DDDD..|DDDD..|
    gpu 7  |.KKKKK|.KKKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    # The drawn pipeline keeps up. Whether it will is unknown, so less is expected: overlapping
    # alone hides 4 ms, of which half counts at least, and 3 ms is the middle.
    checked = check_rule(InputStall, slow=SLOW, fixed=FIXED, saves="4ms", exactly=False)
    assert checked.expected_ns == 3_000_000


def test_fetches_that_overlap_device_work_cost_nothing() -> None:
    # The fetch of the next batch overlaps the kernel of this one completely.
    trace = """
        cell 1ms
        step   |.....|.....|
        main   |oDDD.|oDDD.|
        gpu 7  |KKKKK|KKKKK|
    """
    assert find(InputStall, trace) == ()


def test_on_the_cpu_the_operators_wait() -> None:
    # Each step of 10 ms spends 6 ms in the loader.
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |DDDDDDOOOO|DDDDDDOOOO|
    """
    (finding,) = find(InputStall, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 12_000_000
    # Workers already load in parallel, so overlap saves nothing more. At twice their rate a step
    # saves at most 5 ms, of which half counts: 2.5 ms in each of two steps.
    assert finding.saving.low_ns == 5_000_000
    assert "operators wait" in finding.summary


def test_low_is_at_most_the_rest_of_the_step() -> None:
    # tf.data: 7 ms of input and 3 ms of work; when they overlap, a step still takes 7 ms.
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |DDDDDDDOOO|DDDDDDDOOO|
    """
    (finding,) = find(InputStall, trace, framework="tensorflow") or ()
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (6_000_000, 14_000_000)


def test_just_below_and_just_above_the_limit() -> None:
    # One cell of 50 is 2 % of the step.
    trace = f"""
        cell 1ms
        step   |{"." * 50}|
        main   |Do{"." * 48}|
        gpu 7  |.{"K" * 49}|
    """
    assert find(InputStall, trace, settings={"minimum_share": 0.021}) == ()
    assert len(find(InputStall, trace, settings={"minimum_share": 0.019}) or ()) == 1


@pytest.mark.parametrize(
    ("fetches", "fires"),
    [
        # 4 % of each step minus 1.4 ms for handing over a batch: 2.6 of 100 ms, and 3.1 of 100.
        ((40, 40, 40), False),
        ((45, 45, 45), True),
        # 5 % of all steps, but in a single step.
        ((150, 1, 1), True),
        ((130, 1, 1), False),
    ],
)
def test_a_smaller_stall_must_recur(fetches: tuple[int, ...], *, fires: bool) -> None:
    steps = [f"{'D' * fetch}{'O' * (1000 - fetch)}" for fetch in fetches]
    trace = f"""
        cell 100us
        step   |{"|".join("." * 1000 for _ in fetches)}|
        main   |{"|".join(steps)}|
    """
    assert bool(find(InputStall, trace, framework="tensorflow")) == fires


def test_a_process_that_loads_itself_hands_over_nothing() -> None:
    # The same 4 ms of each 100 ms, and 2.9 ms: only a loader with workers hands over batches.
    def steps(fetch: int) -> str:
        cells = f"{'D' * fetch}{'O' * (1000 - fetch)}"
        return f"cell 100us\nstep |{'|'.join(['.' * 1000] * 3)}|\nmain |{'|'.join([cells] * 3)}|"

    single_process = host(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT
    )
    assert find(InputStall, steps(40), legend={"D": single_process})
    assert find(InputStall, steps(29), legend={"D": single_process}) == ()
    assert find(InputStall, steps(40)) == ()


def test_a_loader_with_workers_is_not_advised_to_use_workers() -> None:
    single = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    (has_workers,) = find(InputStall, SLOW) or ()
    (has_none,) = find(InputStall, SLOW, legend={"D": host(single, EventKind.INPUT_WAIT)}) or ()
    assert "cannot keep up" in has_workers.remedies[0].text
    assert "in worker processes" in has_none.remedies[0].text


def test_on_the_cpu_taking_over_a_batch_is_not_a_wait() -> None:
    # 2 of 10 ms in each fetch; then 2 and 6 ms, of which only 6 ms is a wait: 6 of 20 ms.
    taken_over = """
        cell 1ms
        step   |..........|..........|
        main   |DDOOOOOOOO|DDOOOOOOOO|
    """
    assert find(InputStall, taken_over) == ()
    waited_once = """
        cell 1ms
        step   |..........|..........|
        main   |DDOOOOOOOO|DDDDDDOOOO|
    """
    (finding,) = find(InputStall, waited_once) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 6_000_000
