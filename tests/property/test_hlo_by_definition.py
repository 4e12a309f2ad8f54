"""Operations of XLA programs written at random, and read back as what they were written from."""

from __future__ import annotations

from itertools import permutations
from math import ceil, prod
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from tb_perfadvisor.hardware.tpu_shape_costs import (
    KINDS,
    SAVED_RANGE,
    Factors,
    ShapeCosts,
    Work,
    least_padded,
)
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import (
    group_axes,
    group_members,
    group_names,
    parse_operation,
)
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Precision
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)

BITS = {
    "f32": 32, "bf16": 16, "f16": 16, "f64": 64, "f8e4m3fn": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4,
    "s32": 32, "pred": 8,
}  # fmt: skip
FLOATS = ("f32", "bf16", "f16", "f64", "f8e4m3fn")
DEVICE, CHIP, HOST = 0, 1, 5
WIDTH = {
    4: Precision.BITS_8, 8: Precision.BITS_8, 16: Precision.BITS_16, 32: Precision.BITS_32,
    64: Precision.BITS_64,
}  # fmt: skip


class Array(Struct, frozen=True):
    """An array, and the memory that it is in."""

    dtype: str
    dims: tuple[int, ...]
    space: int = DEVICE
    order: str = ""
    """The layout; empty if it is not written."""

    @property
    def text(self) -> str:
        space = f":S({self.space})" if self.space else ""
        layout = f"{{{self.order}{space}}}" if self.order else ""
        return f"{self.dtype}[{','.join(map(str, self.dims))}]{layout}"

    @property
    def size_bytes(self) -> int:
        return prod(self.dims) * BITS[self.dtype] // 8


def array(random: Random, *, dtype: str = "", rank: int = 2) -> Array:
    dims = tuple(random.choice((1, 2, 8, 24)) for _ in range(rank))
    order = random.choice(("1,0", "0,1")) if rank == 2 else ""
    space = random.choice((DEVICE, DEVICE, CHIP, HOST))
    return Array(dtype or random.choice(list(BITS)), dims, space, order)


def text_of(opcode: str, results: list[Array], operands: list[Array], attributes: str = "") -> str:
    written = [each.text for each in results]
    result = written[0] if len(written) == 1 else f"({', '.join(written)})"
    inside = ", ".join(f"{each.text} %p{place}" for place, each in enumerate(operands))
    return f"%op.1 = {result} {opcode}({inside}){attributes}"


def on_chip_bytes(arrays: list[Array]) -> int:
    """Bytes in the device's memory, if other arrays are on the chip; else -1."""
    if not any(each.space == CHIP and each.dims for each in arrays):
        return -1
    return sum(each.size_bytes for each in arrays if each.space == DEVICE)


def direction_of(target: Array, source: Array) -> CopyDirection:
    return {
        (False, False): CopyDirection.DEVICE_TO_DEVICE,
        (False, True): CopyDirection.HOST_TO_DEVICE,
        (True, False): CopyDirection.DEVICE_TO_HOST,
        (True, True): CopyDirection.HOST_TO_HOST,
    }[target.space == HOST, source.space == HOST]


@examples(120)
@given(randoms)
def test_copies(random: Random) -> None:
    target = array(random)
    order = random.choice((target.order, "1,0"))
    source = Array(target.dtype, target.dims, random.choice((DEVICE, CHIP, HOST)), order)
    context = Array("s32", ())
    opcode = random.choice(("copy", "copy", "copy-start", "copy-done"))
    results, operands = [target], [source]
    if opcode == "copy-start":
        results = [target, source, context]
    elif opcode == "copy-done":
        operands = [target, source, context]
    found = parse_operation(text_of(opcode, results, operands))
    is_on_device = HOST not in (target.space, source.space)
    is_relayout = opcode == "copy" and is_on_device and target.order != source.order
    is_prefetch = is_on_device and CHIP in (target.space, source.space)
    is_kernel = is_relayout or is_prefetch
    assert found.kind == (EventKind.KERNEL if is_kernel else EventKind.COPY)
    assert found.family == (KernelFamily.LAYOUT if is_relayout else KernelFamily.OTHER)
    assert found.copy_direction == direction_of(target, source)
    assert found.copy_bytes == (-1 if opcode == "copy-start" else target.size_bytes)
    assert found.memory_bytes == on_chip_bytes([*results, *operands])
    width = WIDTH[BITS[target.dtype]] if target.dtype in FLOATS else Precision.UNKNOWN
    assert found.precision == (width if is_relayout else Precision.UNKNOWN)
    assert (found.name, found.opcode, found.is_container) == ("op.1", opcode, False)


