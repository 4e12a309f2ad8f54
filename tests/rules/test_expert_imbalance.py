from __future__ import annotations

from tb_perfadvisor.rules.communication.imbalance import ExpertImbalance, Straggler
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import check_rule, draw, find, ms, run_of
from tb_perfadvisor.testing.symbols import Symbol, collective, operator
from tb_perfadvisor.trace import Run
from tests.support.changed_rule import changed

# Tokens go out (A), are processed, and come back: one of four ranks sends five of the eight parts
# (E), the others one each (B). The mean is two.
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
    # The recorded size is the larger of what is sent and what is received.
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


def test_exchanges_of_embeddings_are_no_exchanges_of_tokens() -> None:
    def with_launcher(name: str) -> Run:
        legend = {
            "A": exchange(2_000_000),
            "B": exchange(1_000_000),
            "E": exchange(5_000_000),
            "o": operator(name),
        }
        texts = (COLD, COLD, HOT, COLD)
        return run_of(
            *(
                draw(text, legend=legend, rank=rank, world_size=4, backend="nccl")
                for rank, text in enumerate(texts)
            )
        )

    assert find(ExpertImbalance, with_launcher("MoELayer"))
    assert find(ExpertImbalance, with_launcher("All2All_Pooled_Req")) == ()


def slow(hot: int = 5_000_000, cold: int = 1_000_000) -> Run:
    return run(COLD, COLD, HOT, COLD, hot=hot, cold=cold)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(ExpertImbalance, slow=slow(), fixed=run(*[EVEN] * 4), saves="3ms")
    (finding,) = checked.findings
    assert finding.ranks == (2,)
    assert finding.summary == (
        "3.00 ms of each step (37.5 %) is spent waiting for the rank with the most tokens, which"
        " has 2.5 times the mean in 2 of 4 all-to-alls."
    )
    # Three ranks wait 4 ms per step, one does not: the mean over four is 3 ms, over three 4 ms.
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (ms(3), ms(8))


def test_other_ranks_claim_their_waiting() -> None:
    (finding,) = ExpertImbalance().check(Signals(slow(), 0))
    assert finding.saving is not None
    assert finding.saving.expected_ns == ms(6)
    # The third to the eighth millisecond of each step, in which only the exchange runs.
    assert finding.saving.claims.tolist() == [[ms(3), ms(8)], [ms(11), ms(16)]]


def test_table_shows_what_each_rank_sends() -> None:
    (finding,) = find(ExpertImbalance, slow()) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows[1:3] == (("1", 1_000_000, 0, ms(4)), ("2", 5_000_000, 2, 0))


def test_late_rank_with_an_equal_share_is_a_straggler() -> None:
    even = slow(2_000_000, 2_000_000)
    assert find(ExpertImbalance, even) == ()
    (finding,) = find(Straggler, even) or ()
    assert finding.ranks == (2,)


def test_fires_from_a_quarter_above_the_mean() -> None:
    # With a mean of 200, 250 is 1.25 times the mean: 250 + 3 x cold = 800.
    at, below = (2_500_000, 1_833_333), (2_490_000, 1_836_667)
    assert len(find(ExpertImbalance, slow(*at)) or ()) == 1
    assert find(ExpertImbalance, slow(*below)) == ()


def test_too_few_all_to_alls_are_not_reported() -> None:
    assert find(changed(ExpertImbalance, {"minimum_count": 3}), slow()) == ()


def test_missing_sizes_or_ranks_yield_no_finding() -> None:
    assert find(ExpertImbalance, slow(-1, -1)) is not None  # the first exchange has sizes
    assert find(ExpertImbalance, slow(-1, -1)) == ()
    assert find(ExpertImbalance, run_of(*slow().traces[:3])) is None


def test_a_changing_busiest_rank_is_not_a_straggler() -> None:
    """Each of four ranks is the busiest in one of four steps."""

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
