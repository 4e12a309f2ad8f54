"""A TPU whose matrix unit works on padding, and one with fitting shapes."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from tb_perfadvisor.testing.builder import TraceBuilder, us
from tb_perfadvisor.testing.synthetic.clock import ORIGIN_UNIX_NS
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision, Trace

_STEPS = 6

# Google Cloud documentation, "TPU v5e": dense bf16, HBM.
_TPU_FLOP_PER_S = 197e12
_TPU_BYTES_PER_S = 819e9
_CYCLES_PER_S = _TPU_FLOP_PER_S / (4 * 2 * 128 * 128)
"""Four matrix units of 128 x 128 cells, two FLOP each."""
_PRODUCT_CYCLES = {
    (1024, 520, 2100): 36_611, (1024, 512, 2176): 26_481,
    (1024, 2100, 520): 27_700, (1024, 2176, 512): 27_086,
    (2100, 1024, 520): 26_384, (2176, 1024, 512): 23_016,
    (520, 1024, 2100): 27_536, (512, 1024, 2176): 24_281,
}  # fmt: skip
"""Rows, contracted and columns of products, with the estimates of XLA's TPU compiler for a v5e
(libtpu 0.0.52): `perfadvisor tpu-shapes product:1024x520x2100 --topology v5e`, and so on."""
_TPU_MODULE = "jit_train_step(4711)"


class Sizes(Struct, frozen=True):
    """Sizes of one feed-forward block on one core."""

    rows: int
    features: int
    hidden: int


PADDED = Sizes(rows=1024, features=520, hidden=2100)
"""520 and 2100 are no multiples of 128: they take the room of 640 and 2176."""
FITTING = Sizes(rows=1024, features=512, hidden=2176)
"""No smaller a model: 512 x 2176 is 2 % more than 520 x 2100."""
_LAYERS = 12


def tpu_training(sizes: Sizes) -> Trace:
    """A JAX training step of feed-forward blocks on one core of a TPU v5e."""
    builder = TraceBuilder(
        "jax", version="0.10.2", host="host0", path="host0", origin_unix_ns=ORIGIN_UNIX_NS
    )
    builder.device(
        "TPU v5 lite",
        kind="tpu",
        memory_bytes=16 * 2**30,
        reported_flop_per_s=_TPU_FLOP_PER_S,
        reported_bandwidth_bytes_per_s=_TPU_BYTES_PER_S,
    )
    operations = _operations(sizes)
    # The host runs one step ahead: it dispatches, then waits for the loss of the previous step.
    lag_ns = us(60)
    step_ns = sum(operation.duration_ns for operation in operations) + us(4)
    for step in range(_STEPS):
        start = step * step_ns
        builder.step(step, start, start + step_ns, thread="python")
        builder.annotation(
            "PjitFunction(train_step)", start + us(2), start + us(50), thread="python"
        )
        key = f"launch {step}"
        builder.launch(
            start + us(20), start + us(40), name="DoEnqueueProgram", thread="python", key=key
        )
        builder.host(
            EventKind.SYNCHRONIZE,
            "np.asarray(jax.Array)",
            start + us(55),
            start + step_ns - us(5),
            thread="python",
        )
        at = start + lag_ns
        first = at
        for operation in operations:
            builder.xla_op(
                operation.name,
                at,
                at + operation.duration_ns,
                text=operation.text,
                family=operation.family,
                precision=Precision.BITS_16,
                launched_by=key,
                category=operation.category,
                module=_TPU_MODULE,
                flop=operation.flop,
                traffic_bytes=operation.traffic_bytes,
                source_line=operation.source_line,
            )
            at += operation.duration_ns
        builder.derived("modules", _TPU_MODULE, first, at, launched_by=key)
        builder.derived("steps", str(step), first, at, step=step)
    return builder.build()


class _Operation(Struct, frozen=True):
    name: str
    text: str
    category: str
    family: KernelFamily
    duration_ns: int
    flop: float
    traffic_bytes: float
    source_line: str


def _operations(sizes: Sizes) -> list[_Operation]:
    """Forward and backward of all layers, then the update."""
    rows, features, hidden = sizes.rows, sizes.features, sizes.hidden
    found: list[_Operation] = []
    for _ in range(_LAYERS):
        found.append(_dot(len(found), (rows, features), (features, hidden), 31))
        found.append(_elementwise(len(found), (rows, hidden), 32))
        found.append(_dot(len(found), (rows, hidden), (hidden, features), 33))
    for _ in range(_LAYERS):
        found.append(_dot(len(found), (rows, features), (features, hidden), 47))
        found.append(_dot(len(found), (hidden, rows), (rows, features), 47))
        found.append(_elementwise(len(found), (rows, hidden), 47))
        found.append(_dot(len(found), (rows, hidden), (hidden, features), 47))
        found.append(_dot(len(found), (features, rows), (rows, hidden), 47))
    for _ in range(_LAYERS):
        found.append(_elementwise(len(found), (features, hidden), 52))
        found.append(_elementwise(len(found), (hidden, features), 52))
    return found


def _dot(number: int, left: tuple[int, int], right: tuple[int, int], line: int) -> _Operation:
    name = f"dot.{number}"
    result = (left[0], right[1])
    text = (
        f"%{name} = {_shape(result)} dot({_shape(left)} %lhs.{number}, {_shape(right)} "
        f"%rhs.{number}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    )
    seconds = _PRODUCT_CYCLES[left[0], left[1], right[1]] / _CYCLES_PER_S
    useful = 2 * result[0] * result[1] * left[1]
    return _Operation(
        name,
        text,
        "convolution",
        KernelFamily.MATMUL,
        round(seconds * 1e9),
        float(useful),
        float(2 * sum(_stored(shape) for shape in (left, right, result))),
        f"train.py:{line}",
    )


def _elementwise(number: int, shape: tuple[int, int], line: int) -> _Operation:
    name = f"fusion.{number}"
    text = (
        f"%{name} = {_shape(shape)} fusion({_shape(shape)} %param.{number}), kind=kLoop, "
        f"calls=%fused_computation.{number}"
    )
    moved = 2 * 2 * _stored(shape)  # read and written, two bytes each
    seconds = moved / _TPU_BYTES_PER_S
    return _Operation(
        name,
        text,
        "loop fusion",
        KernelFamily.ELEMENTWISE,
        round(seconds * 1e9),
        float(shape[0] * shape[1]),
        float(moved),
        f"train.py:{line}",
    )


def _shape(dims: tuple[int, int]) -> str:
    return f"bf16[{dims[0]},{dims[1]}]{{1,0:T(8,128)(2,1)}}"


def _stored(dims: tuple[int, int]) -> int:
    return _up(dims[0], 8) * _up(dims[1], 128)


def _up(size: int, multiple: int) -> int:
    return ceil(size / multiple) * multiple
