"""Where the framework's operators run: on the device, or on the host.

An operator is on the device when it, or an operator inside it, launched device work. It is
host-placed when it computes (neither it nor what it calls launched anything, and its name is
not one that only makes views, allocates or asks questions) outside the input pipeline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import Intervals, contains
from tb_perfadvisor.trace.tables import Int32

# Operators that move no data: views, allocation, metadata, bookkeeping of the dispatcher.
# Source: PyTorch's native_functions.yaml, the functions that are views or factories without
# filling; and autograd's and the profiler's own ranges.
_NO_COMPUTE = re.compile(
    r"^(aten::("
    r"empty.*|new_empty.*|_empty.*|resize_.*|resolve_(conj|neg)|set_|alias.*|detach_?|view.*"
    r"|_?reshape.*|_unsafe_view|as_strided.*|transpose.*|t_?|permute|expand.*|squeeze.*"
    r"|unsqueeze.*|select|slice|narrow|unfold|unbind|split.*|chunk|diagonal|movedim|swapaxes"
    r"|flatten|unflatten|numpy_T|mT|mH|contiguous|to|type_as|lift.*|result_type|is_.*|_has_.*"
    r"|size|stride|dim|numel|item|_local_scalar_dense|requires_grad_|retain_grad|output_nr"
    r"|_version|real|imag|view_as_.*|broadcast_.*|meshgrid|pin_memory|_pin_memory|record_stream"
    r"|_nested.*|_to_copy|can_cast|promote_types|data|_reinterpret_tensor|clone_preserve.*"
    r")|autograd::.*|.*Backward\d*|torch::autograd::.*|c10d::.*|record_param_comms|nccl:.*"
    r"|\[.*|detach_?|.*\.forward|DistributedDataParallel.*|Torch-Compiled.*|.*CompiledFunction.*"
    r"|profiler::.*|prim::.*|torchdynamo.*|TorchDynamo.*)$"
)


@dataclass(frozen=True, slots=True)
class Placement:
    """Operators of the used window, by place."""

    host_rows: Int32
    """Innermost operators that computed on the host, in order of start."""
    device_count: int
    """Innermost operators that launched device work."""
    host_count: int
    device_ns: int
    """Time of the device work that operators launched."""
    host_ns: int
    """Time of the host-placed operators."""

    @property
    def share_by_count(self) -> float | None:
        """Operators on the device over all that compute; None without any."""
        total = self.device_count + self.host_count
        return self.device_count / total if total else None

    @property
    def share_by_time(self) -> float | None:
        """Device time over device and host time; None without any."""
        total = self.device_ns + self.host_ns
        return self.device_ns / total if total else None


def find_placement(
    trace: Trace,
    launching_operator: Int32,
    input_waits: Intervals,
    window_start_ns: int,
    window_end_ns: int,
) -> Placement:
    """Operators by place, of the used window.

    Args:
        trace: The trace.
        launching_operator: For each event, the innermost operator around it (events,).
        input_waits: When threads fetch input: operators in it belong to the input pipeline.
        window_start_ns: The used window.
        window_end_ns: Its end.
    """
    events = trace.events
    rows = trace.rows(EventKind.OPERATOR)
    at = events.start_ns[rows]
    rows = rows[(at >= window_start_ns) & (at < window_end_ns)]
    device_rows = np.flatnonzero(events.launched_by >= 0)
    operator = launching_operator[events.launched_by[device_rows]]
    reached = operator >= 0
    device_rows, operator = device_rows[reached], operator[reached]
    is_launching = np.zeros(len(events), dtype=bool)
    is_launching[operator] = True
    in_window = np.isin(operator, rows)
    device_ns = int(events.duration_ns[device_rows[in_window]].sum())
    device_count = int(is_launching[rows].sum())

    # An operator with a launch anywhere inside is no host operator: mark all that enclose one.
    is_open = is_launching.copy()
    frontier = np.flatnonzero(is_launching)
    while len(frontier):
        above = np.unique(events.parent[frontier])
        above = above[above >= 0]
        frontier = above[~is_open[above]]
        is_open[frontier] = True
    names = events.name[rows]
    computing = [
        name for name in np.unique(names).tolist() if not _NO_COMPUTE.match(trace.strings[name])
    ]
    host = rows[np.isin(names, computing) & ~is_open[rows]]
    host = host[~contains(input_waits, events.start_ns[host])]
    # Only the outermost computing operator counts: `aten::linear` holds `aten::addmm`.
    is_host = np.zeros(len(events), dtype=bool)
    is_host[host] = True
    outermost = host[~_has_ancestor(events.parent, host, is_host)]
    return Placement(
        host_rows=outermost,
        device_count=device_count,
        host_count=len(outermost),
        device_ns=device_ns,
        host_ns=int(events.duration_ns[outermost].sum()),
    )


def _has_ancestor(
    parent: Int32, rows: Int32, is_marked: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether any event around each row is marked."""
    found = np.zeros(len(rows), dtype=bool)
    at = parent[rows]
    while True:
        alive = (at >= 0) & ~found
        if not alive.any():
            return found
        found[alive] = is_marked[at[alive]]
        at = np.where(at >= 0, parent[at], -1)
