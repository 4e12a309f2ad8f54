"""Where an XLA program says that an instruction comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tb_perfadvisor.ingest.xspace.interpret.hlo.instruction_text import decoded


def source_line(module: Any, instruction: Any) -> str:
    """File and line, such as `train.py:37`; empty if the program does not tell.

    Instructions used to name them. Now they name a frame of a table, which holds the frames of all
    stacks. Numbers count from 1. Of a file in the table, the last folder is kept: its path is that
    of the machine.

    Args:
        module: The program.
        instruction: One of its instructions.
    """
    metadata = instruction.metadata
    if metadata.source_file:
        return f"{decoded(metadata.source_file)}:{metadata.source_line}"
    index = module.stack_frame_index
    frame = _numbered(index.stack_frames, int(metadata.stack_frame_id))
    place = _numbered(index.file_locations, int(frame.file_location_id)) if frame else None
    name = _numbered(index.file_names, int(place.file_name_id)) if place else None
    return f"{_short(decoded(name))}:{place.line}" if name and place else ""


def _short(path: str) -> str:
    return "/".join(path.replace("\\", "/").rsplit("/", 2)[-2:])


def _numbered(rows: Sequence[Any], number: int) -> Any | None:
    return rows[number - 1] if 0 < number <= len(rows) else None
