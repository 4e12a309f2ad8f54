from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze, load
from tb_perfadvisor.advice import advise
from tb_perfadvisor.engine.analyze import run_rule
from tb_perfadvisor.rules.communication.imbalance import OWN_CORES, Straggler
from tb_perfadvisor.rules.communication.transfers import LongAllReduce
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.signals import Cause, Options, ranks_of, reference_worker
from tb_perfadvisor.signals.ranks.stragglers import excess_by_cause, lateness
from tb_perfadvisor.testing import check_rule, draw, find, host, ms, run_of
from tb_perfadvisor.testing.symbols import operator
from tb_perfadvisor.trace import EventKind, Run, Trace
from tests.support.corpus_traces import CORPUS

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"

# All ranks leave the collective together; its transfer takes two cells. The hosts of late ranks
# do something else for five cells first.
ON_TIME = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKK.......|KKK.......|
    gpu 13 |...NNNNNNN|...NNNNNNN|
"""
LATE = """
    cell 1ms
    step   |..........|..........|
    main   |.....o'SSS|.....o'SSS|
    gpu 7  |.....KKK..|.....KKK..|
    gpu 13 |........NN|........NN|
"""
FIXED = """
    cell 1ms
    step   |.....|.....|
    main   |o'SSS|o'SSS|
    gpu 7  |KKK..|KKK..|
    gpu 13 |...NN|...NN|
"""


def run(late: tuple[int, ...], world_size: int = 8, text: str = ON_TIME) -> Run:
    return run_of(
        *(
            draw(LATE if rank in late else text, rank=rank, world_size=world_size, backend="nccl")
            for rank in range(world_size)
        )
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(Straggler, slow=run((0, 6)), fixed=run((), text=FIXED), saves="5ms")
    (finding,) = checked.findings
    assert finding.ranks == (0, 6)
    assert finding.summary.startswith(
        "Ranks 0 and 6 are late in 2 of 2 collectives, which costs 5.00 ms of each step, mostly"
    )
    assert (
        finding.title == "Speed up ranks 0 and 6: waiting for late ranks takes 50.0 % of each step"
    )


# In each step, one view of the late rank takes 2.5 ms instead of 0.1.
STALLED = """
    cell 100us
    step   |....................................|
    main   |w.w.w.o.wwwwwwwwwwwwwwwwwwwwwwwwwo..|
    gpu 7  |......KK.........................K..|
    gpu 13 |..................................NN|
"""
WAITING = """
    cell 100us
    step   |....................................|
    main   |w.w.w.o.wo..........................|
    gpu 7  |......KK.K..........................|
    gpu 13 |..........NNNNNNNNNNNNNNNNNNNNNNNNNN|
"""


def test_says_that_the_late_rank_lost_its_cores() -> None:
    def four_steps(text: str) -> str:
        lines = (line.partition("|") for line in text.strip("\n").splitlines())
        return "\n".join(f"{name}{bar}{row * 4}" for name, bar, row in lines)

    legend = {"w": operator("aten::view", launches=False)}
    traces = [
        draw(four_steps(text), legend=legend, rank=rank, world_size=2, backend="nccl")
        for rank, text in enumerate((WAITING, STALLED))
    ]
    (finding,) = find(Straggler, run_of(*traces)) or ()
    # 2.4 of 3.6 ms.
    assert finding.title == "Speed up rank 1: waiting for late ranks takes 66.7 % of each step"
    # The view takes 2.4 ms longer than usual.
    assert finding.summary.endswith(
        "mostly because the operating system took the core from the launching thread"
        " (2.40 ms more idle time per step)."
    )
    assert finding.remedies == advise(*OWN_CORES)
    tables = {item.title: item for item in finding.evidence}
    table = tables["Idle while the launching thread had no core"]
    assert isinstance(table, Table)
    assert table.rows == (("rank 1", 2_400_000), ("rank 0", 0))


# The late rank's operator takes six cells, or it runs one more before it.
SLOWER = """
    cell 1ms
    step   |..........|..........|
    main   |ooooooo'SS|ooooooo'SS|
    gpu 7  |.....KKK..|.....KKK..|
    gpu 13 |........NN|........NN|
