"""Turns what XLA's compiler says about a program into the schedule of a profile."""

from __future__ import annotations

import re

from demo_logs.record.compiled import CompiledOperation, CompiledSchedule
from demo_logs.record.compiled.schedule import Channel
from tb_perfadvisor.tpu_compiler.compiler import CompiledProgram
from tb_perfadvisor.tpu_compiler.generations import GENERATIONS, Generation
from tb_perfadvisor.tpu_compiler.kernels import Kernel
from tb_perfadvisor.tpu_compiler.optimized_hlo import HloInstruction, HloModule, parse_module

# In XProf's `tpu_inference_2` (v6e), 5.37 GB cross the link to the host in 194 ms.
_HOST_BYTES_PER_S = 27.7e9
_HOST_MEMORY, _ON_CHIP = 5, 1
_DEVICES = {"v5e": "TPU v5 lite", "v6e": "TPU v6 Lite"}
"""As profilers name them, if not like the device table."""
_FREE = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
        *("partition-id", "replica-id", "opt-barrier", "domain", "add-dependency"),
    }
)
_ALLOCATION = 'custom_call_target="AllocateBuffer"'
_COLLECTIVE = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|async-collective)"
)
_ELEMENTWISE = frozenset(
    {
        *("abs", "add", "and", "ceil", "clamp", "compare", "convert", "cosine", "divide"),
        *("exponential", "floor", "log", "maximum", "minimum", "multiply", "negate", "not", "or"),
        *("power", "remainder", "rsqrt", "select", "shift-left", "shift-right-logical", "sign"),
        *("sine", "sqrt", "subtract", "tanh", "xor", "bitcast-convert", "popcnt"),
    }
)
_FUSIONS = {"kLoop": "loop fusion", "kInput": "input fusion", "kOutput": "output fusion"}
_DETAILS = re.compile(r", (?:metadata|backend_config)=.*$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE_AND_LINE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_QUOTED = re.compile(r'^(\d+) "(.*)"$')
_NUMBERED = re.compile(r"^(\d+) \{(.*)\}$")


def schedule_of(
    program: CompiledProgram, generation: Generation, chips: int = 1
) -> CompiledSchedule:
    """The schedule of a compiled program.

    Args:
        program: What the compiler says about it.
        generation: What it was compiled for.
        chips: How many chips execute it together.
    """
    return CompiledSchedule(
        module=program.hlo_text.partition(",")[0].removeprefix("HloModule ").strip(),
        device=_DEVICES.get(generation.name, generation.device),
        compiler=f"XLA's TPU compiler (libtpu {program.libtpu}, jax {program.jax})",
        operations=_Schedule(program, generation).operations(),
        hlo_proto=program.hlo_proto,
        chips=chips,
    )


def generation_named(name: str) -> Generation:
    """A generation of TPUs; raises KeyError for an unknown name."""
    return GENERATIONS[name]


class _Schedule:
    def __init__(self, program: CompiledProgram, generation: Generation) -> None:
        self._module: HloModule = parse_module(program.hlo_text)
        self._kernels = {kernel.name: kernel for kernel in program.kernels}
        self._ps_per_cycle = 1e12 / generation.clock_hz
        self._ps_per_byte = self._ps_per_cycle / generation.hbm_bytes_per_cycle
        self._lines = source_lines(program.hlo_text)

    def operations(self) -> tuple[CompiledOperation, ...]:
        return self._of(self._module.entry)

    def _of(self, computation: str) -> tuple[CompiledOperation, ...]:
        started: set[str] = set()
        found = []
        for instruction in self._module.computations[computation]:
            if instruction.opcode in _FREE or _ALLOCATION in instruction.line:
                continue
            operation = self._operation(instruction, started)
            if operation.transfer_ps:
                started.add(operation.name)
            found.append(operation)
        return tuple(found)

    def _operation(self, instruction: HloInstruction, started: set[str]) -> CompiledOperation:
        kernel = self._kernels.get(instruction.name)
        path = _OP_NAME.search(instruction.line)
        operation = {
            "name": instruction.name,
            "text": _DETAILS.sub("", instruction.text),
            "category": self._category(instruction),
            "path": path[1] if path else "",
            "source": self._source(instruction),
        }
        if instruction.opcode in ("while", "call") and instruction.called:
            body = self._of(instruction.called)
            return CompiledOperation(**operation, body=body, trips=instruction.trips or 1)
        # Between the halves of a collective are the fusions that it runs beside.
        half = instruction.name.replace("collective-done", "collective-start")
        names = (half, *instruction.parsed.operand_names)
        waited = [name for name in names if name in started]
        if waited and _is_half(instruction, "done"):
            return CompiledOperation(**operation, waits_for=waited[-1])
        if kernel is None:
            return CompiledOperation(**operation)
        if _is_half(instruction, "start"):
            channel, transfer_ps = self._transfer(instruction, kernel)
            return CompiledOperation(**operation, channel=channel, transfer_ps=transfer_ps)
        return CompiledOperation(
            **operation,
            duration_ps=round(kernel.cycles * self._ps_per_cycle),
            memory_ps=round(kernel.hbm_bytes * self._ps_per_byte),
            flop=round(kernel.flop),
            traffic_bytes=kernel.hbm_bytes + _on_chip_bytes(instruction),
        )

    def _transfer(self, instruction: HloInstruction, kernel: Kernel) -> tuple[Channel, int]:
        shapes = (*instruction.parsed.results, *instruction.parsed.operands)
        if any(shape.memory_space == _HOST_MEMORY for shape in shapes):
            # Of a slice of an array in host memory, only the slice moves.
            size = min(shape.padded_bytes for shape in shapes if shape.dims)
            return "host", round(size / _HOST_BYTES_PER_S * 1e12)
        inside = self._module.computations.get(instruction.called, ())
        names = (instruction.name, instruction.opcode, *(member.opcode for member in inside))
        is_collective = any(_COLLECTIVE.match(name) for name in names)
        channel: Channel = "links" if is_collective else "memory"
        return channel, max(round(kernel.cycles * self._ps_per_cycle), 1)

    def _category(self, instruction: HloInstruction) -> str:
        """XProf's category, as profiles of TPUs have it."""
        opcode = instruction.opcode
        if opcode in ("copy", "transpose", "reshape"):
            return "data formatting"
        if opcode in _ELEMENTWISE:
            return "non-fusion elementwise"
        if opcode != "fusion":
            return opcode
        if self._module.flop(instruction):
            return "convolution fusion"
        if "all-reduce-scatter" in instruction.called:
            return "all-reduce-scatter fusion"
        kind = re.search(r"\bkind=(\w+)", instruction.line)
        return _FUSIONS.get(kind[1] if kind else "", "custom fusion")

    def _source(self, instruction: HloInstruction) -> str:
        place = _FILE_AND_LINE.search(instruction.line)
        if place:
            return f"{place[1]}:{place[2]}"
        frame = _FRAME.search(instruction.line)
        return self._lines.get(int(frame[1]), "") if frame else ""


def _is_half(instruction: HloInstruction, half: str) -> bool:
    """Whether an instruction is the `start` or the `done` of something asynchronous."""
    if instruction.opcode == "fusion":
        return f"-{half}" in instruction.name
    return instruction.opcode.endswith(f"-{half}")


def _on_chip_bytes(instruction: HloInstruction) -> int:
    shapes = (*instruction.parsed.results, *instruction.parsed.operands)
    return sum(shape.padded_bytes for shape in shapes if shape.memory_space == _ON_CHIP)


def source_lines(hlo_text: str) -> dict[int, str]:
    """The lines of stack frames, as the tables at the beginning of a module give them.

    Returns:
        `train.py:37` by number of the frame.
    """
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] = {}
    for line in hlo_text.splitlines():
        if line.startswith(("ENTRY", "%")):
            break
        if row := _QUOTED.match(line) or _NUMBERED.match(line):
            table[int(row[1])] = row[2]
        elif line:
            table = tables.setdefault(line, {})
    files, places = tables.get("FileNames", {}), tables.get("FileLocations", {})
    return {
        number: f"{files.get(_number(place, 'file_name_id'), '')}:{_number(place, 'line')}"
        for number, frame in tables.get("StackFrames", {}).items()
        if (place := places.get(_number(frame, "file_location_id"), ""))
    }


def _number(fields: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", fields)
    return int(found[1]) if found else 0
