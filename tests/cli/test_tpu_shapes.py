"""`perfadvisor tpu-shapes`, with a compiler that answers at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from tb_perfadvisor.cli import app
from tb_perfadvisor.tpu_compiler import (
    CompiledProgram,
    Generation,
    Kernel,
    Operation,
    Refused,
    estimates,
)
from tests.support.command import error


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_for_tpu(
        generation: Generation, operations: Sequence[Operation], **options: Any
    ) -> list[CompiledProgram | Refused]:
        return [_program(generation, operation) for operation in operations]

    monkeypatch.setattr(estimates, "compile_for_tpu", compile_for_tpu)


def _program(generation: Generation, operation: Operation) -> CompiledProgram | Refused:
    """A product with a cycle for each column; none has more than a thousand."""
    columns = operation.sizes[-1]
    if columns > 1000:
        return Refused("out of memory")
    cycles = 1_000.0 * columns
    kernel = Kernel("fusion", "fusion", "", 1, cycles, None, None, 2e9, 1_000, False)
    return CompiledProgram(generation.name, "0.10.2", "0.0.52", (kernel,), "", b"", {})


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["tpu-shapes", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_shapes_are_compared_with_the_first() -> None:
    text = invoke("8192x4096x128,130")
    assert "TPU v5e, estimated by XLA (libtpu 0.0.52)" in text
    assert "not measurements" in text
    # 130,000 cycles at 1.503 GHz.
    (row,) = [line for line in text.splitlines() if "x130" in line]
    assert row.split()[:4] == ["product:8192x4096x130", "86.5", "µs", "+1.6%"]


def test_json_has_every_topology() -> None:
    found = json.loads(
        invoke("8x8x100", "--topology", "v5e", "--topology", "v6e:2x2", "--format", "json")
    )
    assert [part["generation"] for part in found] == ["v5e", "v6e"]
    assert found[0]["shapes"][0]["cycles"] == 100_000
    assert "not measurements" in found[0]["basis"]


def test_what_cannot_be_compiled_is_noted() -> None:
    done = CliRunner().invoke(app, ["tpu-shapes", "8x8x100,2000", "--format", "markdown"])
    assert "| product:8x8x100 |" in done.stdout
    assert "product:8x8x2000 on v5e: out of memory" in done.stderr


def test_mistakes_end_in_one_line() -> None:
    assert "no TPU generation called 'v9'" in error("tpu-shapes", "8x8x8", "--topology", "v9")
    sizes = ",".join(map(str, range(1, 100)))
    assert "99 shapes are too many" in error("tpu-shapes", f"8x8x{sizes}")
