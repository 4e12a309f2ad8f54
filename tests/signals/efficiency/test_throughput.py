from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.signals.efficiency.utilization import Throughput, throughput
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import KernelFamily
from tests.support.transformer import H100, Drawing, Shape


def flow(builder: TraceBuilder, options: Options | None = None) -> Throughput:
    return throughput(Signals(run_of(builder.build()), options=options))


def program(*operators: tuple[str, list[list[int]], str], steps: int = 1) -> TraceBuilder:
    """Operators of a program on the CPU, with the type of the second input; the same each step."""
    builder = TraceBuilder()
    for number in range(steps):
        start = ms(number)
        builder.step(number, start, start + ms(1))
        for index, (name, shapes, dtype) in enumerate(operators):
            at = start + us(20 * index)
            builder.operator(
                name, at, at + us(10), shapes=shapes, dtypes=["float", dtype], launches=False
            )
    return builder


def test_tokens_of_a_transformer_and_its_batch() -> None:
    drawing = Drawing(Shape(batch=2, length=1024))
    drawing.builder.step(0, 0, ms(2))
    drawing.step()
    found = flow(drawing.builder)
    assert (found.tokens_per_step, found.samples_per_step) == (2048, 2)


def test_accumulated_batches_add_up_as_tokens_alone() -> None:
    embedding = ("aten::embedding", [[50_257, 768], [4, 512]], "long int")
    found = flow(program(embedding, embedding, steps=3))
    assert (found.tokens_per_step, found.samples_per_step) == (2 * 4 * 512, None)


def test_positions_types_and_biases_are_no_tokens() -> None:
    found = flow(
        program(
            ("aten::embedding", [[65, 384], [8, 256]], "long int"),  # characters
            ("aten::embedding", [[256, 384], [256]], "long int"),  # positions
            ("aten::embedding", [[32, 6], [256, 256]], "long int"),  # T5's relative biases
        )
    )
    assert found.tokens_per_step == 8 * 256


@pytest.mark.parametrize(("indices", "tokens"), [([64], None), ([64, 1], None), ([4, 16], 64)])
def test_features_are_no_tokens(indices: list[int], tokens: int | None) -> None:
    found = flow(program(("aten::embedding", [[100_000, 64], indices], "long int")))
    assert found.tokens_per_step == tokens


def test_a_decoding_step_reads_a_token_per_sequence() -> None:
    found = flow(
        program(
            ("aten::embedding", [[32_000, 64], [16, 1]], "long int"),
            ("aten::scaled_dot_product_attention", [[16, 4, 1, 16], [16, 4, 99, 16]], "float"),
        )
    )
    assert (found.tokens_per_step, found.samples_per_step) == (16, 16)


IMAGES = ("aten::conv2d", [[32, 3, 224, 224], [64, 3, 7, 7]], "float")
FEATURES = ("aten::conv2d", [[32, 64, 56, 56], [64, 64, 3, 3]], "float")


def test_images_are_the_batch_of_the_first_convolution() -> None:
    found = flow(program(IMAGES, FEATURES, FEATURES, steps=2))
    assert (found.tokens_per_step, found.samples_per_step) == (None, 32)


def test_a_convolution_that_calls_another_one_reads_its_images_once() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(1))
    for name, start, end in (("aten::conv2d", 0, 90), ("aten::convolution", 10, 80)):
        builder.operator(
            name, us(start), us(end), shapes=IMAGES[1], dtypes=["float"] * 2,
            launches=name == "aten::convolution",
        )  # fmt: skip
    builder.kernel("sm80_xmma_fprop", us(100), us(200), family=KernelFamily.CONVOLUTION)
    assert flow(builder).samples_per_step == 32


def test_passes_over_the_same_batch_leave_samples_unknown() -> None:
    # A diffusion model reads the same latents again and again; a GAN reads two batches.
    found = flow(program(IMAGES, FEATURES, IMAGES, FEATURES))
    assert (found.tokens_per_step, found.samples_per_step) == (None, None)
    assert found.source == "The number of forward passes over the batch in a step is unknown."


def test_unknown_without_shapes() -> None:
    bare = TraceBuilder().step(0, 0, ms(1))
    bare.operator("aten::embedding", 0, us(10), launches=False)
    found = flow(bare)
    assert (found.tokens_per_step, found.samples_per_step) == (None, None)
    assert "record_shapes=True" in found.source


def test_the_users_number_decides() -> None:
    builder = program(("aten::embedding", [[50_257, 768], [4, 512]], "long int"))
    found = flow(builder, Options(tokens_per_step=7))
    assert (found.tokens_per_step, found.source) == (7, "Tokens per step are your setting.")
