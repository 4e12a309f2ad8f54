"""All-gathers of sharded parameters: for which pass, and why compute does not hide them.

FSDP2 annotates what it does with the module (torch/distributed/fsdp/_fully_shard/
_fsdp_param_group.py): `FSDP::all_gather (layers.1)` inside `FSDP::pre_forward (layers.1)`, or
inside that of another module if the program asks for a prefetch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.core.placement import innermost_marked
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.ranks.window_roles import has_role
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

LATE: Final = 0.1
"""A gather of which compute hides less began when nothing was left to hide it."""
_BACKWARD: Final = re.compile(
    r"autograd::engine::evaluate_function|FSDP::(?:pre_backward|backward_prefetch)"
    r"|\w+Backward\d*$|.*(?:_pre_backward_hook|_backward_prefetch)"
)
_GATHER: Final = re.compile(r"FSDP::all_gather \((.*)\)$")
_FORWARD: Final = re.compile(r"FSDP::pre_forward \((.*)\)$")


class ShardGathers(Struct, frozen=True):
    """All-gathers of sharded parameters in the used window whose launches were recorded."""

    forward: int
    backward: int
    """Gathered again, because the program gave the whole parameters up after the forward pass."""
    prefetched: int | None
    """Of those for the forward pass, how many another module's hook launched; None without FSDP2's
    annotations."""


@memoized
def shard_gathers(signals: Signals) -> ShardGathers | None:
    """The all-gathers of sharded parameters; None if no launch of any was recorded."""
    collectives, trace = collectives_of(signals), signals.trace
    launch = trace.events.launched_by[collectives.row]
    chosen = collectives.of("all-gather") & has_role(signals, Role.SHARDS) & (launch >= 0)
    if not chosen.any():
        return None
    backward = in_backward(trace, launch[chosen])
    modules, hooks = (_around(trace, launch[chosen], pattern) for pattern in (_GATHER, _FORWARD))
    is_named = (modules >= 0) & (hooks >= 0) & ~backward
    return ShardGathers(
        forward=int((~backward).sum()),
        backward=int(backward.sum()),
        prefetched=_differing(trace, modules[is_named], hooks[is_named])
        if is_named.any()
        else None,
    )


def began_late(signals: Signals) -> Mask:
    """Which collectives of the used window began when no compute was left to hide them.

    The others began in time; if they are exposed, they take longer than the compute beside them.
    Shape (n,).
    """
    collectives = collectives_of(signals)
    hidden_ns = collectives.duration_ns - collectives.exposed_ns
    return hidden_ns < LATE * collectives.duration_ns


def gathered_once(signals: Signals) -> int | None:
    """The number of gathers of sharded parameters; None if any is in a backward pass."""
    trace, table = signals.trace, signals.trace.collectives
    launch = trace.events.launched_by[table.row]
    gathers = np.array(trace.texts(table.operation), dtype=object) == "all-gather"
    gathers &= collective_roles(signals).is_for(Role.SHARDS) & (launch >= 0)
    if not gathers.any() or in_backward(trace, launch[gathers]).any():
        return None
    return int(gathers.sum())


def in_backward(trace: Trace, launches: Int32) -> Mask:
    """Which launches are part of a backward pass; shape (n,)."""
    return _climb(trace, launches, lambda name: _BACKWARD.match(name) is not None) >= 0


def _around(trace: Trace, rows: Int32, pattern: re.Pattern[str]) -> Int32:
    """The name of the innermost event around each event that matches a pattern; -1 for none."""
    found = _climb(trace, rows, lambda name: pattern.match(name) is not None)
    return np.where(found >= 0, trace.events.name[np.maximum(found, 0)], -1).astype(np.int32)


def _climb(trace: Trace, rows: Int32, matches: Callable[[str], bool]) -> Int32:
    """The innermost event at or around each event whose name matches; -1 for none; shape (n,)."""
    events = trace.events
    hits = [name for name in distinct(events.name).tolist() if matches(trace.strings[name])]
    return innermost_marked(events.parent, rows.astype(np.int32), is_in(events.name, hits))


def _differing(trace: Trace, gathers: NDArray[np.int32], hooks: NDArray[np.int32]) -> int:
    """How many gathers are of another module than the hook that launched them."""
    return sum(
        _module(_GATHER, trace.strings[gather]) != _module(_FORWARD, trace.strings[hook])
        for gather, hook in zip(gathers.tolist(), hooks.tolist(), strict=True)
    )


def _module(pattern: re.Pattern[str], name: str) -> str:
    match = pattern.match(name)
    return match[1] if match else ""
