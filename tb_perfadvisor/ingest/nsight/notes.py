"""Notes on an export itself."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.ingest.nsight.database import Database
from tb_perfadvisor.ingest.nsight.device_work import DeviceWork
from tb_perfadvisor.ingest.nsight.host_work import Processes
from tb_perfadvisor.note import Note

RECORD: Final = (
    "nsys profile --trace=cuda,nvtx,osrt --pytorch=autograd-shapes-nvtx --cuda-graph-trace=node"
)
"""The command that records what the analysis can use."""
_WARNINGS: Final = (2, 3)
"""Warnings and errors."""
_MOST_WARNINGS: Final = 3
_MOST_LETTERS: Final = 300


def notes_of(
    database: Database, work: DeviceWork, processes: Processes, *, lacks_operators: bool
) -> tuple[Note, ...]:
    """All notes, in descending order of severity."""
    notes = []
    if not work.process.size:
        notes.append(
            Note(
                "empty-profile",
                "error",
                "Nsight Systems recorded no work of a GPU.",
                f"Record with `{RECORD}`.",
            )
        )
    elif not work.kernels["start"].size and not work.graphs["start"].size:
        notes.append(
            Note(
                "no-kernels",
                "warning",
                "Nsight Systems recorded copies and fills, but no kernel: the program had not begun"
                " its work, or the recording ended before.",
                "Record longer, and after the start of the program.",
            )
        )
    if work.graphs["start"].size:
        notes.append(
            Note(
                "whole-graphs",
                "warning",
                f"{work.graphs['start'].size:,} launches of CUDA graphs were recorded as a whole, "
                "so the kernels inside of them are unknown.",
                "Record with `--cuda-graph-trace=node`.",
            )
        )
    elif work.process.size and lacks_operators:
        notes.append(
            Note(
                "no-operators",
                "info",
                "The recording has no operators, so kernels are known by their names only.",
                "For a PyTorch program, record with `--pytorch=autograd-shapes-nvtx`.",
            )
        )
    if processes.ranks and not processes.are_ranks_stated:
        notes.append(
            Note(
                "numbered-ranks",
                "info",
                f"{len(processes.ranks)} processes use GPUs. Their ranks are not recorded: they "
                "are numbered in the order of their GPUs.",
            )
        )
    return (*notes, *_warnings(database))


def _warnings(database: Database) -> list[Note]:
    """What Nsight Systems itself says is missing."""
    rows = database.rows("DIAGNOSTIC_EVENT", {"severity": int, "text": str})
    said = (text for severity, text in rows if severity in _WARNINGS and text)
    texts = [*dict.fromkeys(" ".join(text.split()) for text in said)]  # some have several lines
    return [
        Note("recorder-warning", "info", f"Nsight Systems: {text[:_MOST_LETTERS]}")
        for text in texts[:_MOST_WARNINGS]
    ]
