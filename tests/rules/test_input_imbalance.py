from __future__ import annotations

from tb_perfadvisor.rules.input.stalls import InputImbalance
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.trace import Run

ON_TIME = """
    cell 1ms
    step   |..........|..........|
    main   |Do'SSSSSSS|Do'SSSSSSS|
    gpu 7  |.KKK......|.KKK......|
    gpu 13 |....NNNNNN|....NNNNNN|
"""
LATE = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDDo'SSS|DDDDDo'SSS|
    gpu 7  |.....KKK..|.....KKK..|
    gpu 13 |........NN|........NN|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |Do'SSS|Do'SSS|
    gpu 7  |.KKK..|.KKK..|
    gpu 13 |....NN|....NN|
"""


def run(late: str = LATE, on_time: str = ON_TIME) -> Run:
    return run_of(
        *(
            draw(late if rank == 2 else on_time, rank=rank, world_size=4, backend="nccl")
            for rank in range(4)
        )
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(InputImbalance, slow=run(), fixed=run(FIXED, FIXED), saves="4ms")
    (finding,) = checked.findings
    assert finding.ranks == (2,)
    assert finding.summary == (
        "Rank 2 waits 5.00 ms of each step for input, and the other ranks wait for it; the median"
        " of the ranks that are on time is 1.00 ms."
    )


def test_a_rank_that_is_late_for_another_reason_is_left_alone() -> None:
    late = LATE.replace("DDDDDo", "D....o")
    assert find(InputImbalance, run(late)) == ()
