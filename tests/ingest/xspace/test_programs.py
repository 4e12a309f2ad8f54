from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.xspace.interpret.hlo import programs
from tb_perfadvisor.trace import KernelFamily, Precision, Trace
from tests.support.hlo_programs import program
from tests.support.xspaces import Drawing, Reference


def read(proto: bytes, other: bytes = b"") -> Trace:
    drawing = Drawing()
    metadata = drawing.plane("/host:metadata")
    metadata.stat_metadata[1].id, metadata.stat_metadata[1].name = 1, "Hlo Proto"
    for id_, name, data in ((1, "jit_step(19)", proto), (2, "jit_other(7)", other)):
        kind = metadata.event_metadata[id_]
        kind.id, kind.name = id_, name
        kind.stats.add(metadata_id=1, bytes_value=data)
    gpu = drawing.plane("/device:GPU:0")
    stream = drawing.line(gpu, "Stream #2")
    for start, operation in ((0, "gemm_fusion_dot"), (10, "elsewhere")):
        drawing.event(
            gpu,
            stream,
            f"{operation}.kd",
            start,
            5,
            hlo_op=Reference(operation),
            hlo_module=Reference("jit_step"),
            program_id=19,
        )
    return drawing.read()


def test_kernel_gets_details_from_its_hlo_operation() -> None:
    trace = read(program())
    first = {trace.name(int(row)): slot for slot, row in enumerate(trace.kernels.row)}
    known = first["gemm_fusion_dot.kd"]
    assert trace.kernels.family[known] == KernelFamily.MATMUL
    assert trace.kernels.precision[known] == Precision.BITS_16  # by its inputs, not its result
    row = int(trace.hlo_events.op[0])
    assert trace.text(int(trace.hlo.text[row])) == (
        "%gemm_fusion_dot = f32[8,64]{1,0} fusion(bf16[8,32]{1,0} %a, bf16[32,64]{1,0} %b), "
        "kind=kCustom"
    )
    assert trace.text(int(trace.hlo.category[row])) == "convolution fusion"
    assert trace.text(int(trace.hlo.source_line[row])) == "train.py:37"


def test_an_operation_that_the_program_does_not_have_stays_unknown() -> None:
    trace = read(program())
    names = [trace.text(int(name)) for name in trace.hlo.name]
    row = names.index("elsewhere")
    assert trace.hlo.text[row] == -1
    assert trace.hlo.category[row] == -1


def test_a_broken_program_leaves_only_names() -> None:
    trace = read(b"\xff\xff\xff")
    assert [trace.text(int(name)) for name in trace.hlo.name] == ["gemm_fusion_dot", "elsewhere"]
    assert trace.kernels.precision.tolist() == [Precision.UNKNOWN, Precision.UNKNOWN]


def test_only_what_was_executed_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, judged = [], []
    decode, judge = programs._Program, programs.parse_operation

    def decoding(proto: bytes, budget: Budget) -> Any:
        decoded.append(proto)
        return decode(proto, budget)

    def judging(text: str, **known: str) -> Any:
        judged.append(known["name"])
        return judge(text, **known)

    monkeypatch.setattr(programs, "_Program", decoding)
    monkeypatch.setattr(programs, "parse_operation", judging)
    read(program(), other=b"never touched")
    assert decoded == [program()]
    # Two kernels, of which the program has one; its operands and its body run in no event.
    assert judged == ["gemm_fusion_dot"]
