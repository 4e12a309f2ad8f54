"""Ranks whose communication is hidden behind compute get no advice."""

from __future__ import annotations

from tb_perfadvisor import analyze
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.symbols import collective, kernel
from tb_perfadvisor.trace import KernelFamily, Precision

# The backward pass (D and E) sends gradients while it is still computing.
OVERLAPPED = """
    cell 100us
    step   |..................................................|..................................................|
    main   |oooooo...oooo.....................................|oooooo...oooo.....................................|
    gpu 7  |AAAAAAAAAAABBBBBBBBBBCCCCCCCCCCDDDDDDDDDEEEEEEEEEE|AAAAAAAAAAABBBBBBBBBBCCCCCCCCCCDDDDDDDDDEEEEEEEEEE|
    gpu 13 |..............................NNNNNNNNN.NNNNNNNNN.|..............................NNNNNNNNN.NNNNNNNNN.|
"""  # noqa: E501
_TILES = {"A": "64x64", "B": "128x64", "C": "64x128", "D": "128x128", "E": "256x64"}


def test_hidden_communication_has_no_findings() -> None:
    legend = {
        letter: kernel(
            f"ampere_fp16_s16816gemm_fp16_{tile}_ldg8_f2f_stages_64x3_nn",
            family=KernelFamily.MATMUL,
            precision=Precision.BITS_16,
            tensor_cores=1,
        )
        for letter, tile in _TILES.items()
    }
    legend["N"] = collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", group_size=8)
    ranks = (
        draw(OVERLAPPED, legend=legend, rank=rank, world_size=8, backend="nccl")
        for rank in range(8)
    )
    report = analyze(run_of(*ranks))
    assert [finding.rule_id for finding in report.findings] == []
    found = {outcome.rule_id: outcome.status for outcome in report.outcomes}
    assert found["exposed-communication"] == found["straggler"] == "passed"
    # 18 of 50 cells communicate, all of them during compute.
    assert report.overview.exposed_communication_share == 0
