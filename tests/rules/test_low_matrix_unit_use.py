from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.xla.low_matrix_unit_use import LowMatrixUnitUse
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Device, KernelFamily

TRACE = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXXXXXYYYY|XXXXXXYYYY|
"""
DEVICE = "TPU v5 lite"  # 197 TFLOP/s in bfloat16 (Google Cloud, "TPU v5e")


def _legend(flop: float) -> dict[str, Any]:
    text = (
        "%fusion.1 = bf16[1024,1024]{1,0:T(8,128)(2,1)} fusion("
        "bf16[1024,1024]{1,0:T(8,128)(2,1)} %p0), kind=kOutput, calls=%fused_computation.1"
    )
    return {"X": xla_op("fusion.1", text, family=KernelFamily.MATMUL, flop=flop)}


def test_is_told_without_a_saving() -> None:
    # 10 ms at 197 TFLOP/s are 1.97 TFLOP: 197 GFLOP are a tenth of them, 788 GFLOP four.
    checked = check_rule(
        LowMatrixUnitUse,
        slow=_drawn(197e9),
        fixed=_drawn(788e9),
    )
    (finding,) = checked.findings
    assert (finding.saving, finding.severity) == (None, "low")
    assert finding.summary.startswith(
        "The matrix unit does 10.0 % of what it can, by the FLOP of its products;"
    )
    table = finding.evidence[0]
    assert isinstance(table, Table)
    # 394 GFLOP in 12 ms are 32.8 TFLOP/s, a sixth of the peak.
    assert table.rows[0][:3] == ("fusion.1", 2, 12_000_000)
    assert table.rows[0][4] == pytest.approx(1 / 6)


def _drawn(flop: float) -> Any:
    return draw(TRACE, legend=_legend(flop), device=DEVICE)


def test_counters_come_first() -> None:
    def counted(use: float | None, flop: float) -> Any:
        device = Device(0, DEVICE, "tpu", matrix_unit_use=use)
        return find(LowMatrixUnitUse, draw(TRACE, legend=_legend(flop), device=device))

    # Though the FLOP say a tenth, or nothing.
    assert counted(0.4, 197e9) == ()
    (finding,) = counted(0.05, float("nan"))
    assert finding.summary.startswith("The matrix unit does 5.0 % of what it can, by its counters;")
    assert len(counted(None, 197e9)) == 1


def test_unknown_is_not_idle() -> None:
    assert find(LowMatrixUnitUse, _drawn(float("nan"))) == ()


def test_a_program_of_other_work_is_left_alone() -> None:
    # Products take six of ten milliseconds.
    for least, count in ((0.59, 1), (0.61, 0)):
        settings = {"minimum_product_share": least}
        assert len(find(LowMatrixUnitUse, _drawn(197e9), settings=settings) or ()) == count


def test_just_below_and_just_above_the_limit() -> None:
    for most, count in ((0.11, 1), (0.09, 0)):
        found = find(LowMatrixUnitUse, _drawn(197e9), settings={"maximum_use": most})
        assert len(found or ()) == count
