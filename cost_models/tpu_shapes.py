"""Asks XLA's TPU compiler what shapes cost, and records its answers.

    python -m cost_models.tpu_shapes --minutes 30                # needs no TPU
    python -m cost_models.tpu_shapes --generation v5e            # only this one

Shapes come in families of neighbors, such as products with 128, 130 and 256 columns. A lot decides
which families the cost model is fitted to, and which are held out to test it, before any is
compiled. Answers are added to `cost_models/tpu_answers/GENERATION.csv`, so that the sweep can be
continued at any time. `tpu_shape_model.py` fits the model and tests it.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.pinned_tools import default_folder, python_with_tools
from tb_perfadvisor.tpu_compiler import (
    GENERATIONS,
    CompiledProgram,
    Generation,
    Operation,
    compile_for_tpu,
)
from tb_perfadvisor.tpu_compiler.worker import OPERATIONS

PINS = Path(__file__).with_name("tpu_compiler.txt")
ANSWERS = Path(__file__).with_name("tpu_answers")
_SEED = 20_261_122
_HELD_OUT = 0.4
_AT_ONCE = 30
_LIMIT_S = 600
"""For the programs that are compiled at once."""
_PATIENCE_S = 40
"""For one program; some take minutes."""
_MOST_ELEMENTS = 1 << 29


class Shape(NamedTuple):
    """An operation of the sweep."""

    operation: Operation
    family: int
    is_held_out: bool


class Answer(NamedTuple):
    """What the compiler says of a shape."""

    kind: str
    sizes: tuple[int, ...]
    dtype: str
    family: int
    is_held_out: bool
    cycles: float
    """Of the kernels; copies to on-chip memory that run beside other kernels are left out."""
    copied: float
    """Cycles of those copies."""
    relayout: float
    """Part of `cycles` that goes into copies from one layout to another. A program that consists of
    more than this operation may need none."""
    flop: float
    hbm_bytes: int
    """Of kernels and copies."""
    kernels: int
    libtpu: str


def sweep() -> list[Shape]:
    """All shapes: first some that miss a multiple of 128 by little, then a fair sample of all."""
    shapes = []
    seen = set()
    for number, is_held_out, kind, members in [
        *_drawn(_near_misses, 10_000),
        *_drawn(_families, 0),
    ]:
        for sizes in members:
            operation = Operation(kind, sizes)
            if operation not in seen and _elements(sizes) <= _MOST_ELEMENTS:
                seen.add(operation)
                shapes.append(Shape(operation, number, is_held_out))
    return shapes


def _drawn(
    families: Callable[[random.Random], Iterator[tuple[str, list[tuple[int, ...]]]]], first: int
) -> Iterator[tuple[int, bool, str, list[tuple[int, ...]]]]:
    """Families with their number, and whether the lot holds them out."""
    chance = random.Random(_SEED + first)
    for number, (kind, members) in enumerate(families(chance), start=first):
        yield number, chance.random() < _HELD_OUT, kind, members


def _near_misses(chance: random.Random) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Products in which the contracted size, or both others, miss a multiple of 128 by little."""
    for _ in range(6):
        base = [chance.choice([512, 1024, 2048]), 0, chance.choice([512, 1024, 2048])]
        fits = chance.choice([256, 512, 1024, 2048])
        yield (
            "product",
            [_replaced(base, 1, size) for size in (fits, fits + chance.choice([1, 8, -16]))],
        )
        fits, size = chance.choice([256, 512, 1024]), chance.choice([64, 128])
        heads = chance.choice([32, 64])
        missed = fits + chance.choice([1, 1, -1, -16])
        yield "batched-product", [(heads, other, size, other) for other in (fits, missed)]
        yield "batched-product", [(heads, other, other, size) for other in (fits, missed)]