@examples(60)
@given(randoms)
def test_slices_between_device_and_host(random: Random) -> None:
    whole, part = array(random, dtype="f32"), array(random, dtype="f32")
    index = Array("s32", ())
    is_update = random.random() < 0.5
    opcode = "dynamic-update-slice" if is_update else "dynamic-slice"
    results = [Array("f32", whole.dims, whole.space, whole.order)] if is_update else [part]
    operands = [whole, part, index] if is_update else [whole, index]
    found = parse_operation(text_of(opcode, results, operands))
    arrays = [each for each in (*results, *operands) if each.dims]
    on_host = [each for each in arrays if each.space == HOST]
    on_device = [each for each in arrays if each.space != HOST]
    if on_host and on_device:
        ends = (on_host[0], on_device[0]) if is_update else (on_device[0], on_host[0])
        assert found.kind == EventKind.COPY
        assert found.copy_direction == direction_of(*ends)
        assert found.copy_bytes == min(each.size_bytes for each in ends)
        assert found.precision == Precision.UNKNOWN
    else:
        assert found.kind == EventKind.KERNEL
        assert found.copy_bytes == results[0].size_bytes
        assert found.precision == Precision.BITS_32
    assert found.memory_bytes == on_chip_bytes([*results, *operands])


@examples(120)
@given(randoms)
def test_the_precision_of_a_product(random: Random) -> None:
    operands = [array(random, rank=random.choice((1, 2, 2))) for _ in range(random.randint(2, 3))]
    result = array(random, dtype="f32")
    found = parse_operation(text_of("dot", [result], operands))
    wide = [BITS[each.dtype] for each in operands if each.dtype in FLOATS[:4]]
    # Numbers with fewer bits than a scale or bias are widened to those of a wide factor.
    has_wide_factor = any(len(each.dims) == 2 and each.dtype in FLOATS[:4] for each in operands)
    signed = [each for each in operands if each.dtype in ("f8e4m3fn", "s8", "s4")]
    unsigned = [each for each in operands if each.dtype in ("u8", "u4")]
    expected = WIDTH[min(wide)] if wide else Precision.UNKNOWN
    if len(signed) >= 2 or (not has_wide_factor and (signed or unsigned)):
        expected = Precision.BITS_8
    assert (found.kind, found.family) == (EventKind.KERNEL, KernelFamily.MATMUL)
    assert found.precision == expected


@examples(40)
@given(randoms)
def test_the_precision_of_other_work(random: Random) -> None:
    results = [array(random, rank=2) for _ in range(random.randint(1, 3))]
    found = parse_operation(text_of("fusion", results, [array(random)], ", kind=kLoop"))
    widths = [BITS[each.dtype] for each in results if each.dtype in FLOATS]
    assert found.precision == (WIDTH[min(widths)] if widths else Precision.UNKNOWN)


@examples(60)
@given(randoms)
def test_bytes_of_collectives(random: Random) -> None:
    operation = random.choice(("all-reduce", "all-gather", "reduce-scatter", "collective-permute"))
    end = random.choice(("", "-start", "-done"))
    results = [array(random) for _ in range(random.randint(1, 2))]
    operands = [array(random) for _ in range(random.randint(1, 2))]
    found = parse_operation(text_of(operation + end, results, operands))
    received = sum(each.size_bytes for each in results)
    sent = sum(each.size_bytes for each in operands)
    size = {"": max(received, sent), "-start": -1, "-done": received}[end]
    assert (found.kind, found.collective) == (EventKind.COLLECTIVE, operation)
    # A bit or two are no byte, and no bytes are unknown.
    assert found.collective_bytes == (size or -1)
    assert found.collective_dtype == operands[0].dtype


