"""The operators and kernels of a transformer's training step, drawn layer by layer."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.testing import TraceBuilder, us
from tb_perfadvisor.trace import KernelFamily

H100 = "NVIDIA H100 80GB HBM3"
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, true, cutlass::bfloat16_t>>"
FLASH_BACKWARD = FLASH.replace("fwd", "bwd")
CELL_NS = us(10)
"""Each operator takes one cell on the host; its kernel runs in the next one."""


class Shape(Struct, frozen=True):
    """A decoder: grouped queries, a gated feed-forward network, and an untied head."""

    layers: int = 2
    batch: int = 2
    length: int = 1024
    width: int = 512
    heads: int = 8
    key_heads: int = 2
    hidden: int = 1408
    vocabulary: int = 32_000

    @property
    def tokens(self) -> int:
        return self.batch * self.length


class Drawing:
    """A trace that grows by one operator and its kernel at a time."""

    def __init__(self, shape: Shape, *, dtype: str = "c10::BFloat16") -> None:
        self.shape, self.dtype = shape, dtype
        self.builder = TraceBuilder().device(H100)
        self.at_ns = 0

    def run(
        self,
        name: str,
        shapes: list[list[int]],
        family: KernelFamily = KernelFamily.MATMUL,
        *,
        dtypes: list[str] | None = None,
        values: list[str] | None = None,
        kernel: str = GEMM,
        **columns: int,
    ) -> None:
        start = self.at_ns
        self.builder.operator(
            name,
            start,
            start + CELL_NS,
            shapes=shapes,
            dtypes=dtypes or [self.dtype] * len(shapes),
            values=values,
            **columns,
        )
        self.builder.kernel(
            kernel, start + CELL_NS, start + 2 * CELL_NS, family=family, tensor_cores=1
        )
        self.at_ns += 2 * CELL_NS

    def matrices(self) -> list[tuple[int, int]]:
        """Inputs and outputs of a layer's matrices."""
        shape = self.shape
        keys = shape.width // shape.heads * shape.key_heads
        return [
            *((shape.width, outputs) for outputs in (shape.width, keys, keys)),
            (shape.width, shape.width),
            (shape.width, shape.hidden),
            (shape.width, shape.hidden),
            (shape.hidden, shape.width),
        ]

    def embedding(self) -> None:
        shape = self.shape
        self.run(
            "aten::embedding",
            [[shape.vocabulary, shape.width], [shape.batch, shape.length]],
            KernelFamily.EMBEDDING,
            dtypes=[self.dtype, "long int"],
            kernel="vectorized_gather_kernel",
        )

    def linear(self, inputs: int, outputs: int) -> None:
        self.run("aten::mm", [[self.shape.tokens, inputs], [inputs, outputs]])

    def linear_backward(self, inputs: int, outputs: int) -> None:
        tokens = self.shape.tokens
        self.run("aten::mm", [[outputs, tokens], [tokens, inputs]])
        self.run("aten::mm", [[tokens, outputs], [outputs, inputs]])

    def _heads(self, heads: int) -> list[int]:
        shape = self.shape
        return [shape.batch, heads, shape.length, shape.width // shape.heads]

    def attention(self) -> None:
        query, key = self._heads(self.shape.heads), self._heads(self.shape.key_heads)
        self.run(
            "aten::_scaled_dot_product_flash_attention",
            [query, key, key],
            KernelFamily.ATTENTION,
            values=["", "", "", "0.", "True", "False"],
            kernel=FLASH,
            sequence=7,
        )

    def attention_backward(self) -> None:
        shape = self.shape
        query, key = (
            [shape.batch, shape.length, heads, shape.width // shape.heads]
            for heads in (shape.heads, shape.key_heads)
        )
        self.run(
            "aten::_flash_attention_backward",
            [query, query, key, key],
            KernelFamily.ATTENTION,
            values=["", "", "", "", "", "", "", "", "1024", "1024", "0.", "True"],
            kernel=FLASH_BACKWARD,
        )

    def layer(self) -> None:
        for inputs, outputs in self.matrices():
            self.linear(inputs, outputs)
        self.attention()

    def layer_backward(self) -> None:
        self.attention_backward()
        for inputs, outputs in self.matrices():
            self.linear_backward(inputs, outputs)

    def step(self) -> None:
        """Forward and backward, without checkpoints."""
        shape = self.shape
        self.embedding()
        for _ in range(shape.layers):
            self.layer()
        self.linear(shape.width, shape.vocabulary)
        self.linear_backward(shape.width, shape.vocabulary)
        for _ in range(shape.layers):
            self.layer_backward()
