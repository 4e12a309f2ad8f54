"""The compiler's answers in a report, from a compiler that answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import TableEvidence
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.extras import install_command
from tb_perfadvisor.testing import draw
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.tpu_compiler import Operation, compiler, estimates
from tb_perfadvisor.tpu_compiler.estimates import ShapeEstimate, ShapeEstimates
from tests.support.command import DEMO, error

SLOW = """
    cell 1ms
    step   |............|............|
    main   |LSSSSSSSSSSS|LSSSSSSSSSSS|
    tpu 0  |XXXXXXXXXXYY|XXXXXXXXXXYY|
"""
CONFIG = Config(select=("padded-shapes",))


def dot(contracted: int) -> dict[str, Any]:
    text = (
        f"%dot.1 = bf16[751616,2048]{{1,0:T(8,128)(2,1)}} dot("
        f"bf16[751616,{contracted}]{{1,0:T(8,128)(2,1)}} %x, "
        f"bf16[{contracted},2048]{{1,0:T(8,128)(2,1)}} %w), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    return {"X": xla_op("dot.1", text)}


def estimate(topology: str, operations: Sequence[Operation], **options: Any) -> ShapeEstimates:
    """Each product takes a nanosecond for each contracted term."""
    rows = (
        ShapeEstimate(str(o), 1.5 * o.sizes[1], float(o.sizes[1]), 1e9, 1_000, ())
        for o in operations
    )
    return ShapeEstimates(topology, "0.0.52", tuple(rows), ())


def test_the_finding_shows_what_the_compiler_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "estimate_shapes", estimate)
    report = analyze(draw(SLOW, legend=dot(520), device="TPU v5 lite"), CONFIG)
    (finding,) = estimates.with_answers(report, time_limit_s=1).findings
    # 512 of 520 terms.
    assert finding.summary.endswith(
        "Asked for product:751616x512x2048, XLA's compiler estimates 1.5 % less time."
    )
    table = finding.evidence[-1]
    assert isinstance(table, TableEvidence)
    assert "not measurements" in table.title
    assert [row[:2] for row in table.rows] == [
        ["product:751616x520x2048", 520],
        ["product:751616x512x2048", 512],
    ]


def test_nothing_is_asked_where_no_size_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "estimate_shapes", None)
    report = analyze(draw(SLOW, legend=dot(40), device="TPU v5 lite"), CONFIG)
    assert [finding.saving for finding in report.findings] == [None]
    assert estimates.with_answers(report, time_limit_s=1) == report


def test_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "tpu_compiler_versions", lambda: None)
    monkeypatch.setattr(estimates, "_question", lambda finding: ("8x8x8,16", "v5e"))
    path = DEMO / "synthetic_tpu_padded"
    assert install_command("tpu") in error("analyze", path, "--ask-tpu-compiler")
