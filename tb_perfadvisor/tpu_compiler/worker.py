"""Compiles programs for TPUs in a process of its own. Run by path: it imports nothing of ours.

Reads a request as JSON from stdin and writes one line of JSON per program to stdout:

    {"topology": "v5e:2x2", "dump": "DIR", "programs": [PROGRAM, …]}

A program is either `{"operation": KIND, "sizes": [...], "dtype": "bfloat16"}` or
`{"source": TEXT}`, the text of a Python module with a function `program(devices)` that returns a
function and its arguments (arrays or `jax.ShapeDtypeStruct`), or a jitted function and its
arguments. The instruction bundles of program number 3 are written to `DIR/3`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Program = tuple[Any, tuple[Any, ...]]


def product(m: int, k: int, n: int, *, dtype: Any) -> Program:
    """A matrix product of [m, k] and [k, n]."""
    return (lambda x, w: x @ w), (_array((m, k), dtype), _array((k, n), dtype))


def batched_product(batch: int, m: int, k: int, n: int, *, dtype: Any) -> Program:
    """One matrix product for each member of a batch."""
    return (lambda x, w: x @ w), (_array((batch, m, k), dtype), _array((batch, k, n), dtype))


def attention(batch: int, heads: int, length: int, size: int, *, dtype: Any) -> Program:
    """Attention without a fused kernel: two products and a softmax."""
    import jax
    import jax.numpy as jnp

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * size**-0.5
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    return attend, (_array((batch, heads, length, size), dtype),) * 3


def convolution(
    batch: int, height: int, width: int, inputs: int, outputs: int, window: int, *, dtype: Any
) -> Program:
    """A convolution of images in NHWC with square windows."""
    return _convolve(1), (
        _array((batch, height, width, inputs), dtype),
        _array((window, window, inputs, outputs), dtype),
    )


def depthwise(
    batch: int, height: int, width: int, channels: int, window: int, *, dtype: Any
) -> Any:
    """A convolution of each channel by itself."""
    return _convolve(channels), (
        _array((batch, height, width, channels), dtype),
        _array((window, window, 1, channels), dtype),
    )


def _convolve(groups: int) -> Callable[[Any, Any], Any]:
    import jax

    return lambda x, w: jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def elementwise(*sizes: int, dtype: Any) -> Program:
    """A chain of element-wise operations on two arrays."""
    import jax

    return (lambda x, y: jax.nn.gelu(x * y + 1)), (_array(sizes, dtype),) * 2


def reduction(*sizes: int, dtype: Any) -> Program:
    """The sum over the last dimension."""
    return (lambda x: x.sum(axis=-1)), (_array(sizes, dtype),)


def column_reduction(*sizes: int, dtype: Any) -> Program:
    """The sum over the first dimension."""
    return (lambda x: x.sum(axis=0)), (_array(sizes, dtype),)


def normalization(*sizes: int, dtype: Any) -> Program:
    """Layer normalization over the last dimension."""
    import jax
    import jax.numpy as jnp

    def normalize(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        centered = wide - wide.mean(axis=-1, keepdims=True)
        variance = (centered**2).mean(axis=-1, keepdims=True)
        return (centered * jax.lax.rsqrt(variance + 1e-6)).astype(x.dtype) * scale

    return normalize, (_array(sizes, dtype), _array(sizes[-1:], dtype))


def softmax(*sizes: int, dtype: Any) -> Program:
    """A softmax over the last dimension."""
    import jax

    return (lambda x: jax.nn.softmax(x, axis=-1)), (_array(sizes, dtype),)


def gather(words: int, features: int, rows: int, *, dtype: Any) -> Program:
    """A look-up of rows in a table."""
    return (lambda table, index: table[index]), (
        _array((words, features), dtype),
        _array((rows,), "int32"),
    )


def scatter(words: int, features: int, rows: int, *, dtype: Any) -> Program:
    """An addition of rows to those of a table."""
    return (lambda table, index, update: table.at[index].add(update)), (
        _array((words, features), dtype),
        _array((rows,), "int32"),
        _array((rows, features), dtype),
    )


def bernoulli(*sizes: int, dtype: Any) -> Program:
    """A dropout mask, applied to an array."""
    import jax
    import jax.numpy as jnp

    def drop(seed: Any, x: Any) -> Any:
        mask = jax.random.bernoulli(jax.random.wrap_key_data(seed), 0.9, sizes)
        return jnp.where(mask, x, 0)

    return drop, (_array((2,), "uint32"), _array(sizes, dtype))


def normal(*sizes: int, dtype: Any) -> Program:
    """Normally distributed random numbers, added to an array."""
    import jax

    def add(seed: Any, x: Any) -> Any:
        return x + jax.random.normal(jax.random.wrap_key_data(seed), sizes, x.dtype)

    return add, (_array((2,), "uint32"), _array(sizes, dtype))


def transpose(*sizes: int, dtype: Any) -> Program:
    """A transpose of the last two dimensions that cannot be left to the layout."""
    import jax
    import jax.numpy as jnp

    # A reversal of rows before, and of the new rows after, both along the slow dimension.
    def swap(x: Any) -> Any:
        turned = jax.lax.optimization_barrier(jnp.swapaxes(x, -1, -2))
        return turned.reshape(-1)

    return swap, (_array(sizes, dtype),)


OPERATIONS: dict[str, Callable[..., Program]] = {
    "product": product,
    "batched-product": batched_product,
    "attention": attention,
    "convolution": convolution,
    "depthwise": depthwise,
    "elementwise": elementwise,
    "reduction": reduction,
    "column-reduction": column_reduction,
    "normalization": normalization,
    "softmax": softmax,
    "gather": gather,
    "scatter": scatter,
    "bernoulli": bernoulli,
    "normal": normal,
    "transpose": transpose,
}


def _array(sizes: tuple[int, ...], dtype: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(sizes, dtype)


def _program(request: dict[str, Any], devices: Any) -> Program:
    if "source" in request:
        module: dict[str, Any] = {"__name__": "program"}
        exec(compile(request["source"], "program.py", "exec"), module)
        function, arguments = module["program"](devices)
        return function, tuple(arguments)
    make = OPERATIONS[request["operation"]]
    return make(*request["sizes"], dtype=request.get("dtype", "bfloat16"))


def _compile(request: dict[str, Any], devices: Any) -> dict[str, Any]:
    """Compile one program; returns what is known of it."""
    import jax

    function, arguments = _program(request, devices)
    first = jax.sharding.SingleDeviceSharding(devices[0])

    def place(array: Any) -> Any:
        if isinstance(array, jax.ShapeDtypeStruct) and array.sharding is not None:
            return array
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=first)

    arguments = jax.tree.map(place, arguments)
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    compiled = jitted.lower(*arguments).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    memory = compiled.memory_analysis()
    return {
        "hlo_text": compiled.as_text(),
        "hlo_proto": base64.b64encode(module.as_serialized_hlo_module_proto()).decode(),
        "memory": {
            name: int(getattr(memory, f"{name}_size_in_bytes"))
            for name in ("argument", "output", "temp", "alias")
        },
    }


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[Any]:
    """Keep stdout for answers: what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        yield answers
    finally:
        answers.close()


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    dump = Path(request["dump"])
    with _quiet_stdout() as answers:

        def answer(content: dict[str, Any]) -> None:
            answers.write(json.dumps(content) + "\n")
            answers.flush()

        try:
            import jax
            import libtpu
            from jax.experimental import topologies

            devices = topologies.get_topology_desc(request["topology"], platform="tpu").devices
        except Exception as error:
            answer({"refused": f"{type(error).__name__}: {error}"})
            return
        answer({"jax": jax.__version__, "libtpu": libtpu.__version__})
        for number, program in enumerate(request["programs"]):
            try:
                result = _compile(program, devices)
            except Exception as error:
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {error}"}
            folder = dump / str(number)
            folder.mkdir()
            for path in dump.iterdir():
                if path.is_file():
                    path.rename(folder / path.name)
            answer(result)


if __name__ == "__main__":
    main()
