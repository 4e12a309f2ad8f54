"""The memory of XLA programs, by hand and from the raw messages of real profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze, load
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.xspace.decode.messages import HloProto, decode_program
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import planned_memory
from tb_perfadvisor.signals import Signals, reference_worker
from tb_perfadvisor.signals.device.memory_use import MemoryPart, program_memory
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.program import ProgramMemory
from tests.support.hlo_programs import program

MB = 1_000_000


def decoded(data: bytes) -> Any:
    return decode_program(data, Budget("program", len(data)))


def planned(**others: int) -> ProgramMemory | None:
    """A program with arguments of 8, 16, 1 and 2 MB, 3 of results, 5 of temporaries, 4 constant."""
    proto = HloProto()
    entry = proto.hlo_module.computations.add(id=7)
    proto.hlo_module.entry_computation_id = 7
    names = ("state.params['kernel']", "state.opt_state[0].mu['kernel']", "batch['x']", "")
    for number, name in enumerate(names):
        added = entry.instructions.add(id=number, opcode=b"parameter", parameter_number=number)
        added.metadata.op_name = name.encode()
    allocations = proto.buffer_assignment.buffer_allocations
    # The parameters' memory is that of a result as well.
    for number, size in enumerate((8, 16, 1, 2)):
        live = int(number == 0)
        allocations.add(size=size * MB, is_argument=1, argument_number=number, maybe_live_out=live)
    allocations.add(size=3 * MB, maybe_live_out=1)
    allocations.add(size=5 * MB)
    allocations.add(size=4 * MB, is_constant=1)
    allocations.add(size=100 * MB, color=5)  # memory of the host
    allocations.add(size=100 * MB, is_thread_local=1)  # part of a fusion
    if others:
        allocations.add(**others)
    return planned_memory("jit_step(1)", decoded(proto.SerializeToString()))


def with_programs(*memory: ProgramMemory) -> Trace:
    trace = draw("cell 1ms\nmain |oo..|\ngpu 7 |.KK.|")
    return replace(trace, program_memory=memory)


def test_arguments_are_told_apart_by_their_names() -> None:
    memory = planned()
    assert memory is not None
    # 8 + 16 + 1 + 2 of arguments, 3 + 5 + 4.
    assert memory.total_bytes == 39 * MB
    small = ProgramMemory("jit_add(2)", (), MB, 0, 0)
    use = program_memory(Signals(run_of(with_programs(small, memory))))
    assert use is not None
    assert (use.module, use.total_bytes) == ("jit_step(1)", 39 * MB)
    assert use.parts == (
        MemoryPart("parameters", 8 * MB),
        MemoryPart("optimizer state", 16 * MB),
        MemoryPart("other arguments", 3 * MB),
        MemoryPart("results", 3 * MB),
        MemoryPart("temporaries", 5 * MB),
        MemoryPart("constants", 4 * MB),
    )


def test_arguments_without_telling_names_stay_together() -> None:
    memory = ProgramMemory("jit_step(1)", (("p[0]", 2 * MB), ("x", MB)), 0, 0, 0)
    use = program_memory(Signals(run_of(with_programs(memory))))
    assert use is not None
    assert use.parts == (MemoryPart("arguments", 3 * MB),)


def test_a_program_without_a_plan_is_unknown() -> None:
    assert planned_memory("jit_step(1)", decoded(program())) is None
    assert program_memory(Signals(run_of(with_programs()))) is None


@pytest.mark.parametrize("size", [-1, 2**60])
def test_damaged_sizes_are_unknown(size: int) -> None:
    assert planned(size=size) is None


@pytest.mark.parametrize(
    ("path", "module", "parts"),
    [
        (
            "local-jax-cpu/train_dp4_sharded",
            "jit_step",
            # 512 x 512, 256 x 512, 32 x 256 and 512 x 10 numbers of 4 bytes, 32 labels.
            {
                "arguments": 4 * (512 * 512 + 256 * 512 + 32 * 256 + 512 * 10 + 32),
                # The new parameters, the loss, and a table of four pointers.
                "results": 4 * (512 * 512 + 256 * 512 + 512 * 10 + 1) + 32,
                "temporaries": 1_593_440,
            },
        ),
        (
            # Its arguments stay in the host's memory; four arrays of 5 GiB are on the device.
            "xprof-test/plugins/profile/tpu_inference_2_2cc1243f",
            "jit_f",
            {"results": 32, "temporaries": 21_474_934_784},
        ),
    ],
)
def test_real_programs(corpus: Path, path: str, module: str, parts: dict[str, int]) -> None:
    (run,) = load(corpus / path)
    use = program_memory(reference_worker(run))
    assert use is not None
    assert use.module.startswith(f"{module}(")
    found = {part.label: part.bytes for part in use.parts}
    assert {label: found.get(label) for label in parts} == parts


def test_the_key_number_of_a_real_program(corpus: Path) -> None:
    numbers = analyze(corpus / "local-jax-cpu/train_dp4_sharded").key_numbers
    (found,) = [number for number in numbers if number.id == "program-memory"]
    assert found.notes[:3] == ["arguments 1.55 MiB", "results 1.52 MiB", "temporaries 1.52 MiB"]
