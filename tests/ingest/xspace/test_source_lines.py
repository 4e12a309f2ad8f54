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
    libraries = b"/usr/lib/python3/site-packages"
    layer, update = (libraries + file for file in (b"/flax/linen/linear.py", b"/optax/adam.py"))
    index.file_names.extend([b"/home/me/main.py", b"/home/me/models/kmeans.py", layer, update])
    index.file_locations.add(file_name_id=1, line=72)
    index.file_locations.add(file_name_id=2, line=32)
    index.stack_frames.add(file_location_id=1)
    index.stack_frames.add(file_location_id=2, parent_frame_id=1)
    index.file_locations.add(file_name_id=3, line=700)
    index.stack_frames.add(file_location_id=3, parent_frame_id=2)
    # Whose frames form a circle.
    index.file_locations.add(file_name_id=4, line=5)
    index.stack_frames.add(file_location_id=4, parent_frame_id=4)
    instruction = added(found.computations.add(id=1), 1, "add", shape="8")
    instruction.metadata.stack_frame_id = frame
    return found


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (1, "me/main.py:72"),
        (2, "models/kmeans.py:32"),
        (3, "models/kmeans.py:32"),
        (4, "optax/adam.py:5"),
        (0, ""),
        (5, ""),
    ],
)
def test_a_frame_names_the_innermost_line_of_the_user(frame: int, line: str) -> None:
    program = module(frame)
    assert source_line(program, program.computations[0].instructions[0]) == line


def test_a_line_that_the_instruction_names_counts() -> None:
    program = module(2)
    instruction = program.computations[0].instructions[0]
    instruction.metadata.source_file, instruction.metadata.source_line = b"train.py", 37
    assert source_line(program, instruction) == "train.py:37"
