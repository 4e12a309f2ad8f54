"""What a compiler says about a program: its operations in order, and how long each takes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Channel = Literal["memory", "host", "links"]
"""What a transfer uses: the chip's main memory, the link to the host, or those to other chips."""


class CompiledOperation(Struct, frozen=True, omit_defaults=True):
    """An operation of an optimized program."""

    name: str
    text: str
    """HLO text with the shapes of results and operands, as profiles show it."""
    category: str
    """XProf's category: loop fusion, data formatting, …"""
    duration_ps: int = 0
    """How long the core executes it; of a `while`, only what its body does not say."""
    memory_ps: int = 0
    """The part of it in which the operation itself uses all bandwidth of the main memory."""
    transfer_ps: int = 0
    """How long the transfer takes that this operation starts, if nothing else uses its channel."""
    channel: Channel = "memory"
    """What the transfer uses."""
    waits_for: str = ""
    """The operation that started the transfer whose end this one waits for."""
    flop: int = 0
    traffic_bytes: int = 0
    path: str = ""
    """Such as `jit(step)/dot_general`."""
    source: str = ""
    """Such as `train.py:37`."""
    trips: int = 1
    """How often the body runs."""
    body: tuple[CompiledOperation, ...] = ()
    """The operations inside a loop."""


class CompiledSchedule(Struct, frozen=True, omit_defaults=True):
    """A program as it is compiled for a device."""

    module: str
    """Such as `jit_train_step`."""
    device: str
    """As the profiler names it: `TPU v6 Lite`."""
    compiler: str
    """Its name and version."""
    operations: tuple[CompiledOperation, ...]
    hlo_proto: bytes
    """The serialized `HloModuleProto`."""
    chips: int = 1
    """How many chips execute it together."""
