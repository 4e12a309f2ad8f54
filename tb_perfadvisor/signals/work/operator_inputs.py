"""The recorded inputs of PyTorch operators."""

from __future__ import annotations

from math import prod
from typing import Final

import msgspec
from msgspec import Struct

from tb_perfadvisor.signals.core.operators import Shape, is_shape
from tb_perfadvisor.trace import KernelFamily

_FORMATS: Final = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
    "unsigned char": "int8",
}
_BYTES: Final = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "signed char": 1,
    "unsigned char": 1, "bool": 1, "short": 2, "short int": 2, "int": 4, "long": 8, "long int": 8,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip


class Tensor(Struct, frozen=True):
    """An array among the inputs."""

    shape: Shape
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Size of an element."""
        return _width(self.dtype)

    @property
    def size_bytes(self) -> int:
        """Size of the array."""
        return self.elements * self.item_bytes


class Inputs(Struct, frozen=True):
    """The inputs of one execution, by position."""

    tensors: tuple[Tensor | None, ...]
    """None for inputs that are not arrays."""
    values: tuple[str, ...]
    """Texts of the other inputs; empty if they were not recorded."""

    def tensor(self, index: int) -> Tensor:
        """The array at a position.

        Raises:
            LookupError: If there is none. The work is then unknown.
        """
        tensor = self.tensors[index]
        if tensor is None:
            raise LookupError(index)
        return tensor

    def is_set(self, index: int) -> bool:
        """Whether an option is on: true, or a number other than 0.

        Raises:
            LookupError: If it was not recorded.
        """
        if not self.value(index):
            raise LookupError(index)
        return self.value(index) not in ("False", "0")

    def integers(self, index: int) -> tuple[int, ...]:
        """A list of integers.

        Raises:
            LookupError: If it was not recorded.
        """
        try:
            value = msgspec.json.decode(self.value(index))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise LookupError(index) from None
        numbers = value if isinstance(value, list) else [value]
        if not numbers or not all(type(number) is int for number in numbers):
            raise LookupError(index)
        return tuple(numbers)

    def value(self, index: int) -> str:
        """The recorded text; empty if there is none."""
        return self.values[index] if index < len(self.values) else ""


def _width(dtype: str) -> int:
    return 1 if dtype.startswith("c10::Float8") else _BYTES[dtype]


def common_format(*tensors: Tensor) -> str:
    """The number format of all arrays; empty if they differ."""
    formats = {
        "fp8" if tensor.dtype.startswith("c10::Float8") else _FORMATS.get(tensor.dtype, "")
        for tensor in tensors
    }
    return formats.pop() if len(formats) == 1 else ""


def parse_inputs(shapes: str, dtypes: str, values: str) -> Inputs:
    """The inputs of one execution, from the columns of the `OperatorTable`.

    Raises:
        ValueError: If they are not lists of shapes.
    """
    types = dtypes.split(";")
    tensors = [
        Tensor(_shape(shape), dtype) if _is_array(dtype) else None
        for shape, dtype in zip(_list(shapes), types, strict=False)
    ]
    return Inputs(tuple(tensors), tuple(map(str, _list(values))) if values else ())


def _list(text: str) -> list[object]:
    try:
        return msgspec.json.decode(text, type=list)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(text) from error


def _is_array(dtype: str) -> bool:
    return dtype in _BYTES or dtype.startswith("c10::Float8")


def _shape(value: object) -> Shape:
    if not isinstance(value, list) or not is_shape(value):
        raise ValueError(value)
    return tuple(value)


# A multiplication and an addition count as two FLOP. Traffic is the minimum: each input is read
# once, and each output is written once. Real traffic is larger, because of tiles and limited
# caches.


class Matmul(Struct, frozen=True):
    """The matrix product behind an operation: `batch` times (m, k) by (k, n)."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop(self) -> float:
        """FLOP: a multiplication and an addition for each term of each inner product."""
        return 2.0 * self.batch * self.m * self.n * self.k


class Work(Struct, frozen=True):
    """The work of one execution of an operation."""

    family: KernelFamily
    """What it computes. Its kernels of other families do auxiliary work."""
    flop: float
    traffic_bytes: float
    number_format: str
    """Format of its inputs: fp64, fp32, fp16, bf16, fp8 or int8; empty if it is another."""
    matmul: Matmul | None = None
    """Set for matrix products, and for convolutions as the equivalent product."""
    model_flop: float | None = None
    """FLOP that count toward MFU, if they differ from `flop`; see `step_flop`."""


def convolution_product(
    output: tuple[int, ...], weight: tuple[int, ...], groups: int = 1
) -> Matmul:
    """The matrix product equivalent to a convolution: positions by channels, over its window.

    The output has shape (batch, channels, positions …), and the weight (output channels, input
    channels per group, window …). Groups of channels are convolved separately.
    """
    positions = output[0] * prod(output[2:])
    return Matmul(groups, positions, output[1] // groups, prod(weight[1:]))
