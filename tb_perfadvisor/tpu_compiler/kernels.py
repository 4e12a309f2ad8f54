"""What each kernel of a compiled program costs, by the better of the compiler's two figures.

XLA notes `estimated_cycles` in fusions, and schedules bundles of instructions, one per cycle. The
note agrees with the bundles where arithmetic is the limit, but is several times too high where
memory is. So the lesser of the two counts. Neither knows how long main memory takes, so a kernel
takes at least its bytes divided by the bandwidth, and at least its FLOP divided by the peak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

from msgspec import Struct

from tb_perfadvisor.tpu_compiler.generations import Generation
from tb_perfadvisor.tpu_compiler.hlo_instruction import HloInstruction
from tb_perfadvisor.tpu_compiler.optimized_hlo import HloModule

# These name or view memory and take no time.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "async-done", "async-update", "domain", "add-dependency",
}  # fmt: skip
_FREE_CALLS = ('custom_call_target="ConcatBitcast"', 'custom_call_target="AllocateBuffer"')
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


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

    Args:
        module: The optimized module.
        bundle_cycles: Cycles of the scheduled bundles, by the name of the instruction.
        generation: What it was compiled for.
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
    if exchanges != [instruction]:
        moved = max(moved, hbm_bytes / generation.hbm_bytes_per_cycle)
    return Kernel(
        name=instruction.name,
        opcode=instruction.opcode,
        text=instruction.text,
        runs=runs,
        cycles=max(scheduled, flop / generation.flop_per_cycle, moved),
        estimated_cycles=instruction.estimated_cycles,
        bundle_cycles=bundles,
        flop=flop,
        hbm_bytes=hbm_bytes,
        is_asynchronous=instruction.opcode.endswith("-start"),
    )


def _collectives(module: HloModule, instruction: HloInstruction) -> Iterator[HloInstruction]:
    """The collectives that an instruction is or contains.

    Of a collective that runs beside several fusions, each contains a part, which costs nothing by
    itself.
    """
    if instruction.opcode.startswith(_COLLECTIVES):
        yield instruction
    elif instruction.opcode == "fusion" and "async" not in instruction.name:
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
