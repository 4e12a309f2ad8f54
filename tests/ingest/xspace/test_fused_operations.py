"""What is inside fusions, from programs written as libtpu 0.0.52 compiles them for a TPU v5e."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.ingest.xspace.interpret import tpu_planes
from tb_perfadvisor.trace import Precision, Trace
from tests.support.hlo_programs import BF16, F32, instruction, shaped
from tests.support.xspaces import Drawing

PRED, S32 = 1, 6
HIGHEST = 2


class Program:
    """A program with the fusion `%fusion.1`, whose body is drawn operation by operation."""

    def __init__(self) -> None:
        self._proto = HloProto()
        self._body = self._proto.hlo_module.computations.add(id=1)
        entry = self._proto.hlo_module.computations.add(id=2)
        fusion = instruction(entry, 1, "fusion.1", "fusion", fusion_kind="kOutput")
        fusion.called_computation_ids.append(1)
        self._next = 10

    def add(
        self, opcode: str, type_: int, *sizes: int, reads: tuple[Any, ...] = (), path: str = ""
    ) -> Any:
        self._next += 1
        added = instruction(self._body, self._next, f"{opcode}.{self._next}", opcode)
        shaped(added, type_, *sizes)
        added.operand_ids.extend(operand.id for operand in reads)
        added.metadata.op_name = path.encode()
        return added

    def nested(self, root: Any, *others: Any) -> Any:
        """Move operations into a fusion inside the fusion; the root computes its result."""
        number = len(self._proto.hlo_module.computations) + 1
        inner = self._proto.hlo_module.computations.add(id=number, root_id=root.id)
        for operation in (*others, root):
            inner.instructions.add().CopyFrom(operation)
        for operation in (*others, root):
            self._body.instructions.remove(operation)
        found = self.add("fusion", root.shape.element_type, *root.shape.dimensions)
        found.called_computation_ids.append(number)
        return found

    def product(self, left: Any, right: Any, *sizes: int, type_: int = BF16, path: str = "") -> Any:
        added = self.add("convolution", type_, *sizes, reads=(left, right), path=path)
        dims = added.convolution_dimensions
        dims.input_feature, dims.kernel_output_feature, dims.output_feature = 1, 1, 1
        return added

    def read(self, *, share: float = 1.0, category: str = "convolution fusion") -> Trace:
        """Read a profile in which the fusion takes a share of the time."""
        drawing = Drawing()
        metadata = drawing.plane("/host:metadata")
        metadata.stat_metadata[1].id, metadata.stat_metadata[1].name = 1, "Hlo Proto"
        kind = metadata.event_metadata[1]
        kind.id, kind.name = 1, "jit_f(77)"
        kind.stats.add(metadata_id=1, bytes_value=self._proto.SerializeToString())
        tpu = drawing.plane("/device:TPU:0", device_type_string="TPU v5e")
        drawing.event(tpu, drawing.line(tpu, "XLA Modules"), "jit_f(77)", 0, 1_000_000)
        line = drawing.line(tpu, "XLA Ops")
        lasts = round(1_000_000 * share)
        for name, text, at, duration in (
            (
                "fusion.1",
                "%fusion.1 = bf16[16,8]{1,0} fusion(f32[16,32]{1,0} %a, f32[32,8]{1,0} %b), "
                "kind=kOutput",
                0,
                lasts,
            ),
            ("add.1", "%add.1 = f32[8]{0} add(f32[8]{0} %a)", lasts, 1_000_000 - lasts),
        ):
            shared = {"hlo_category": category, "program_id": 77}
            drawing.event(tpu, line, text, at, duration, display=name, shared=shared)
        return drawing.read()


def column(trace: Trace, name: str) -> Any:
    """A column of the HLO table for the fusion; strings as text."""
    row = [trace.text(int(index)) for index in trace.hlo.name].index("fusion.1")
    value = getattr(trace.hlo, name)[row]
    return int(value) if name == "inside_elements" else trace.text(int(value))


def precision(trace: Trace) -> Precision:
    """The precision of the fusion's execution."""
    row = next(row for row in trace.kernels.row if trace.name(int(row)) == "fusion.1")
    return Precision(int(trace.kernels.precision[trace.kernels.row == row][0]))


def test_what_is_inside_a_fusion_in_a_fusion() -> None:
    program = Program()
    table = program.add("parameter", BF16, 32, 8)
    indices = program.add("parameter", S32, 16)
    repeated = program.add("broadcast", S32, 16, 32, reads=(indices,))
    positions = program.add("iota", S32, 16, 32)
    path = "jit(f)/jit(_one_hot)/eq"
    equal = program.add("compare", PRED, 16, 32, reads=(repeated, positions), path=path)
    equal.comparison_direction = b"EQ"
    hot = program.nested(equal, indices, repeated, positions)
    cast = program.add("convert", BF16, 16, 32, reads=(hot,))
    program.product(cast, table, 16, 8, path="jit(f)/dot_general")
    trace = program.read()
    assert column(trace, "inside_opcodes") == "broadcast compare convert convolution fusion iota"
    assert set(column(trace, "inside_paths").split("\n")) == {
        "jit(f)/jit(_one_hot)/eq",
        "jit(f)/dot_general",
    }
    assert column(trace, "inside_elements") == 16 * 32
    assert column(trace, "product") == (
        "%convolution.18 = bf16[16,8]{1,0} convolution(bf16[16,32]{1,0} %convert.17, "
        "bf16[32,8]{1,0} %parameter.11), dim_labels=bf_io->bf, "
        'metadata={op_name="jit(f)/dot_general"}'
    )


def product_of_floats(program: Program, operand_precision: int = 0) -> None:
    factors = program.add("parameter", F32, 16, 32), program.add("parameter", F32, 32, 8)
    product = program.product(*factors, 16, 8, type_=F32)
    if operand_precision:
        product.precision_config.operand_precision.extend([operand_precision] * 2)


def test_by_default_a_tpu_multiplies_floats_in_one_pass_of_bfloat16() -> None:
    program = Program()
    product_of_floats(program)
    assert precision(program.read()) == Precision.BITS_16


def test_the_highest_precision_is_32_bits() -> None:
    program = Program()
    product_of_floats(program, HIGHEST)
    trace = program.read()
    assert precision(trace) == Precision.BITS_32
    assert "operand_precision={highest,highest}" in column(trace, "product")


def test_a_fused_product_of_floats_without_its_program_is_unknown() -> None:
    program = Program()
    assert precision(program.read()) == Precision.UNKNOWN


def test_groups_show_in_the_window() -> None:
    program = Program()
    left, right = program.add("parameter", BF16, 4, 8, 2), program.add("parameter", BF16, 2, 8, 2)
    product = program.product(left, right, 4, 8, 2)
    dims = product.convolution_dimensions
    dims.input_feature, dims.kernel_output_feature, dims.output_feature = 2, 2, 2
    dims.input_spatial.append(1), dims.kernel_spatial.append(1), dims.output_spatial.append(1)
    product.window.dimensions.add(size=8, stride=7, base_dilation=8)
    assert column(program.read(), "product").endswith(
        "window={size=8 stride=7 lhs_dilate=8}, dim_labels=b0f_i0o->b0f"
    )


def test_only_costly_fusions_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    product_of_floats(program)
    # Three operations in a thousand are beyond 99 %.
    assert column(program.read(share=0.003), "product") == ""
    assert column(program.read(share=0.3), "product")
    monkeypatch.setattr(tpu_planes, "_MAX_INSPECTED", 0)
    assert column(program.read(), "product") == ""
