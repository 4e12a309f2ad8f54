"""Programs of XLA for rules that read them, written as HLO text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.testing import draw
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.hlo_text import Shape, parse_instruction
from tb_perfadvisor.trace.program import Loop, Program

MODULE = "jit_step(1)"
SLOW = """
    cell 100us
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXXXXXssss|XXXXXXssss|
"""
FIXED = """
    cell 100us
    step  |.......|.......|
    main  |LSSSSSS|LSSSSSS|
    tpu 0 |XXXXXXs|XXXXXXs|
"""
_NOTE = re.compile(r"\s*//\s*(.*)$")
_NUMBER = re.compile(r" constant\((-?[\d.einf+-]+)\)")
_DIMENSIONS = re.compile(r" (?:broadcast|transpose|iota)\(.*dimensions?=\{?([0-9,]+)")


def program(text: str, devices: int = 1) -> Program:
    """A program of one instruction a line; a loop's state may be read before it is computed.

    Notes follow `//`: `in NAME` names the fusion that an instruction is in, `result` says that the
    program returns it, `aliased` that a result takes the memory of an argument, `parts=4` that an
    argument is split, and `runs=16` that a loop computes a value so often. What runs equally often
    is in one loop.
    """
    rows: dict[str, int] = {}
    opcodes, kernels, shapes, notes, reads = [], [], [], [], []
    texts: dict[int, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        note = _NOTE.search(line)
        instruction = _NOTE.sub("", line)
        parsed = parse_instruction(instruction)
        assert parsed is not None, line
        row, name = len(rows), instruction.partition(" = ")[0].lstrip("%")
        rows[name] = row
        reads += [(of, row, slot) for slot, of in enumerate(parsed.operand_names)]
        inside = re.search(r"\bin ([\w.\-]+)", note[1]) if note else None
        opcodes.append(parsed.opcode)
        kernels.append(inside[1] if inside else name)
        shapes.append(parsed.results[0] if parsed.results else Shape("", (), ()))
        notes.append(note[1] if note else "")
        texts[row] = instruction
    runs = [re.search(r"runs=(\d+)", note) for note in notes]
    counts = [float(found[1]) if found else 1.0 for found in runs]
    trips_of_loops = sorted({count for count in counts if count > 1})
    edges = [(rows[of], row, slot) for of, row, slot in reads]
    columns = np.array(edges, dtype=np.int32).reshape(-1, 3).T
    arguments = [opcode == "parameter" for opcode in opcodes]
    parts = [re.search(r"parts=(\d+)", note) for note in notes]
    return Program(
        module=MODULE,
        devices=devices,
        opcodes=tuple(opcodes),
        opcode=np.arange(len(opcodes), dtype=np.int32),
        shapes=tuple(shapes),
        shape=np.arange(len(shapes), dtype=np.int32),
        kernels=tuple(kernels),
        kernel=np.arange(len(kernels), dtype=np.int32),
        runs=np.array(counts),
        loops=tuple(Loop(trips, -1) for trips in trips_of_loops),
        loop=np.array([trips_of_loops.index(n) if n > 1 else -1 for n in counts], dtype=np.int32),
        argument=np.where(arguments, np.arange(len(opcodes)), -1).astype(np.int32),
        parts=np.array([int(found[1]) if found else 1 for found in parts], dtype=np.int32),
        is_aliased=np.array(["aliased" in note for note in notes]),
        is_result=np.array(["result" in note for note in notes]),
        sources=columns[0],
        targets=columns[1],
        slots=columns[2],
        texts=texts,
        numbers={
            row: float(found[1]) for row, text in texts.items() if (found := _NUMBER.search(text))
        },
        dimensions={row: dims for row, text in texts.items() if (dims := _dimensions(text))},
        groups={
            row: devices
            for row, opcode in enumerate(opcodes)
            if opcode.startswith(("all-", "collective-"))
        },
        paths={},
        lines=dict.fromkeys(range(len(opcodes)), "model.py:37"),
    )


def _dimensions(text: str) -> tuple[int, ...]:
    found = _DIMENSIONS.search(text)
    return tuple(map(int, filter(None, found[1].split(",")))) if found else ()


def drawn(drawing: str, operation: str, program: Program, **columns: Any) -> Trace:
    """A drawing whose `s` is an operation of a program.

    Args:
        drawing: Such as `SLOW`.
        operation: HLO text of what the core executes.
        program: The program.
        columns: Of the operation's row in the `HloTable`.
    """
    name = operation.partition(" = ")[0].lstrip("%")
    symbol = xla_op(name, operation, module=MODULE, **columns)
    trace = draw(drawing, legend={"s": symbol}, device="TPU v5 lite")
    return replace(trace, programs=(program,))
