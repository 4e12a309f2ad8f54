"""Shapes as users write them: `product:8192x4096x128,130,256`."""

from __future__ import annotations

import inspect
from itertools import product

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.tpu_compiler.compiler import Operation
from tb_perfadvisor.tpu_compiler.worker import OPERATIONS

MOST_SHAPES = 64
"""More would take minutes, and say no more."""
_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "s8": "int8",
    "f8": "float8_e4m3fn",
}
_PATTERN = regex(r"(?:([\w-]+):)?([\dx,]+)(?:@(\w+))?")


def parse_operations(text: str) -> list[Operation]:
    """The operations that a text describes.

    The text is `KIND:SIZExSIZE…@DTYPE`. The kind may be left out (then it is a product), and so may
    the data type (then it is bf16). Commas separate alternatives for a size.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is no shape.",
            hint="Write KIND:SIZExSIZE…, for example product:8192x4096x128,130.",
        )
    kind, dtype = match[1] or "product", match[3] or "bf16"
    if kind not in OPERATIONS:
        raise UsageError(
            f"there is no operation called {kind!r}.", hint=f"Known: {', '.join(OPERATIONS)}."
        )
    if dtype not in _DTYPES:
        raise UsageError(
            f"there is no data type called {dtype!r}.", hint=f"Known: {', '.join(_DTYPES)}."
        )
    try:
        sizes = [tuple(int(size) for size in part.split(",")) for part in match[2].split("x")]
    except ValueError:
        sizes = []
    names = size_names(kind)
    if not sizes or any(size < 1 for part in sizes for size in part):
        raise UsageError(f"the sizes of {text!r} are no positive numbers.")
    if names and len(sizes) != len(names):
        raise UsageError(
            f"{kind} has {len(names)} sizes, and {text!r} has {len(sizes)}.",
            hint=f"They are {', '.join(names)}.",
        )
    return [Operation(kind, chosen, _DTYPES[dtype]) for chosen in product(*sizes)]


def size_names(kind: str) -> tuple[str, ...]:
    """What the sizes of an operation are called; empty if it takes any number of dimensions."""
    parameters = inspect.signature(OPERATIONS[kind]).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