def numbers(values: list[int]) -> str:
    return ",".join(map(str, values))


@examples(120)
@given(randoms)
def test_the_axes_of_a_group(random: Random) -> None:
    form = random.choice(("none", "list", "iota", "mesh", "mesh"))
    names = members = text = ""
    axes: tuple[int, ...] = ()
    if form == "list":
        size = random.choice((1, 2, 8, 40))
        groups = [list(range(at, at + size)) for at in (0, size)]
        members = "{" + ",".join("{" + numbers(group) + "}" for group in groups) + "}"
        axes = (size,)
    elif form == "iota":
        dims = [random.choice((1, 2, 3, 4)) for _ in range(random.randint(1, 3))]
        order = random.sample(range(len(dims)), len(dims))
        is_transposed = random.random() < 0.6
        turned = [dims[place] for place in order] if is_transposed else dims
        size = random.choice((1, 2, 4, 6, prod(dims)))
        suffixes = [turned[-count:] for count in range(1, len(dims) + 1)]
        enough = [suffix for suffix in suffixes if prod(suffix) >= size]
        axes = tuple(enough[0]) if enough and prod(enough[0]) == size else (size,)
        transposed = f"T({numbers(order)})" if is_transposed else ""
        members = f"[{prod(dims)},{size}]<=[{numbers(dims)}]{transposed}"
    elif form == "mesh":
        sizes = {name: random.choice((1, 2, 4, 7)) for name in ("data", "model", "expert")}
        spanned = random.sample(list(sizes), random.randint(1, 2))
        parts = {name: random.choice((0, 0, 2)) for name in spanned}
        mesh = ",".join(f"'{name}'={size}" for name, size in sizes.items())
        group = ",".join(
            f"'{name}'" + (f":(1){part}" if part else "") for name, part in parts.items()
        )
        text = f"mesh[{mesh}] {{{group}}}"
        names = ",".join(spanned)
        axes = tuple(part or sizes[name] for name, part in parts.items())
    attributes = f", replica_groups={text or members}" if form != "none" else ""
    written = text_of("all-reduce", [array(random)], [array(random)], attributes)
    assert group_axes(written) == axes
    assert group_names(written) == names
    cut = members if len(members) <= 80 else f"{members[:79]}…"
    assert group_members(written) == cut
    found = parse_operation(written)
    assert found.group_size == (prod(axes) if axes else -1)
    neighbors = sum({1: 0, 2: 1}.get(size, 2) for size in axes)
    assert found.neighbors == (neighbors if axes else -1)


# --- costs of shapes ----------------------------------------------------------------------

COSTS = ShapeCosts(
    "v0", 1e9, 128, 1024.0, 64.0,
    {kind: Factors(100.0, 1.5, 0.5, 2.0, 0.25) for kind in KINDS},
    {"product": 0.15, "softmax": 0.2},
)  # fmt: skip


def up(size: int, multiple: int) -> int:
    return ceil(size / multiple) * multiple


def padded(sizes: tuple[int, ...]) -> int:
    """The fewest elements over all choices of a fastest dimension and the one after it."""
    if len(sizes) == 1:
        return up(sizes[0], 128)
    return min(
        prod(order[:-2]) * up(order[-2], 8) * up(order[-1], 128) for order in permutations(sizes)
    )


def product_cycles(batch: int, m: int, k: int, n: int) -> float:
    by_n = up(n, 128) * max(up(m, 8), 64)
    by_m = up(m, 128) * max(up(n, 8), 64)
    return 2 * batch * min(by_n, by_m) * up(k, 128) / 1024