def _elements(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    # Products and tables never hold the product of all their sizes.
    return total if len(sizes) < 3 else total // max(sizes)


def _families(chance: random.Random) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Rounds of one family for each kind; products count most, so they come more often."""
    makers: list[tuple[int, Callable[[random.Random], tuple[str, list[tuple[int, ...]]]]]] = [
        (6, _products), (2, _batched_products), (2, _attention), (2, _convolutions),
        (1, _depthwise), (2, _arrays("elementwise", 3)), (1, _arrays("reduction", 2)),
        (1, _arrays("column-reduction", 2)), (1, _arrays("normalization", 2)),
        (1, _arrays("softmax", 2)), (1, _arrays("transpose", 2)), (1, _tables("gather")),
        (1, _tables("scatter")), (1, _arrays("bernoulli", 2)), (1, _arrays("normal", 2)),
    ]  # fmt: skip
    for _ in range(60):
        for times, make in makers:
            for _ in range(times):
                yield make(chance)


def _neighbors(chance: random.Random, size: int) -> list[int]:
    """A multiple of 128, a size that misses it by a little, and others around."""
    around = [size + 2, size - 28, size + 64, size + 128, size + 100, size - 1, size + 8]
    return [size, *chance.sample([near for near in around if near > 0], 2)]


def _aligned(chance: random.Random, least: int, most: int) -> int:
    """A multiple of 128 between two powers of two, evenly on a logarithmic scale."""
    return max(round(2 ** chance.uniform(least, most) / 128), 1) * 128


def _products(chance: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    rows = chance.choice([_aligned(chance, 8, 15), chance.choice([1, 4, 8, 9, 16, 30, 32, 64])])
    base = [rows, _aligned(chance, 7, 14), _aligned(chance, 7, 14)]
    varied = chance.choice([0, 1, 2, 2])
    if varied == 0 and rows < 128:
        members = sorted({rows, chance.choice([1, 7, 8]), chance.choice([9, 12, 24, 33])})
    else:
        members = _neighbors(chance, base[varied])
    return "product", [_replaced(base, varied, size) for size in members]


def _replaced(base: Sequence[int], place: int, size: int) -> tuple[int, ...]:
    return (*base[:place], size, *base[place + 1 :])


def _batched_products(chance: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    base = [
        chance.choice([8, 16, 64, 96, 128]),
        _aligned(chance, 7, 11),
        chance.choice([64, 128, 256, 512]),
        _aligned(chance, 7, 11),
    ]
    varied = chance.choice([1, 2, 3])
    near = _neighbors(chance, base[varied]) if base[varied] >= 128 else [64, 60, 80]
    return "batched-product", [_replaced(base, varied, size) for size in near]


def _attention(chance: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    batch, heads = chance.choice([1, 2, 4, 8]), chance.choice([8, 12, 16, 32])
    size = chance.choice([64, 64, 128, 80])
    length = chance.choice([128, 256, 384, 512, 768, 1024, 1536, 2048])
    near = [length, *chance.sample([length + 1, length - 1, length - 24, length + 8], 2)]
    return "attention", [(batch, heads, other, size) for other in near]


def _convolutions(chance: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    side = chance.choice([7, 14, 28, 56])
    base = [
        chance.choice([8, 32, 64, 128]), side, side,
        chance.choice([64, 128, 256, 512]), chance.choice([64, 128, 256, 512]),
        chance.choice([1, 3, 3]),
    ]  # fmt: skip
    varied = chance.choice([0, 3, 4])
    around = [base[varied] - 4, base[varied] + 36, base[varied] // 2, base[varied] + 1]
    return "convolution", [
        _replaced(base, varied, size) for size in (base[varied], *chance.sample(around, 2))
    ]


def _depthwise(chance: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    side, channels = chance.choice([14, 28, 56]), chance.choice([64, 128, 256, 512])
    batch = chance.choice([8, 32, 64])
    near = [channels, *chance.sample([channels - 4, channels + 36, channels + 16], 2)]
    return "depthwise", [(batch, side, side, other, 3) for other in near]


def _arrays(
    kind: str, most_dimensions: int
) -> Callable[[random.Random], tuple[str, list[tuple[int, ...]]]]:
    def make(chance: random.Random) -> tuple[str, list[tuple[int, ...]]]:
        if most_dimensions > 2 and chance.random() < 0.5:
            side = chance.choice([32, 64, 128, 256])
            base = [chance.choice([64, 512, 4096]), side, chance.choice([side, 128])]
        else:
            base = [_aligned(chance, 8, 14), _aligned(chance, 7, 13)]
        varied = chance.randrange(len(base))
        return kind, [_replaced(base, varied, size) for size in _neighbors(chance, base[varied])]

    return make


def _tables(kind: str) -> Callable[[random.Random], tuple[str, list[tuple[int, ...]]]]:
    def make(chance: random.Random) -> tuple[str, list[tuple[int, ...]]]:
        base = [_aligned(chance, 12, 16), _aligned(chance, 7, 11), _aligned(chance, 9, 14)]
        varied = chance.choice([0, 1, 1, 2])
        return kind, [_replaced(base, varied, size) for size in _neighbors(chance, base[varied])]

    return make


def read_answers(generation: str) -> list[Answer]:
    """The recorded answers for a generation."""
    path = ANSWERS / f"{generation}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [_parse(row) for row in csv.reader(stream)][0:]


def _parse(row: Sequence[str]) -> Answer:
    kind, sizes, dtype, family, held, cycles, copied, relayout, flop, moved, kernels, libtpu = row
    return Answer(
        kind, tuple(map(int, sizes.split("x"))), dtype, int(family), held == "1", float(cycles),
        float(copied), float(relayout), float(flop), int(moved), int(kernels), libtpu,
    )  # fmt: skip


def _answer(shape: Shape, program: CompiledProgram) -> Answer:
    kernels = [kernel for kernel in program.kernels if not kernel.is_asynchronous]
    copies = [kernel for kernel in program.kernels if kernel.is_asynchronous]
    return Answer(
        shape.operation.kind,
        shape.operation.sizes,
        shape.operation.dtype,
        shape.family,
        shape.is_held_out,
        sum(kernel.cycles * kernel.runs for kernel in kernels),
        sum(kernel.cycles * kernel.runs for kernel in copies),
        sum(kernel.cycles * kernel.runs for kernel in kernels if kernel.opcode == "copy"),
        sum(kernel.flop * kernel.runs for kernel in kernels),
        sum(kernel.hbm_bytes * kernel.runs for kernel in program.kernels),
        len(kernels),
        program.libtpu,
    )


def _row(answer: Answer) -> list[str]:
    return [
        answer.kind, "x".join(map(str, answer.sizes)), answer.dtype, str(answer.family),
        str(int(answer.is_held_out)), f"{answer.cycles:.0f}", f"{answer.copied:.0f}",
        f"{answer.relayout:.0f}", f"{answer.flop:.0f}", str(answer.hbm_bytes),
        str(answer.kernels), answer.libtpu,
    ]  # fmt: skip


def ask(python: Path, generation: Generation, shapes: Sequence[Shape]) -> int:
    """Compile shapes and record the answers; returns how many could be compiled."""
    operations = [shape.operation for shape in shapes]
    programs = compile_for_tpu(
        generation, operations, time_limit_s=_LIMIT_S, patience_s=_PATIENCE_S, python=python
    )
    ANSWERS.mkdir(exist_ok=True)
    compiled = 0
    with (ANSWERS / f"{generation.name}.csv").open("a", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        for shape, program in zip(shapes, programs, strict=True):
            if isinstance(program, CompiledProgram):
                writer.writerow(_row(_answer(shape, program)))
                compiled += 1
            else:
                print(f"{shape.operation}: {program.reason}", file=sys.stderr)
    return compiled


def main() -> None:
    """Ask until the time is up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--generation", choices=list(GENERATIONS), action="append")
    parser.add_argument("--kind", choices=list(OPERATIONS), action="append")
    parser.add_argument("--most", type=int, default=10_000, help="shapes per generation")
    parser.add_argument("--environment", type=Path, default=default_folder(PINS), metavar="DIR")
    given = parser.parse_args()
    python = python_with_tools(given.environment, PINS)
    generations = [GENERATIONS[name] for name in given.generation or GENERATIONS]
    left = {}
    for generation in generations:
        known = {
            (answer.kind, answer.sizes, answer.dtype) for answer in read_answers(generation.name)
        }
        left[generation.name] = [
            shape
            for shape in sweep()[: given.most]
            if shape.operation.kind in (given.kind or OPERATIONS)
            and (shape.operation.kind, shape.operation.sizes, shape.operation.dtype) not in known
        ]
    deadline = time.monotonic() + 60 * given.minutes
    while any(left.values()):
        for generation in generations:
            shapes, left[generation.name] = (
                left[generation.name][:_AT_ONCE],
                left[generation.name][_AT_ONCE:],
            )
            if time.monotonic() > deadline:
                return
            if shapes:
                compiled = ask(python, generation, shapes)
                print(f"{generation.name}: {compiled} of {len(shapes)}", file=sys.stderr)


if __name__ == "__main__":
    main()
