"""Where instructions come from: named by themselves, or by a frame of a table."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import source_line
from tests.support.hlo_programs import added


def module(frame: int) -> Any:
    """A program whose second frame is line 32 of the second file."""
    found = HloProto().hlo_module
    index = found.stack_frame_index
    index.file_names.extend([b"/home/me/main.py", b"/home/me/models/kmeans.py"])
    index.file_locations.add(file_name_id=1, line=72)
    index.file_locations.add(file_name_id=2, line=32)
    index.stack_frames.add(file_location_id=1)
    index.stack_frames.add(file_location_id=2)
    instruction = added(found.computations.add(id=1), 1, "add", shape="8")
    instruction.metadata.stack_frame_id = frame
    return found


@pytest.mark.parametrize(
    ("frame", "line"), [(2, "models/kmeans.py:32"), (1, "me/main.py:72"), (0, ""), (3, "")]
)
def test_a_frame_names_the_innermost_line(frame: int, line: str) -> None:
    program = module(frame)
    assert source_line(program, program.computations[0].instructions[0]) == line


def test_a_line_that_the_instruction_names_counts() -> None:
    program = module(2)
    instruction = program.computations[0].instructions[0]
    instruction.metadata.source_file, instruction.metadata.source_line = b"train.py", 37
    assert source_line(program, instruction) == "train.py:37"