def ragged(k: int) -> float:
    return 0.0 if k % 128 == 0 else 128 / up(k, 128)


def moving(width: int, *arrays: tuple[int, ...]) -> float:
    return sum(padded(sizes) for sizes in arrays) * width / 64


SIZES = (1, 7, 8, 9, 64, 127, 128, 129, 300)


@examples(60)
@given(randoms)
def test_the_work_of_shapes(random: Random) -> None:
    a, b, c, d = (random.choice(SIZES) for _ in range(4))
    width = random.choice((1, 2, 4))
    assert least_padded((a, b, c)) == padded((a, b, c))
    assert least_padded((a,)) == up(a, 128)
    cycles = product_cycles(1, a, b, c)
    work = COSTS.work("product", (a, b, c), width)
    assert work == Work(cycles, cycles * ragged(b), 0.0, moving(width, (a, b), (b, c), (a, c)))
    batched = COSTS.work("batched-product", (d, a, b, c), width)
    assert batched == Work(*(d * part for part in work))
    for kind, arrays in (("elementwise", 3), ("reduction", 1), ("softmax", 2), ("transpose", 2)):
        found = COSTS.work(kind, (a, b, c), width)
        registers = padded((a, b, c)) / 1024
        assert found == Work(0.0, 0.0, registers, arrays * moving(width, (a, b, c)))
    found = COSTS.work("depthwise", (a, b, c, d, 3), width)
    image = padded((a, b, c, d))
    assert found == Work(0.0, 0.0, 9 * image / 1024, 2 * image * width / 64)
    found = COSTS.work("convolution", (2, a, b, c, d, 3), width)
    multiplying = product_cycles(1, 2 * a * b, c * 9, d)
    moved = moving(width, (2, a, b, c), (2, a, b, d), (3, 3, c, d))
    assert found == Work(multiplying, 0.0, 0.0, moved)


@examples(30)
@given(randoms)
def test_the_work_of_attention_and_of_rows(random: Random) -> None:
    heads, length, size = random.choice(((2, 64, 64), (3, 200, 128), (16, 2048, 64), (8, 2048, 64)))
    found = COSTS.work("attention", (2, heads, length, size), 2)
    scoring = product_cycles(2 * heads, length, size, length)
    summing = product_cycles(2 * heads, length, length, size)
    scores = 2 * heads * padded((length, length))
    # Scores beyond the 64 MiB on the chip are written and read.
    spilled = max(2 * scores - 64 * 2**20, 0)
    moved = 4 * 2 * heads * padded((length, size)) * 2 + 2 * spilled
    assert found == Work(scoring + summing, summing * ragged(length), scores / 1024, moved / 64)
    words, features, rows = random.choice(
        ((262_144, 128, 10), (262_145, 128, 10), (5, 130, 7), (262_144, 64, 3))
    )
    row_bytes = up(features, 128) * 2
    for kind, copies in (("gather", 2), ("scatter", 3)):
        moved = copies * rows * row_bytes
        if words * row_bytes <= 64 * 2**20:
            moved = words * row_bytes + (copies - 1) * rows * row_bytes
        registers = float(rows * (4 + ceil(features / 128)))
        assert COSTS.work(kind, (words, features, rows), 2) == Work(0.0, 0.0, registers, moved / 64)


def test_cycles_of_work() -> None:
    # Arithmetic of 1.5 x 4 + 0.5 x 2 + 2 x 2.5 = 12, transfers of 0.25 x 64 = 16: 100 + 20.
    assert COSTS.cycles_of_work("product", Work(4.0, 2.0, 2.5, 64.0)) == 120.0
    assert COSTS.cycles("product", (8, 8, 8)) == COSTS.cycles("product", (8, 8, 8), 2)
    assert [COSTS.knows(kind) for kind in ("product", "softmax", "gather", "other")] == [
        True, False, True, False
    ]  # fmt: skip
    assert COSTS.saved_range == SAVED_RANGE == (1 / 3, 2.0)
