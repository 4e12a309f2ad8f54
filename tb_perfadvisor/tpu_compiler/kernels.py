"""What each kernel of a compiled program costs, by the better of the compiler's two figures.

XLA notes `estimated_cycles` in fusions, and schedules bundles of instructions, one per cycle. The
note agrees with the bundles where arithmetic is the limit, but is several times too high where
memory is. So the lesser of the two counts. Neither knows how long main memory takes, so a kernel
takes at least its bytes divided by the bandwidth, and at least its FLOP divided by the peak. Nor do
the bundles tell how often a loop over the rows of a gather runs, so each row counts on its own.

Counts the scheduled instruction bundles of kernels, which the compiler dumps as text.

A TPU core issues a bundle of instructions per cycle. The dump has one bundle per line:

    0x4 LB: > { %s12 = sadd.s32 1, %s11 ;; … } /* Start region 24567 :: Start region 22 */
    0x5   : > { %p9_p0 = scmp.ge.s32.totalorder %s12, 10 /* loop exit test */ }
    0x6   :  { %11 = sbr.rel (!%p9_p0) target = $region24567 }

`LB` begins the body of a loop, whose last bundle branches back to a region that begins there. The
counter starts at 0, so the exit test states the number of trips. Bundles that are skipped in some
trips count in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.tpu_compiler.generations import Generation
from tb_perfadvisor.tpu_compiler.optimized_hlo import HloInstruction, HloModule, is_off_chip
from tb_perfadvisor.trace.hlo_text import Instruction

# These name or view memory and take no time.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "async-done", "async-update", "domain", "add-dependency",
}  # fmt: skip
_FREE_CALLS = ('custom_call_target="ConcatBitcast"', 'custom_call_target="AllocateBuffer"')
# Of libtpu 0.0.52, for v5e, v5p and v6e: 2.2 to 16 cycles for a row of a gather, and 8.7 to 69 of a
# scatter. The least are those of tables on the chip.
_ROW_CYCLES = {"gather": (2, 5), "scatter": (8, 8)}
"""Cycles of a row that is gathered or scattered: in memory on the chip, and in main memory."""
_SCATTERED = "all-reduce-scatter"
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_SLICE_SIZES = r"slice_sizes=\{([0-9,]*)\}"
_WINDOW_DIMS = r"update_window_dims=\{([0-9,]*)\}"


class Kernel(Struct, frozen=True):
    """An instruction that takes time on the device."""

    name: str
    opcode: str
    text: str
    """HLO text with the shapes of results and operands, as profiles show it."""
    runs: int
    """How often it runs in one execution of the program."""
    cycles: float
    """Estimate for one run."""
    estimated_cycles: int | None
    """What the compiler notes."""
    bundle_cycles: int | None
    """Instruction bundles, each times the trips of the loops around it."""
    flop: float
    """Of its matrix products, without padding."""
    hbm_bytes: int
    """Moved from and to main memory, with all tiles."""
    is_asynchronous: bool
    """Whether it only starts a copy or collective that runs beside other kernels."""


def kernels_of(
    module: HloModule, bundle_cycles: Mapping[str, int], generation: Generation
) -> tuple[Kernel, ...]:
    """The kernels of a module, in the order in which they are scheduled.

    The module is the optimized one. `bundle_cycles` are those of the scheduled bundles, by the
    name of the instruction.
    """
    return tuple(
        _kernel(module, instruction, runs, bundle_cycles, generation)
        for instruction, runs in module.executed
        if not _is_free(instruction)
    )


def _is_free(instruction: HloInstruction) -> bool:
    if instruction.opcode == "custom-call":
        return any(target in instruction.line for target in _FREE_CALLS)
    return instruction.opcode in _FREE or instruction.opcode.endswith("-done")


def _kernel(
    module: HloModule,
    instruction: HloInstruction,
    runs: int,
    bundle_cycles: Mapping[str, int],
    generation: Generation,
) -> Kernel:
    flop, hbm_bytes = module.flop(instruction), module.hbm_bytes(instruction)
    bundles = bundle_cycles.get(instruction.name)
    figures = [cycles for cycles in (instruction.estimated_cycles, bundles) if cycles]
    scheduled = float(min(figures, default=0))
    exchanges = list(_collectives(module, instruction))
    moved = sum(_collective_cycles(exchange, generation) for exchange in exchanges)
    if instruction.called.startswith(_SCATTERED):
        moved /= 2  # an all-reduce of which each device keeps its part is never gathered
    moved = max(moved, _of_rows(module, instruction))
    if exchanges != [instruction]:
        moved = max(moved, hbm_bytes / generation.hbm_bytes_per_cycle)
    return Kernel(
        name=instruction.name,
        opcode=instruction.opcode,
        text=instruction.text,
        runs=runs,
        cycles=max(
            scheduled, flop / generation.flop_per_cycle, moved, _of_rows(module, instruction)
        ),
        estimated_cycles=instruction.estimated_cycles,
        bundle_cycles=bundles,
        flop=flop,
        hbm_bytes=hbm_bytes,
        is_asynchronous=instruction.opcode.endswith("-start") or _starts_collective(instruction),
    )


def _starts_collective(instruction: HloInstruction) -> bool:
    """Whether a fusion starts a collective, parts of which run beside other fusions."""
    return instruction.opcode == "fusion" and "async-collective-start" in instruction.name


def _of_rows(module: HloModule, instruction: HloInstruction) -> float:
    """Cycles that gathering or scattering the rows of a table takes at least."""
    is_fusion = instruction.opcode == "fusion"
    members = module.computations.get(instruction.called, ()) if is_fusion else (instruction,)
    table = max(instruction.parsed.operands, key=lambda shape: shape.elements, default=None)
    cycles = 0
    for member in members:
        if table is not None and member.opcode in _ROW_CYCLES:
            cycles += moved_rows(member.parsed) * _ROW_CYCLES[member.opcode][is_off_chip(table)]
    return float(cycles)


def moved_rows(instruction: Instruction) -> int:
    """How many slices a gather reads, or a scatter writes, wherever the indices say."""
    if instruction.opcode == "gather":
        sizes = re.search(_SLICE_SIZES, instruction.attributes)
        whole, of_row = instruction.results[0].elements, sizes[1] if sizes else ""
        return whole // max(prod(int(size) for size in of_row.split(",") if size), 1)
    updates = instruction.operands[2:3]
    dims = re.search(_WINDOW_DIMS, instruction.attributes)
    if not updates or dims is None:
        return 0
    inside = {int(dim) for dim in dims[1].split(",") if dim}
    return prod(size for dim, size in enumerate(updates[0].dims) if dim not in inside)


def _collectives(module: HloModule, instruction: HloInstruction) -> Iterator[HloInstruction]:
    """The collectives that an instruction is or contains.

    A collective that runs beside several fusions is inside all of them, and inside of a fusion that
    starts it, to which its time belongs.
    """
    if instruction.opcode.startswith(_COLLECTIVES):
        yield instruction
    elif instruction.opcode == "fusion" and (
        _starts_collective(instruction)
        or not any("async" in name for name in (instruction.name, instruction.called))
    ):
        for member in module.computations.get(instruction.called, ()):
            yield from _collectives(module, member)


def _collective_cycles(instruction: HloInstruction, generation: Generation) -> float:
    """Cycles of a collective over one axis of the mesh, around its ring in both directions."""
    devices = group_size(instruction.parsed.attributes)
    shapes = (*instruction.parsed.results, *instruction.parsed.operands)
    largest = max((shape.padded_bytes for shape in shapes), default=0)
    rounds = (devices - 1) / devices
    if instruction.opcode.startswith("all-reduce"):
        rounds *= 2  # a reduce-scatter, then an all-gather
    elif instruction.opcode.startswith("collective-permute"):
        rounds = 1.0
    return largest * rounds / (2 * generation.link_bytes_per_cycle)


def group_size(attributes: str) -> int:
    """Devices in a group of a collective, in any of HLO's notations; 2 if they are not stated.

    `replica_groups={{0,1},{2,3}}`, `replica_groups=[2,4]<=[8]` (two groups of four), and
    `replica_groups=mesh['x'=2,'y'=4] {'y'}`.
    """
    _, _, groups = attributes.partition("replica_groups=")
    if listed := re.match(r"\{\{([0-9,]+)\}", groups):
        return listed[1].count(",") + 1
    if iota := re.match(r"\[\d+,(\d+)\]<=", groups):
        return int(iota[1])
    if mesh := re.match(r"mesh\[([^\]]*)\] *\{([^}]*)\}", groups):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'([^']+)'", mesh[2])
        if axes and all(axis in sizes for axis in axes):
            return prod(int(sizes[axis]) for axis in axes)
    return 2


_BUNDLE = regex(r"^ *(?:0x[0-9a-f]+|\d+) +(LB|[A-Z]{2})? *:")
_STARTED = regex(r"Start(?:/End empty)? region (\d+)")
_BRANCH = regex(r"sbr\.rel \(!?(%\w+)\) target = \$region(\d+)")
_EXIT_TEST = regex(r"(%\w+) = scmp\.ge\.s32\.totalorder %\w+, (\d{1,9})\b")
# Equal kernels are scheduled once.
_EQUIVALENT = regex(r"^key:(.+)\nordinal:\d+\nequivalent_hlos.*:\n((?:  .+\n)*)", re.MULTILINE)
# 1795372218314570156-fusion.2-01-final_bundles.txt
_FILE = regex(r"\d+-(.+)-\d+-final_bundles\.txt")


def dumped_cycles(folder: Path) -> dict[str, int]:
    """Cycles of each kernel whose bundles were dumped to a folder, by the instruction's name."""
    cycles = {}
    for path in sorted(folder.glob("*-final_bundles.txt")):
        match = _FILE.fullmatch(path.name)
        if match is not None and not match[1].startswith("<") and match[1] != "TLP":
            cycles[match[1]] = count_cycles(_text(path))
    for path in folder.glob("*-deduplication-map.txt"):
        for name, equivalents in _EQUIVALENT.findall(_text(path)):
            if name in cycles:
                cycles.update(dict.fromkeys(equivalents.split(), cycles[name]))
    return cycles


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def count_cycles(text: str) -> int:
    """Cycles of a kernel: its bundles, each times the trips of the loops around it.

    A loop whose number of trips is not in the text counts once.
    """
    loops: dict[str, int] = {}
    exits: dict[str, int] = {}
    cycles: list[int] = []
    for line in text.splitlines():
        bundle = _BUNDLE.match(line)
        if bundle is None:
            continue
        if bundle[1] == "LB":
            loops.update(dict.fromkeys(_STARTED.findall(line), len(cycles)))
        cycles.append(1)
        exits.update((name, int(limit)) for name, limit in _EXIT_TEST.findall(line))
        for name, region in _BRANCH.findall(line):
            start = loops.pop(region, None)
            if start is not None:
                # Of a nest, inner loops end first.
                trips = max(exits.get(name, 1), 1)
                cycles[start:] = [trips * sum(cycles[start:])]
    return sum(cycles)
