"""The fields of a Kineto file that are used; the decoder skips everything else.

Fields are `Any` if some files contain other types (numbers as strings, integers beyond 64 bits),
because a typed field would reject the whole chunk.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from tb_perfadvisor.ingest.json_trace.document import ABSENT
from tb_perfadvisor.patterns import regex

# At least 2^43 (8 796 093 022 208) microseconds, with a fraction.
_LONG_START = regex(rb'"ts"\s*:\s*"?(?:\d{14,}|9\d{12}|8[89]\d{11}|879\d{10})\.\d')

_SPELLING = {
    "external_id": "External id",
    "input_dims": "Input Dims",
    "old_input_dims": "Input dims",
    "input_type": "Input type",
    "input_values": "Concrete Inputs",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "module_hierarchy": "Module Hierarchy",
    "call_stack": "Call stack",
    "registers": "registers per thread",
    "shared_memory": "shared memory",
    "occupancy": "est. achieved occupancy %",
    "warps_per_multiprocessor": "warps per SM",
    "python_id": "Python id",
    "python_parent": "Python parent id",
    "address": "Addr",
    "change": "Bytes",
    "device_type": "Device Type",
    "device_id": "Device Id",
    "allocated": "Total Allocated",
    "reserved": "Total Reserved",
    "collective": "Collective name",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group_size": "Group size",
    "group": "Process Group Name",
    "description": "Process Group Description",
    "ranks": "Process Group Ranks",
    "collective_sequence": "Seq",
    "counter": "",
}


class Arguments(msgspec.Struct, gc=False, rename=_SPELLING):
    """`args` of an event."""

    name: Any = None
    """The name of the process or thread, in metadata events; of device work in CUDA graphs, what
    `mark_kernels` called it when the graph was captured."""
    external_id: Any = -1
    correlation: Any = -1
    device: Any = -1
    stream: Any = -1
    # Operators.
    input_dims: msgspec.Raw = ABSENT
    old_input_dims: msgspec.Raw = ABSENT
    input_type: msgspec.Raw = ABSENT
    input_values: msgspec.Raw = ABSENT
    sequence: Any = -1
    forward_thread: Any = -1
    module_hierarchy: Any = None
    call_stack: Any = None
    # Frames of Python.
    python_id: Any = -1
    python_parent: Any = -1
    # Calls of the runtime.
    kernel: Any = None
    # Kernels and copies.
    grid: msgspec.Raw = ABSENT
    block: msgspec.Raw = ABSENT
    registers: Any = -1
    shared_memory: Any = -1
    occupancy: Any = None
    warps_per_multiprocessor: Any = None
    bytes: Any = None
    size: Any = None
    direction: Any = None
    # Memory.
    address: Any = -1
    change: Any = 0
    device_type: Any = -1
    device_id: Any = -1
    allocated: Any = -1
    reserved: Any = -1
    # Collectives.
    collective: Any = None
    in_elements: Any = -1
    out_elements: Any = -1
    group_size: Any = -1
    dtype: Any = None
    group: Any = None
    description: Any = None
    ranks: Any = None
    collective_sequence: Any = -1
    # Samples of hardware counters, whose values have an empty name.
    counter: Any = None


class Event(msgspec.Struct, gc=False):
    """One entry of `traceEvents`."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments | None = None


class ExactEvent(Event, gc=False):
    """An event whose start has more digits than a float64.

    Some versions wrote absolute microseconds with a fraction. Decimals are several times slower,
    so only files that need them use this type.
    """

    ts: Decimal | None = None


def event_type(head: bytes) -> type[Event]:
    """The type to decode events to, according to the starts of the first events."""
    return ExactEvent if _LONG_START.search(head) else Event
