"""The TPU compiler itself, where libtpu is installed; no TPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.tpu_compiler import (
    GENERATIONS,
    CompiledProgram,
    Operation,
    Source,
    compile_for_tpu,
)

pytestmark = pytest.mark.frameworks
pytest.importorskip("libtpu", reason="asks XLA's TPU compiler: pip install '.[tpu]'")

PROGRAM = """
import jax, jax.numpy as jnp

def program(devices):
    step = lambda x, w: jax.nn.gelu(x @ w)
    return step, (jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16),
                  jax.ShapeDtypeStruct((512, 2048), jnp.bfloat16))
"""


def test_kernels_of_products_and_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path))
    asked = [Operation("product", (1024, 512, 2048)), Source(PROGRAM), Operation("product", (8, 8))]
    product, program, refused = compile_for_tpu(GENERATIONS["v5e"], asked)
    assert isinstance(product, CompiledProgram)
    flop = 2 * 1024 * 512 * 2048
    assert sum(kernel.flop for kernel in product.kernels) == flop
    # Between the peak of the matrix units, 131,072 FLOP per cycle, and a third of it.
    assert 1 <= product.cycles / (flop / 131_072) <= 3
    assert any(kernel.bundle_cycles for kernel in product.kernels)
    assert isinstance(program, CompiledProgram)
    assert sum(kernel.flop for kernel in program.kernels) == flop
    assert ":T(8,128)(2,1)" in program.hlo_text
    assert len(program.hlo_proto) > 1_000
    assert "TypeError" in getattr(refused, "reason", "")
