from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.xla.utilization import LowMatrixUnitUse
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, ms
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Device, KernelFamily
from tests.support.tool_results import input_pipeline, overview, read, tensorflow_stats, tpu_step

TRACE = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXXXXXYYYY|XXXXXXYYYY|
"""
DEVICE = "TPU v5 lite"  # 197 TFLOP/s in bfloat16 (Google Cloud, "TPU v5e")


def legend_of(flop: float) -> dict[str, Any]:
    text = (
        "%fusion.1 = bf16[1024,1024]{1,0:T(8,128)(2,1)} fusion("
        "bf16[1024,1024]{1,0:T(8,128)(2,1)} %p0), kind=kOutput, calls=%fused_computation.1"
    )
    return {"X": xla_op("fusion.1", text, family=KernelFamily.MATMUL, flop=flop)}


def test_reports_low_use_without_a_saving() -> None:
    # 10 ms at 197 TFLOP/s are 1.97 TFLOP: 197 GFLOP are a tenth of that, 788 GFLOP four tenths.
    checked = check_rule(
        LowMatrixUnitUse,
        slow=drawn(197e9),
        fixed=drawn(788e9),
    )
    (finding,) = checked.findings
    assert (finding.saving, finding.severity) == (None, "low")
    assert finding.summary.startswith(
        "The matrix unit reaches 10.0 % of its peak, by the FLOPs of its products, although"
    )
    table = finding.evidence[0]
    assert isinstance(table, Table)
    # 394 GFLOP in 12 ms are 32.8 TFLOP/s, one sixth of the peak.
    assert table.rows[0][:3] == ("fusion.1", 2, 12_000_000)
    assert table.rows[0][4] == pytest.approx(1 / 6)


def drawn(flop: float) -> Any:
    return draw(TRACE, legend=legend_of(flop), device=DEVICE)


def test_counters_take_precedence() -> None:
    def counted(use: float | None, flop: float) -> Any:
        device = Device(0, DEVICE, "tpu", matrix_unit_use=use)
        return find(LowMatrixUnitUse, draw(TRACE, legend=legend_of(flop), device=device))

    # Although the FLOPs say a tenth, or nothing.
    assert counted(0.4, 197e9) == ()
    (finding,) = counted(0.05, float("nan"))
    assert finding.summary.startswith("The matrix unit reaches 5.0 % of its peak, by its counters,")
    assert len(counted(None, 197e9)) == 1


def test_unknown_flops_pass() -> None:
    assert find(LowMatrixUnitUse, drawn(float("nan"))) == ()


def test_programs_with_few_matrix_products_pass() -> None:
    # Matrix products take 6 of 10 ms.
    for least, count in ((0.59, 1), (0.61, 0)):
        settings = {"minimum_product_share": least}
        assert len(find(LowMatrixUnitUse, drawn(197e9), settings=settings) or ()) == count


def test_fires_only_below_the_limit() -> None:
    for most, count in ((0.11, 1), (0.09, 0)):
        findings = find(LowMatrixUnitUse, drawn(197e9), settings={"maximum_use": most})
        assert len(findings or ()) == count


@pytest.mark.parametrize(
    ("percent", "is_found"), [(4.1, True), (48.8, True), (59.9, True), (60.1, False)]
)
def test_use_that_a_recorder_states(percent: float, is_found: bool) -> None:
    pipeline = input_pipeline(tpu_step(0, compute=9.0, infeed=1.0), hardware="TPU")
    files = {
        "h.overview_page.pb": overview(pipeline, percent={1: percent}, device="TPU"),
        "h.tensorflow_stats.pb": tensorflow_stats(
            ("Device", "Conv2D", "a", 4, 60.0, 60.0), ("Device", "MaxPool", "b", 2, 40.0, 40.0)
        ),
    }
    findings = find(LowMatrixUnitUse, read(files))
    assert bool(findings) is is_found
    for finding in findings or ():
        assert (finding.saving, finding.severity) == (None, "low")
        # 60 of 100 us.
        assert finding.summary == (
            f"The matrix units reach {percent:.1f} % of their peak, as the profiler states for the"
            " whole recording. Products and convolutions take 60.0 % of the time of operators on"
            " the device."
        )
        assert "no multiples of 128" in finding.remedies[0].text
        table = finding.evidence[0]
        assert isinstance(table, Table)
        assert table.rows[0] == ("Conv2D", 4, 60_000, 15_000, 0.6)


def test_sums_that_state_no_use() -> None:
    pipeline = input_pipeline(tpu_step(0, compute=9.0), hardware="TPU")
    assert find(LowMatrixUnitUse, read({"h.input_pipeline.pb": pipeline})) is None


def test_executions_across_the_end_of_the_steps_count_only_inside() -> None:
    builder = TraceBuilder("jax").device(DEVICE, kind="tpu")
    symbol = legend_of(197e9)["X"]
    for number in range(2):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
    # The last execution begins 3 ms before the steps end, and takes 11.
    for start, end in ((0, 10), (10, 17), (17, 28)):
        builder.add(symbol, ms(start), ms(end), device=0)
    (finding,) = find(LowMatrixUnitUse, builder.build()) or ()
    # (2 + 3/11) x 197 GFLOP in 20 ms at 197 TFLOP/s: 11.4 %.
    assert finding.summary == (
        "The matrix unit reaches 11.4 % of its peak, by the FLOPs of its products, although matrix"
        " products take 100.0 % of the device's busy time."
    )
