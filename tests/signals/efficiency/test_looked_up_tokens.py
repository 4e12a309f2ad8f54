"""Tokens of XLA programs, from programs whose look-ups are drawn by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.signals.efficiency.utilization import throughput
from tb_perfadvisor.testing import run_of
from tests.support.hlo_programs import BF16, instruction, shaped
from tests.support.xspaces import Drawing, Reference

VOCABULARY, WIDTH, TOKENS = 32_000, 512, 8 * 256


def language_model(
    *,
    path: str = "jit(step)/jvp(embed)/gather",
    head: int = VOCABULARY,
    is_argument: bool = True,
) -> bytes:
    """A fusion that gathers rows of a table, and a product of the result by the output layer."""
    proto = HloProto()
    body = proto.hlo_module.computations.add(id=1)
    table = instruction(body, 10, "table", "parameter")
    shaped(table, BF16, VOCABULARY, WIDTH)
    shaped(instruction(body, 11, "ids", "parameter"), 4, TOKENS)  # S32
    body.instructions[1].parameter_number = 1
    gather = instruction(body, 12, "gather.1", "gather")
    shaped(gather, BF16, 8, 256, WIDTH)
    gather.operand_ids.extend([10, 11])
    gather.metadata.op_name = path.encode()
    entry = proto.hlo_module.computations.add(id=2)
    proto.hlo_module.entry_computation_id = 2
    shaped(instruction(entry, 20, "embedding", "parameter"), BF16, VOCABULARY, WIDTH)
    shaped(instruction(entry, 21, "batch", "parameter"), 4, TOKENS)
    shaped(instruction(entry, 22, "head", "parameter"), BF16, WIDTH, head)
    if not is_argument:
        entry.instructions[0].opcode = b"add"
    fusion = instruction(entry, 23, "gather_fusion", "fusion", fusion_kind="kLoop")
    shaped(fusion, BF16, TOKENS, WIDTH)
    fusion.operand_ids.extend([20, 21])
    fusion.called_computation_ids.append(1)
    product = instruction(entry, 24, "dot.2", "dot")
    shaped(product, BF16, TOKENS, head)
    product.operand_ids.extend([23, 22])
    data: bytes = proto.SerializeToString()
    return data


def signals_of(program: bytes, *, devices: int = 1, options: Options | None = None) -> Signals:
    """Four runs of 1 ms, each of one look-up and one product."""
    drawing = Drawing()
    metadata = drawing.plane("/host:metadata")
    metadata.stat_metadata[1].id, metadata.stat_metadata[1].name = 1, "Hlo Proto"
    kind = metadata.event_metadata[1]
    kind.id, kind.name = 1, "jit_step(19)"
    kind.stats.add(metadata_id=1, bytes_value=program)
    for device in range(devices):
        _device(drawing, device)
    return Signals(run_of(drawing.read()), options=options)


def _device(drawing: Drawing, device: int) -> None:
    gpu: Any = drawing.plane(f"/device:GPU:{device}")
    stream = drawing.line(gpu, "Stream #2")
    for step in range(4):
        for operation, at, length in (("gather_fusion", 0, 100_000), ("dot.2", 200_000, 700_000)):
            drawing.event(
                gpu,
                stream,
                operation,
                step * 1_000_000 + at,
                length,
                hlo_op=Reference(operation),
                hlo_module=Reference("jit_step"),
                program_id=19,
            )


def test_tokens_are_the_rows_that_the_embedding_reads() -> None:
    found = throughput(signals_of(language_model()))
    # Without markers, the profile counts as one step: 4 runs of 8 x 256 rows.
    assert (found.tokens_per_step, found.source) == (
        4 * 8 * 256,
        "Tokens are those that the embedding of the vocabulary looks up.",
    )


@pytest.mark.parametrize(
    "program",
    [
        # Derivatives and what is computed again read no new tokens.
        language_model(path="jit(step)/transpose(jvp(embed))/gather"),
        language_model(path="jit(step)/rematted_computation/embed/gather"),
        language_model(path="jit(step)/jvp(embed)/scatter-add"),
        # No output layer: the nodes of a graph, or the items of a recommender.
        language_model(head=128),
        # Activations that are put into another order.
        language_model(is_argument=False),
    ],
)
def test_other_gathers_tell_no_tokens(program: bytes) -> None:
    assert throughput(signals_of(program)).tokens_per_step is None


def test_several_devices_may_divide_the_tokens_or_not() -> None:
    found = throughput(signals_of(language_model(), devices=2))
    assert (found.tokens_per_step, found.source) == (
        None,
        "The profile does not tell how the devices divide the tokens. Set --tokens-per-step.",
    )
    told = signals_of(language_model(), devices=2, options=Options(tokens_per_step=4096))
    assert throughput(told).tokens_per_step == 4096
