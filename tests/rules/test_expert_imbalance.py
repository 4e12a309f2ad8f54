from __future__ import annotations

from tb_perfadvisor.rules.communication.expert_imbalance import ExpertImbalance
from tb_perfadvisor.rules.communication.straggler import Straggler
from tb_perfadvisor.rules.evidence.evidence import Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import check_rule, draw, find, ms, run_of
from tb_perfadvisor.testing.symbols import Symbol, collective
from tb_perfadvisor.trace import Run

# Tokens go out (A), are computed, and come back: from one rank of four five of the eight parts
# (E), from the others one each (B). The mean is two.
HOT = """
    cell 1ms
    step   |........|........|
    main   |o'SSSSSS|o'SSSSSS|
    gpu 7  |K.KKKKK.|K.KKKKK.|
    gpu 13 |.A.....E|.A.....E|
"""
COLD = """
    cell 1ms
    step   |........|........|
    main   |o'SSSSSS|o'SSSSSS|
    gpu 7  |K.K.....|K.K.....|
    gpu 13 |.A.BBBBB|.A.BBBBB|
"""
EVEN = """
    cell 1ms
    step   |.....|.....|
    main   |o'SSS|o'SSS|
    gpu 7  |K.KK.|K.KK.|
    gpu 13 |.A..A|.A..A|
"""
NAME = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def exchange(sent: int) -> Symbol:
    # What a rank gets it does not say: the larger of both is the size.
    size = {"size_bytes": max(sent, 2_000_000), "sent_bytes": sent} if sent >= 0 else {}
    return collective(NAME, "all-to-all", group_size=4, **size)


def run(*texts: str, hot: int = 5_000_000, cold: int = 1_000_000) -> Run:
    legend = {"A": exchange(2_000_000), "B": exchange(cold), "E": exchange(hot)}
    return run_of(
        *(
            draw(text, legend=legend, rank=rank, world_size=4, backend="nccl")
            for rank, text in enumerate(texts)
        )
    )


def slow(hot: int = 5_000_000, cold: int = 1_000_000) -> Run:
    return run(COLD, COLD, HOT, COLD, hot=hot, cold=cold)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(ExpertImbalance, slow=slow(), fixed=run(*[EVEN] * 4), saves="3ms")
    (finding,) = checked.findings
    assert finding.ranks == (2,)
    assert finding.summary == (
        "3.00 ms of each step (37.5 %) is waiting for the rank with the most tokens, which has"
        " 2.5 times the mean in 2 of 4 all-to-alls."
    )
    # Three wait for 4 ms a step, one does not: 3 ms of four ranks; 4 ms of those three.
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (ms(3), ms(8))


def test_of_the_others_their_waiting_is_claimed() -> None:
    (finding,) = ExpertImbalance().check(Signals(slow(), 0))
    assert finding.saving is not None
    assert finding.saving.expected_ns == ms(6)
    # From the third to the eighth millisecond of each step, where nothing but the exchange runs.
    assert finding.saving.claims.tolist() == [[ms(3), ms(8)], [ms(11), ms(16)]]


def test_shows_what_each_rank_put_in() -> None:
    (finding,) = find(ExpertImbalance, slow()) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows[1:3] == (("1", 1_000_000, 0, ms(4)), ("2", 5_000_000, 2, 0))


def test_who_is_late_with_no_more_than_the_others_is_a_straggler() -> None:
    even = slow(2_000_000, 2_000_000)
    assert find(ExpertImbalance, even) == ()
    (finding,) = find(Straggler, even) or ()
    assert finding.ranks == (2,)


def test_just_below_and_just_above_what_is_uneven() -> None:
    # 250 of 200 on average is 1.25 times the mean: 250 + 3 x cold = 800.
    at, below = (2_500_000, 1_833_333), (2_490_000, 1_836_667)
    assert len(find(ExpertImbalance, slow(*at)) or ()) == 1
    assert find(ExpertImbalance, slow(*below)) == ()


def test_a_table_exchanged_once_may_be_anything() -> None:
    assert find(ExpertImbalance, slow(), settings={"minimum_count": 3}) == ()


def test_without_sizes_or_ranks_nobody_is_blamed() -> None:
    assert find(ExpertImbalance, slow(-1, -1)) is not None  # those of the way out are known
    assert find(ExpertImbalance, slow(-1, -1)) == ()
    assert find(ExpertImbalance, run_of(*slow().traces[:3])) is None


def test_a_busiest_rank_that_changes_is_no_straggler() -> None:
    """Of four steps each rank is the busiest in one."""

    def turns(rank: int) -> str:
        hot, cold = ("K.KKKKK.", ".A.....E"), ("K.K.....", ".A.BBBBB")
        lanes = zip(*(hot if step == rank else cold for step in range(4)), strict=True)
        gpu, wire = ("|".join(lane) for lane in lanes)
        blank, main = "|".join(["........"] * 4), "|".join(["o'SSSSSS"] * 4)
        rows = {"step  ": blank, "main  ": main, "gpu 7 ": gpu, "gpu 13": wire}
        return "cell 1ms\n" + "\n".join(f"{lane} |{cells}|" for lane, cells in rows.items())

    traces = run(*map(turns, range(4)))
    assert find(Straggler, traces) == ()
    (finding,) = find(ExpertImbalance, traces) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 4 * ms(3)
    assert finding.ranks == (0, 1, 2, 3)
