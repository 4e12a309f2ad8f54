"""Attention on a TPU over a sequence that is one position longer than whole tiles, and over 512.

The operations and their durations are those of XLA's compiler, asked once by
`tpu_program.py`. No TPU has run them.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
from msgspec.structs import replace

from demo_logs.record.compiled import CompiledSchedule

PADDED = 513
"""A sequence of 512 tokens and one in front of them: XLA picks tiles that are mostly padding."""
FITTING = 512


def file_of(length: int) -> Path:
    """Where the answer of the compiler for a length of the sequence is kept."""
    return Path(__file__).with_name(f"attention_{length}.json")


def tpu_attention(length: int) -> CompiledSchedule:
    """The program as it is compiled for a TPU v6e.

    Args:
        length: `PADDED` or `FITTING`.
    """
    schedule = msgspec.json.decode(file_of(length).read_bytes(), type=CompiledSchedule)
    return replace(schedule, hlo_proto=zlib.decompress(schedule.hlo_proto))


def store(schedule: CompiledSchedule, length: int) -> None:
    """Keep the answer of the compiler for a length of the sequence, with a compressed proto."""
    packed = replace(schedule, hlo_proto=zlib.compress(schedule.hlo_proto, 9))
    file_of(length).write_bytes(msgspec.json.encode(packed))
