from __future__ import annotations

from tb_perfadvisor.rules.communication.redundancy import RedundantAllReduce
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import Run

# Two micro-batches, each with forward (f), compute and reduction; then the optimizer (z).
SLOW = """
    cell 1ms
    step   |..............|..............|
    main   |fo'...fo'....z|fo'...fo'....z|
    gpu 7  |.KKK...KKK....|.KKK...KKK....|
    gpu 13 |....NNN...NNN.|....NNN...NNN.|
"""
FIXED = """
    cell 1ms
    step   |...........|...........|
    main   |fo'fo'....z|fo'fo'....z|
    gpu 7  |.KKKKKK....|.KKKKKK....|
    gpu 13 |.......NNN.|.......NNN.|
"""
LEGEND = {"f": host("DistributedDataParallel.forward")}


def two_ranks(text: str) -> Run:
    return run_of(
        *(draw(text, legend=LEGEND, rank=rank, world_size=2, backend="nccl") for rank in (0, 1))
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        RedundantAllReduce, slow=two_ranks(SLOW), fixed=two_ranks(FIXED), saves="3ms"
    )
    (finding,) = checked.findings
    assert finding.summary == (
        "Gradients are reduced 2 times per optimizer step: 1 of 2 all-reduces per step are"
        " redundant, because the next one overwrites their result. They cost up to 3.00 ms of each"
        " step (21.4 %)."
    )


def test_programs_without_ddp_annotations_pass() -> None:
    assert find(RedundantAllReduce, two_ranks(SLOW.replace("f", "."))) == ()


def test_unequal_rounds_pass() -> None:
    unequal = SLOW.replace("gpu 13 |....NNN...NNN.|", "gpu 13 |....N.N...NNN.|")
    assert find(RedundantAllReduce, two_ranks(unequal)) == ()
