"""The calls view: where the host's time goes by call, and the device's by module."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import CallNodes
from tb_perfadvisor.signals.device.device_work import kernel_tree
from tb_perfadvisor.signals.host.call_tree import call_trees
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.names import BLOCKING_CALL, named

MAX_NODES = 2_000
"""Per tree, the largest. They hold nearly all of the time of any program."""
MAX_THREADS = 4
_WAITS = regex(
    rf"{BLOCKING_CALL.pattern}|^<built-in (?:function|method) sleep\b|^\$time sleep$"
    r"|\basyncio/\w+\.py\(\d+\): sleep$|\(wait for completion\)$"
)
"""Calls in which a thread waits for another thread or process, for XLA, or for a time."""


class CallTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree over the used window, in columns; callers come before what they call."""

    label: str
    """What it is of: a thread or a device."""
    names: list[str]
    parent: list[int]
    """The node of the caller; -1 at the top."""
    name: list[int]
    kind: list[str]
    """Of the calls, such as `python`, `operator` or `kernel`; `module` above kernels, and `wait`
    for calls in which the thread waits, and what is inside them."""
    count: list[int]
    total_ns: list[int]
    self_ns: list[int]
    """Without the calls inside. Where `total_ns` is more than this and what is listed below, the
    rest is of nodes that are left out."""
    start_ns: list[int]
    """Start of the first call."""
    duration_ns: list[int]
    """Its duration."""
    truncated: int
    """Nodes that are left out, all of them smaller."""


class CallsView(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in the used window."""

    steps: int
    """Divide by this for times per step; 1 without steps."""
    threads: list[CallTree]
    """That of the steps first, then the busiest."""
    threads_truncated: int
    kernels: CallTree | None
    """The device's work by module, operator and kernel; None without a device."""
    shows_modules: bool
    """Whether the profile says which module or named range a kernel is of."""


def make_calls_view(signals: Signals) -> CallsView | None:
    """The calls of the busiest threads, and the kernels; None without either."""
    threads, kernels = call_trees(signals), kernel_tree(signals)
    waits = _waits(signals)
    if not threads and kernels is None:
        return None
    trace = signals.trace
    tracks = trace.tracks
    return CallsView(
        steps=signals.steps.count,
        threads=[
            _tree(
                signals,
                trace.text(int(tracks.label[thread.track])) or f"thread {thread.track}",
                trace.strings,
                thread.nodes,
                waits,
            )
            for thread in threads[:MAX_THREADS]
        ],
        threads_truncated=max(len(threads) - MAX_THREADS, 0),
        kernels=None
        if kernels is None
        else _tree(signals, f"device {signals.device.index}", kernels.names, kernels.nodes, waits),
        shows_modules=kernels is not None and kernels.shows_modules,
    )


def _waits(signals: Signals) -> NDArray[np.bool_]:
    """Which events are calls that wait; shape (events,)."""
    trace = signals.trace
    waits = np.zeros(len(trace.events), dtype=bool)
    waits[waiting_calls(trace)] = True
    rows = trace.rows(EventKind.PYTHON, EventKind.ANNOTATION)
    waits[rows[named(trace, rows, _WAITS)]] = True
    return waits


def _tree(
    signals: Signals,
    label: str,
    names: Sequence[str],
    nodes: CallNodes,
    waits: NDArray[np.bool_],
) -> CallTree:
    # A caller has at least the time of what it calls and comes first, so it is kept with it.
    kept = np.sort(np.argsort(-nodes.total_ns, kind="stable")[:MAX_NODES])
    place = np.full(len(nodes) + 1, -1, dtype=np.int64)
    place[kept] = np.arange(kept.size)
    used, name = np.unique(nodes.name[kept], return_inverse=True)
    events, example = signals.trace.events, nodes.example[kept]
    has_inner = np.isin(np.arange(len(nodes)), nodes.parent)[kept]
    is_wait = waits[example]
    for at, parent in enumerate(place[nodes.parent[kept]].tolist()):
        is_wait[at] |= parent >= 0 and is_wait[parent]
    kinds = [
        "wait"
        if wait
        else "module"
        if inner and kind >= EventKind.KERNEL
        else EventKind(kind).name.lower()
        for wait, inner, kind in zip(
            is_wait.tolist(), has_inner.tolist(), events.kind[example].tolist(), strict=True
        )
    ]
    return CallTree(
        label=label,
        names=[names[index] for index in used.tolist()],
        parent=place[nodes.parent[kept]].tolist(),
        name=name.reshape(-1).tolist(),
        kind=kinds,
        count=nodes.count[kept].tolist(),
        total_ns=nodes.total_ns[kept].tolist(),
        self_ns=nodes.self_ns[kept].tolist(),
        start_ns=events.start_ns[example].tolist(),
        duration_ns=events.duration_ns[example].tolist(),
        truncated=len(nodes) - kept.size,
    )
