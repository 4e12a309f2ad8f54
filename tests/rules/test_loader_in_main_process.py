from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import (
    UNKNOWN,
    Facts,
    Load,
    Machine,
    Made,
    Program,
    Threads,
    Value,
)
from tb_perfadvisor.rules.input.loading import LoaderInMainProcess
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Trace

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


def on_cpu(
    fetch_us: int,
    rest_us: int,
    facts: Facts = UNKNOWN,
    operators: Sequence[str] = (),
) -> Trace:
    """Three steps on the CPU: a fetch with operators in it, and the rest."""
    builder = TraceBuilder()
    length = fetch_us + rest_us
    for number in range(3):
        start = number * length
        builder.step(number, us(start), us(start + length))
        builder.add(SINGLE["F"], us(start), us(start + fetch_us), thread="main")
        for place, name in enumerate(operators):
            at = start + 5 + 5 * place
            builder.operator(name, us(at), us(at + 2), launches=False)
        builder.operator("aten::mm", us(start + fetch_us), us(start + length), launches=False)
    return replace(builder.build(), facts=facts)


def machine(cores: int, threads: int, *, idle: float = 0.0, dataset_bytes: int = 0) -> Facts:
    facts: dict[str, Value] = {"num_workers": 0, "dataset_bytes": dataset_bytes}
    made = Made("loader", "DataLoader", "train.py", 7, "", facts)
    return Facts(
        machine=Machine(cores=cores, memory_bytes=24 << 30),
        threads=Threads(intra_op=threads),
        load=Load(others=0.0, idle=idle),
        program=Program(made=(made,) if dataset_bytes else ()),
    )


def test_short_fetches_on_shared_cores_are_kept_in_memory() -> None:
    # 1.3 of 5.2 ms, as in a VAE on MNIST: two workers cost it 5 to 25 %.
    trace = on_cpu(1300, 3900, machine(2, 2, dataset_bytes=47 << 20))
    (finding,) = find(LoaderInMainProcess, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == int(0.85 * 3 * us(1300))
    assert finding.saving.low_ns == int(0.5 * 3 * us(1300))
    assert finding.saving.basis == "modeled"
    assert "would cost more than it brings" in finding.summary
    assert {remedy.change for remedy in finding.remedies} == {"prepared-samples", "data-in-memory"}


def test_on_an_unknown_machine_the_range_begins_near_zero() -> None:
    (finding,) = find(LoaderInMainProcess, on_cpu(1300, 3900)) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == int(0.2 * 3 * us(1300))
    assert finding.saving.basis == "heuristic"


def test_workers_cannot_help_where_samples_do_not_fit_and_cores_are_taken() -> None:
    assert find(LoaderInMainProcess, on_cpu(1300, 3900, machine(2, 2, dataset_bytes=8 << 30))) == ()


def test_long_fetches_are_worth_workers_where_samples_do_not_fit() -> None:
    # With two workers, 33.4 + 10.1 ms took 33.1 ms: 10.3 ms less. The model:
    # 33.4 x (1 - 1/2 - 0.13) - 3.5 = 8.9 ms.
    trace = on_cpu(33_400, 10_100, machine(2, 2, dataset_bytes=8 << 30))
    (finding,) = find(LoaderInMainProcess, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(3 * us(8858), rel=1e-3)
    assert finding.remedies[0].change == "loader-workers"
    assert finding.saving.low_ns <= 3 * us(10_300) <= finding.saving.high_ns


def test_idle_cores_take_the_loading() -> None:
    trace = on_cpu(4000, 6000, machine(16, 8, dataset_bytes=8 << 30))
    (finding,) = find(LoaderInMainProcess, trace) or ()
    assert finding.saving is not None
    # All but handing over.
    assert finding.saving.expected_ns == 3 * us(4000 - 1400)


def test_waiting_for_storage_needs_no_core() -> None:
    # Half of the time, neither of two cores was busy: 22 of 44 ms wait, of 26 ms of fetch.
    facts = machine(2, 2, idle=0.75, dataset_bytes=8 << 30)
    (finding,) = find(LoaderInMainProcess, on_cpu(26_000, 18_000, facts)) or ()
    assert finding.saving is not None
    waits_us, computes_us = 22_000, 4000
    expected_us = waits_us + computes_us * 0.37 - 3500
    assert finding.saving.expected_ns == pytest.approx(3 * us(1) * expected_us, rel=1e-3)


def test_samples_that_change_at_random_keep_that_part() -> None:
    fits = machine(2, 2, dataset_bytes=47 << 20)
    (finding,) = find(LoaderInMainProcess, on_cpu(3000, 3900, fits, ["aten::rand"] * 64)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * us(1050)  # 0.35 of it
    assert finding.saving.low_ns == 0
    assert "at random" in finding.summary
