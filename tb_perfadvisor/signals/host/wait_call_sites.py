"""Waits for the device by call site."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.origins import node_name
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, places_by_value
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

_DEEPEST = 12
"""Operators call each other a few levels deep."""

# Frames that show why operators were called or arrays were read. Sources: torch/_tensor_str.py,
# torch/amp/grad_scaler.py, in older versions torch/cuda/amp/grad_scaler.py; jax/_src/array.py,
# jax/_src/numpy/array_methods.py, jax/_src/api.py.
_TELLING = re.compile(
    r"torch/_tensor_str\.py\(|amp/grad_scaler\.py\("
    r"|^\$array\.py:\d+ (__(float|int|index|complex|bool|format|str|repr)__|tolist)$"
    r"|^\$array_methods\.py:\d+ _item$|^\$api\.py:\d+ device_get$"
)
_CHECKS_GRADIENTS = "aten::_amp_foreach_non_finite_check_and_unscale_"


class WaitCallSite(Struct, frozen=True):
    """Waits of the used window with the same call site."""

    rows: Int32
    """The calls."""
    calls: tuple[str, ...]
    operators: tuple[str, ...]
    """Around the calls, innermost first, within the autograd node if there is one."""
    node: str
    """The autograd node; empty outside the backward pass."""
    forward: str
    """Its forward operator; empty when unknown."""
    module: str | None
    line: str | None
    copies: CopyDirection
    """What the innermost operator copies."""
    frame: str
    """The frame of the framework that shows what the wait is for; empty if unknown."""
    checks_gradients: bool
    """Whether they follow a check of gradients for infinities."""
    count: int
    """Waits: a copy and the synchronization that it ends with are one."""
    duration_ns: int
    induced_ns: int


@memoized
def wait_call_sites(signals: Signals) -> tuple[WaitCallSite, ...]:
    """All waits by call site; those that induce the most idle time come first."""
    trace, waits = signals.trace, signals.synchronizations
    if len(waits) == 0:
        return ()
    events, origin = trace.events, signals.origins
    node, forward = origin.node[waits.row], origin.forward[waits.row]
    chain = _chain(signals, waits.row, node)
    telling = _telling(trace, waits.row)
    key = np.stack(
        (
            *(_names(trace, rows) for rows in chain.T),
            _names(trace, node),
            _names(trace, forward),
            origin.module[waits.row],
            origin.line[waits.row],
            _copied(signals, waits.row),
            _names(trace, telling),
            _after_check(trace, waits.row, chain),
        ),
        axis=1,
    )
    first, site = group_rows(*key.T)
    is_part = _is_part_of_next(trace, waits.row, signals.launching_operator)
    order = np.argsort(site, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(site))[:-1])
    sites = [
        WaitCallSite(
            rows=waits.row[index],
            calls=tuple(dict.fromkeys(trace.texts(events.name[waits.row[index[:_DEEPEST]]]))),
            operators=tuple(trace.name(row) for row in chain[at].tolist() if row >= 0),
            node=node_name(trace, int(node[at])) if node[at] >= 0 else "",
            forward=trace.name(int(forward[at])) if forward[at] >= 0 else "",
            module=origin.module_of(int(waits.row[at])),
            line=origin.line_of(int(waits.row[at])),
            copies=CopyDirection(int(key[at, -3])),
            frame=trace.name(int(telling[at])) if telling[at] >= 0 else "",
            checks_gradients=bool(key[at, -1]),
            count=len(index) - int(is_part[index].sum()),
            duration_ns=int(waits.duration_ns[index].sum()),
            induced_ns=int(waits.induced_ns[index].sum()),
        )
        for at, index in zip(first.tolist(), members, strict=True)
    ]
    return tuple(sorted(sites, key=lambda site: -site.induced_ns))


def is_whole_wait(signals: Signals) -> NDArray[np.bool_]:
    """For each synchronization, whether it counts as a wait, and is not a part of the next one."""
    return ~_is_part_of_next(
        signals.trace, signals.synchronizations.row, signals.launching_operator
    )


def wait_count(sites: tuple[WaitCallSite, ...]) -> int:
    """Number of waits at some call sites."""
    return sum(site.count for site in sites)


def _names(trace: Trace, rows: Int32) -> Int32:
    return np.where(rows >= 0, trace.events.name[rows], -1).astype(np.int32)


def _chain(signals: Signals, rows: Int32, node: Int32) -> NDArray[np.int32]:
    """The operators around each call, innermost first; shape (calls, levels), -1 for none."""
    parent, around = signals.trace.events.parent, signals.launching_operator
    operator, levels = around[rows], []
    for _ in range(_DEEPEST):
        # Operators outside the node are the call of `backward()`.
        operator = np.where(operator > node, operator, -1)
        levels.append(operator)
        above = np.where(operator >= 0, parent[operator], -1)
        operator = np.where(above >= 0, around[above], -1)
        if (operator < 0).all():
            break
    return np.stack(levels, axis=1).astype(np.int32)


def _copied(signals: Signals, rows: Int32) -> Int32:
    """`CopyDirection` of the copy in the innermost operator around each call."""
    trace, around = signals.trace, signals.launching_operator
    launch = trace.events.launched_by[trace.copies.row]
    copying = np.where(launch >= 0, around[launch], -1)
    direction = np.zeros(len(trace.events) + 1, dtype=np.int32)
    direction[copying[copying >= 0]] = trace.copies.direction[copying >= 0]
    # A call outside of any operator may launch its copy itself.
    direction[launch[launch >= 0]] = trace.copies.direction[launch >= 0]
    operator = around[rows]
    return np.where(operator >= 0, direction[operator], direction[rows]).astype(np.int32)


def _telling(trace: Trace, rows: Int32) -> Int32:
    events = trace.events
    frames = distinct(events.name[trace.rows(EventKind.PYTHON)]).tolist()
    names = [index for index in frames if _TELLING.search(trace.strings[index])]
    if not names:
        return np.full(len(rows), -1, dtype=np.int32)
    is_telling = is_in(events.name, names) & (events.kind == EventKind.PYTHON)
    return nearest(events.parent, is_telling)[rows]


def _after_check(trace: Trace, rows: Int32, chain: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether a check of gradients ran on the thread right before each call's operators."""
    is_checked = np.zeros(len(rows), dtype=np.bool_)
    if _CHECKS_GRADIENTS not in trace.strings:
        return is_checked
    events = trace.events
    check = trace.strings.index(_CHECKS_GRADIENTS)
    operators = trace.rows(EventKind.OPERATOR)
    depth = (chain >= 0).sum(axis=1)
    outermost = chain[np.arange(len(rows)), np.maximum(depth - 1, 0)]
    operators_by_track = {
        track: operators[places] for track, places in places_by_value(events.track[operators])
    }
    for track, places in places_by_value(events.track[rows]):
        on_this_track = places[depth[places] > 0]
        on_track = operators_by_track.get(track)
        if on_track is None:
            continue
        slot = np.searchsorted(on_track, outermost[on_this_track]) - 1
        before = np.where(slot >= 0, on_track[np.maximum(slot, 0)], -1)
        is_checked[on_this_track] = (before >= 0) & (events.name[before] == check)
    return is_checked


def _is_part_of_next(trace: Trace, rows: Int32, around: Int32) -> NDArray[np.bool_]:
    """Mask of copies that the next call of the same operator waits for: both are one wait."""
    is_part = np.zeros(len(rows), dtype=np.bool_)
    order = np.argsort(around[rows], kind="stable")
    first, second = order[:-1], order[1:]
    is_sync = trace.events.kind[rows] == EventKind.SYNCHRONIZE
    operator: Int64 = around[rows].astype(np.int64)
    same = (operator[first] == operator[second]) & (operator[first] >= 0)
    is_part[first[same & ~is_sync[first] & is_sync[second]]] = True
    return is_part