"""
BUSIER = """
    cell 1ms
    step   |..........|..........|
    main   |OOOOOo'SSS|OOOOOo'SSS|
    gpu 7  |.....KKK..|.....KKK..|
    gpu 13 |........NN|........NN|
"""


@pytest.mark.parametrize(("late", "is_same"), [(SLOWER, True), (BUSIER, False)])
def test_a_rank_that_runs_as_many_operators_needs_cores(late: str, *, is_same: bool) -> None:
    drawn = [
        draw(text, rank=rank, world_size=3, backend="nccl")
        for rank, text in enumerate((late, ON_TIME, ON_TIME))
    ]
    (finding,) = find(Straggler, run_of(*drawn)) or ()
    assert ("it runs as many operators as the others" in finding.summary) is is_same
    changes = tuple(dict.fromkeys(remedy.change for remedy in finding.remedies))
    assert changes == (OWN_CORES if is_same else ("same-work",))


def test_inference_is_not_told_to_log_less() -> None:
    late = run((1,), world_size=2)
    (finding,) = run_rule(Straggler(), reference_worker(late)).findings
    assert finding.remedies
    assert not any("loss" in remedy.snippet for remedy in finding.remedies)


def test_waiting_is_not_a_long_all_reduce() -> None:
    options = Options(parameters=50_000_000, link_bandwidth_bytes_per_s=200e9)
    # 200 MB x 2 x 7/8 at 200 GB/s take 1.75 ms; the transfer takes 2 ms, the other ranks' 7 ms.
    assert find(LongAllReduce, run((0, 6)), options=options) == ()


def test_two_ranks_are_compared_with_each_other() -> None:
    (finding,) = find(Straggler, run((1,), world_size=2)) or ()
    assert finding.ranks == (1,)
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * ms(5)


def test_ranks_that_take_turns_are_not_stragglers() -> None:
    """Rank 0 is late in the first step, rank 1 in the second, and so on."""

    def mixed(first: str, second: str) -> str:
        before, after = (
            [line.split("|") for line in text.strip("\n").splitlines()] for text in (first, second)
        )
        rows = [
            a if len(a) < 3 else [a[0], a[1], b[2], ""] for a, b in zip(before, after, strict=True)
        ]
        return "\n".join("|".join(row) for row in rows)

    traces = [
        draw(text, rank=rank, world_size=2, backend="nccl")
        for rank, text in enumerate((mixed(LATE, ON_TIME), mixed(ON_TIME, LATE)))
    ]
    assert find(Straggler, run_of(*traces)) == ()


@pytest.mark.parametrize(
    ("late_cells", "fires"), [((5, 4, 5, 6, 5), True), ((5, 0, 9, 0, 4), False)]
)
def test_lateness_must_exceed_its_variation(late_cells: tuple[int, ...], *, fires: bool) -> None:
    # The means are 5 and 3.6 ms. At the 5 % level, a mean of five must exceed 2.13 standard errors:
    # 0.67 and 3.62 ms. In the second case, the rank is still late in three of five steps.
    steps = "|".join("." * 20 for _ in late_cells)

    def rank(number: int) -> Trace:
        compute, wait = [], []
        for cells in late_cells:
            busy = 3 + (cells if number == 1 else 0)
            compute.append("K" * busy + "." * (20 - busy))
            wait.append("." * busy + "N" * (5 + cells - busy + 3) + "." * (20 - 8 - cells))
        return draw(
            f"""
            cell 1ms
            step   |{steps}|
            main   |{"|".join("o'SSSSSSSSSSSSSSSSSS" for _ in late_cells)}|
            gpu 7  |{"|".join(compute)}|
            gpu 13 |{"|".join(wait)}|
            """,
            rank=number,
            world_size=2,
            backend="nccl",
        )

    delays = lateness(reference_worker(run_of(rank(0), rank(1))))
    assert delays is not None
    assert delays.times_late[1] == sum(cells > 0 for cells in late_cells)
    assert delays.late == ((1,) if fires else ())


@pytest.mark.parametrize(("name", "late"), [("straggler", (1,)), ("balanced", ())])
def test_finds_a_straggler_on_shared_cores(name: str, late: tuple[int, ...]) -> None:
    """Two ranks on two busy cores. In one recording, rank 1 writes a log for 60 ms per step.

    In one of five steps, rank 0 computed so long that it still arrived last.
    """
    (run,) = load(DEMO_LOGS / f"pytorch_ddp_{name}")
    signals = reference_worker(run)
    delays = lateness(signals)
    assert delays is not None
    assert delays.late == late
    if late:
        assert delays.times_late.tolist() == [1, 4]
        first = excess_by_cause(ranks_of(signals), 1, late)[0]
        assert first.cause is Cause.BETWEEN_STEPS
        # The recording script sleeps for 60 ms.
        assert ms(60) < first.own_ns - first.others_ns < ms(62)


def test_missing_ranks_hide_only_themselves() -> None:
    whole = run((0, 6))
    assert find(Straggler, run_of(whole.traces[0])) is None
    (finding,) = find(Straggler, run_of(*whole.traces[:6])) or ()
    assert finding.ranks == (0,)
    assert finding.summary.startswith("Rank 0 is late in 2 of 2 collectives, which costs 5.00 ms")


# Rank 1 is late by five cells. But in two of three steps a missing rank is later still: even rank 1
# waits five cells then, before the two that the transfer takes.
FIRST_OF_THREE = """
    cell 1ms
    step   |...............|...............|...............|
    main   |o'.............|o'.............|o'.............|
    gpu 7  |KKK............|KKK............|KKK............|
    gpu 13 |...NNNNNNN.....|...NNNNNNNNNNNN|...NNNNNNNNNNNN|
