from __future__ import annotations

import pytest

from tb_perfadvisor.rules.input.loader_in_main_process import LoaderInMainProcess
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

# The single-process iterator's name in the PyTorch plugin's resnet50 sample.
SINGLE = {
    "F": host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT)
}
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |FFFFoo....|FFFFoo....|FFFFoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""
FIXED = """
    cell 1ms
    step   |......|......|......|
    main   |oo....|oo....|oo....|
    gpu 7  |.KKKKK|.KKKKK|.KKKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        LoaderInMainProcess,
        slow=SLOW,
        fixed=FIXED,
        saves="4ms",
        legend=SINGLE,
        fixed_applies=False,  # no fetches are left
        exactly=False,  # workers slow the host down
        scales=False,  # handing over a batch takes as long whatever its size
    )
    saving = checked.findings[0].saving
    assert saving is not None
    # The device idles 3 x 5 ms, in the fetch (4 ms) and the operator (1 ms), so it waits for the
    # host. In 3 steps, the host's 18 ms take 10 or 25 % longer, and each batch 1.4 ms.
    assert saving.high_ns == 12_000_000
    assert saving.expected_ns == 12_000_000 - 1_800_000 - 3 * 1_400_000
    assert saving.low_ns == 12_000_000 - 4_500_000 - 3 * 1_400_000


@pytest.mark.parametrize(
    ("loading", "workers"),
    [
        (4, 4),  # 4 ms beside 6 ms of work need one worker; four are the least
        (8, 4),  # 8 ms beside 2 ms: 4
        (9, 9),  # 9 ms beside 1 ms
    ],
)
def test_workers_keep_up_with_the_rest_of_the_step(loading: int, workers: int) -> None:
    trace = f"""
        cell 1ms
        step   |..........|..........|..........|
        main   |{"|".join(["F" * loading + "o" * (10 - loading)] * 3)}|
        gpu 7  |{"|".join(["." * loading + "K" * (10 - loading)] * 3)}|
    """
    (finding,) = find(LoaderInMainProcess, trace, legend=SINGLE) or ()
    plain = next(each for each in finding.remedies if each.fixes == ("loader-workers",))
    assert dict(plain.values) == {"workers": workers}
    assert f"num_workers={workers}" in plain.snippet


def test_a_loader_with_workers_is_left_alone() -> None:
    assert find(LoaderInMainProcess, SLOW.replace("F", "D")) == ()


def test_fetches_that_overlap_device_work_cost_nothing() -> None:
    trace = """
        cell 1ms
        step   |.....|.....|.....|
        main   |oFFF.|oFFF.|oFFF.|
        gpu 7  |KKKKK|KKKKK|KKKKK|
    """
    assert find(LoaderInMainProcess, trace, legend=SINGLE) == ()


def test_low_is_at_most_the_rest_of_the_step() -> None:
    # 8 of 10 ms fetch: a single worker takes 8 ms for each step, which is 2 ms less.
    trace = """
        cell 1ms
        step   |..........|..........|..........|
        main   |FFFFFFFFoo|FFFFFFFFoo|FFFFFFFFoo|
        gpu 7  |........KK|........KK|........KK|
    """
    (finding,) = find(LoaderInMainProcess, trace, legend=SINGLE) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 6_000_000


def test_short_fetches_are_left_alone() -> None:
    for limit_ns, count in ((4_100_000, 0), (3_900_000, 1)):
        settings = {"minimum_fetch_ns": float(limit_ns)}
        findings = find(LoaderInMainProcess, SLOW, legend=SINGLE, settings=settings)
        assert len(findings or ()) == count


def test_just_below_and_just_above_the_limit() -> None:
    for limit, count in ((0.41, 0), (0.39, 1)):
        findings = find(LoaderInMainProcess, SLOW, legend=SINGLE, settings={"minimum_share": limit})
        assert len(findings or ()) == count