"""
SECOND_OF_THREE = """
    cell 1ms
    step   |...............|...............|...............|
    main   |.....o'........|.....o'........|.....o'........|
    gpu 7  |.....KKK.......|.....KKK.......|.....KKK.......|
    gpu 13 |........NN.....|........NNNNNNN|........NNNNNNN|
"""


def test_nobody_is_blamed_for_a_missing_rank() -> None:
    both = [
        draw(text, rank=rank, world_size=3, backend="nccl")
        for rank, text in enumerate((FIRST_OF_THREE, SECOND_OF_THREE))
    ]
    assert find(Straggler, run_of(*both)) == ()
    # Were they the only ranks, the other one would wait for rank 1 in each step.
    alone = [
        draw(text, rank=rank, world_size=2, backend="nccl")
        for rank, text in enumerate((FIRST_OF_THREE, SECOND_OF_THREE))
    ]
    (finding,) = find(Straggler, run_of(*alone)) or ()
    assert finding.ranks == (1,)


def uneven(rows: int, cells: int, longest: int, device: str, rank: int, *, shapes: bool) -> Trace:
    """A rank whose product takes some cells, of a step whose longest takes `longest` cells."""
    wait, end = "." * cells, longest + 2
    shape = {"shapes": f"[[{rows},1024],[1024,1024]]", "dtypes": "float;float"} if shapes else {}
    product = operator("aten::mm", **shape)
    compute = "P" * cells + "." * (end - cells)
    reduce = wait + "N" * (end - cells)
    lanes = {
        "gpu": [f"main |P'{'S' * (end - 2)}|", f"gpu 7 |{compute.replace('P', 'K')}|"],
        "cpu": [f"main |{compute}|"],
    }[device]
    last = f"gpu 13 |{reduce}|" if device == "gpu" else f"gloo |{reduce.replace('N', 'C')}|"
    steps = f"step |{'.' * end}|"
    text = "\n".join(f"{lane}{lane.partition('|')[2]}" for lane in (steps, *lanes, last))
    return draw(
        f"cell 1ms\n{text}",
        rank=rank,
        world_size=2,
        backend="nccl" if device == "gpu" else "gloo",
        legend={"P": product},
    )


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_uneven_work_can_be_shared(device: str) -> None:
    """Six and two cells become four each: the late rank saves two, though the other waits four."""

    def two_ranks(*rows: int, shapes: bool = True) -> Run:
        cells = [count // 1024 for count in rows]
        return run_of(
            *(
                uneven(count, taken, max(cells), device, rank, shapes=shapes)
                for rank, (count, taken) in enumerate(zip(rows, cells, strict=True))
            )
        )

    slow, fixed = two_ranks(2048, 6144), two_ranks(4096, 4096)
    (finding,) = check_rule(Straggler, slow=slow, fixed=fixed, saves="2ms").findings
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (2 * ms(1), 2 * ms(4))
    assert finding.summary.startswith("Rank 1 is late in 2 of 2 collectives, which costs 4.00 ms")
    assert finding.summary.endswith(": it has 3.0 times the work of the others.")
    assert "evenly" in finding.remedies[0].text
    # Without shapes the reason is unknown: on shared cores, ranks may just take turns.
    unknown = find(Straggler, two_ranks(2048, 6144, shapes=False))
    assert bool(unknown) == (device == "gpu")
    if unknown:
        assert unknown[0].saving is not None
        assert unknown[0].saving.expected_ns == 2 * ms(4)


@pytest.mark.corpus
def test_only_the_recorded_straggler_is_found() -> None:
    """In one of two recordings, rank 1 sleeps 50 ms in each step (see its recording script)."""
    local = CORPUS / "local-torch2.13-cpu"
    first = analyze(local / "ddp_gloo_2rank_straggler").findings[0]
    assert (first.rule_id, first.scope.ranks) == ("straggler", [1])
    assert first.saving is not None
    assert ms(45) < first.saving.expected_ns < ms(55)
    balanced = analyze(local / "ddp_gloo_2rank")
    assert "straggler" not in {finding.rule_id for finding in balanced.findings}
    assert "straggler" in {o.rule_id for o in balanced.outcomes if o.status == "passed"}


def test_a_rank_that_loads_code_is_not_late_for_good() -> None:
    # Loading the code of kernels holds two ranks up for five cells.
    loading = LATE.replace("|.....o'SSS|.....o'SSS|", "|yyyyyo'SSS|yyyyyo'SSS|")
    legend = {"y": host("cuModuleLoadData", EventKind.RUNTIME)}
    ranks = [
        draw(
            loading if rank in (0, 6) else ON_TIME,
            rank=rank,
            world_size=8,
            backend="nccl",
            legend=legend,
        )
        for rank in range(8)
    ]
    signals = reference_worker(run_of(*ranks), Options())
    assert ranks_of(signals).summaries[0].once_ns > 0
    found = lateness(signals)
    assert found is not None
    assert found.late == ()


def test_a_rank_that_waits_for_input_longer_is_told_so() -> None:
    on_time = """
        cell 1ms
        step   |..........|..........|..........|
        main   |Do'SSSSSSS|Do'SSSSSSS|Do'SSSSSSS|
        gpu 7  |.KKK......|.KKK......|.KKK......|
        gpu 13 |....NNNNNN|....NNNNNN|....NNNNNN|
    """
    late = """
        cell 1ms
        step   |..........|..........|..........|
        main   |DDDDDo'SSS|DDDDDo'SSS|DDDDDo'SSS|
        gpu 7  |.....KKK..|.....KKK..|.....KKK..|
        gpu 13 |........NN|........NN|........NN|
    """
    ranks = (
        draw(late if rank == 2 else on_time, rank=rank, world_size=4, backend="nccl")
        for rank in range(4)
    )
    (finding,) = find(Straggler, run_of(*ranks)) or ()
    # Five cells of input in each step, where the others have one.
    assert "mostly because of waiting for input (4.00 ms more per step)" in finding.summary
    assert finding.ranks == (2,)
    assert finding.remedies[0].change == "even-input"
