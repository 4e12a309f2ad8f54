"""`Signals`: one rank of a run, the user's options, and the core facts of its trace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.attribution import (
    Attribution,
    HloTotals,
    attribute,
    hlo_totals,
    kernel_totals,
)
from tb_perfadvisor.signals.core.causes import HOST_CAUSED
from tb_perfadvisor.signals.core.device import (
    DeviceFacts,
    DeviceTimeline,
    device_facts,
    device_timeline,
)
from tb_perfadvisor.signals.core.host_activity import busiest_host_track, host_operations
from tb_perfadvisor.signals.core.host_states import input_waits
from tb_perfadvisor.signals.core.idle_gaps import UnrecordedWork, find_unrecorded_work
from tb_perfadvisor.signals.core.operators import (
    Memory,
    OperatorTotals,
    find_memory,
    launching_operator,
    operator_totals,
)
from tb_perfadvisor.signals.core.origins import Origins, find_origins
from tb_perfadvisor.signals.core.placement import Placement, find_placement
from tb_perfadvisor.signals.core.precision import (
    compute_shares,
    effective_precision,
)
from tb_perfadvisor.signals.core.steps.gaps import between_steps, shows_step_ends
from tb_perfadvisor.signals.core.steps.steps import Steps, find_steps
from tb_perfadvisor.signals.core.synchronization import Synchronizations, find_synchronizations
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.trace import KernelTotal, Precision, Run, Trace
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.trace.tables import Int32


class Options(Struct, frozen=True):
    """Facts that profiles lack and the user may give; None is unknown."""

    parameters: int | None = None
    """Number of the model's parameters."""
    link_bandwidth_bytes_per_s: float | None = None
    """Bandwidth of the link that collectives use, per device and direction."""
    device: str | None = None
    """The device that the program ran on, as in the hardware table; overrides the profile."""
    tokens_per_step: int | None = None
    """Tokens that one rank processes in a step."""


class Signals:
    """One rank of a run and the core facts of its trace, read-only and computed on first use.

    Everything else is a memoized function of a `Signals`, in the folders beside this module.
    """

    def __init__(self, run: Run, worker: int = 0, options: Options | None = None) -> None:
        """Choose a rank of a run; `worker` is an index into `run.traces`."""
        self.run = run
        self.worker = worker
        self.options = options or Options()
        self.trace: Trace = run.traces[worker]

    @property
    @memoized
    def device(self) -> DeviceTimeline:
        """The work of the busiest device."""
        return device_timeline(self.trace)

    @property
    @memoized
    def device_facts(self) -> DeviceFacts | None:
        """What is known about that device; None on the CPU."""
        return device_facts(self.trace, self.device.index, self.options.device)

    @property
    @memoized
    def unrecorded_work(self) -> UnrecordedWork | None:
        """Work from before the recording that still ran when it began; None without a sign."""
        return find_unrecorded_work(self.trace, self.device)

    @property
    @memoized
    def steps(self) -> Steps:
        """The used steps."""
        unrecorded = self.unrecorded_work
        return find_steps(self.trace, self.device, unrecorded.until_ns if unrecorded else 0)

    @property
    @memoized
    def step_track(self) -> int:
        """The host thread that runs the steps; -1 if unknown."""
        track = self.steps.track
        return track if track >= 0 else busiest_host_track(self.trace)

    @property
    @memoized
    def between_steps(self) -> Intervals:
        """When no step code runs."""
        return between_steps(self.trace, self.steps, self.step_track)

    @property
    @memoized
    def shows_step_ends(self) -> bool:
        """Whether the trace tells time between steps from time in steps."""
        return shows_step_ends(self.trace, self.steps)

    @property
    @memoized
    def precision(self) -> NDArray[np.uint8]:
        """Effective `Precision` of `device.rows`."""
        return effective_precision(self.trace, self.device.rows)

    @property
    @memoized
    def compute_shares(self) -> Mapping[Precision, float] | None:
        """Shares of device compute time by the width of the numbers; None if unknown."""
        if self.device.index is None:
            return None
        return compute_shares(self.trace, self.attribution)

    @property
    @memoized
    def launching_operator(self) -> Int32:
        """For each event, the innermost operator around it; shape (events,)."""
        return launching_operator(self.trace)

    @property
    @memoized
    def attribution(self) -> Attribution:
        """The used window, split by cause."""
        return attribute(
            self.trace,
            self.device,
            self.steps,
            self.precision,
            self.between_steps,
            self.step_track,
        )

    @property
    @memoized
    def host_idle(self) -> Intervals:
        """Idle time that the host causes in the middle of steps."""
        return self.attribution.of(*HOST_CAUSED)

    @property
    @memoized
    def input_waits(self) -> Intervals:
        """When the step thread fetches input, idle or not."""
        return input_waits(self.trace, (self.step_track,))

    @property
    @memoized
    def synchronizations(self) -> Synchronizations:
        """Calls that wait for the device, and the idle time that they induce."""
        window = self.attribution
        return find_synchronizations(
            self.trace,
            self.host_idle,
            window.window_start_ns,
            window.window_end_ns,
            on_cpu=self.device.is_host_only,
        )

    @property
    @memoized
    def placement(self) -> Placement:
        """Which operators run on the device and which on the host."""
        return find_placement(
            self.trace,
            self.launching_operator,
            self.input_waits,
            self.steps.owner >= 0,
        )

    @property
    @memoized
    def kernels(self) -> tuple[KernelTotal, ...]:
        """Compute kernels by name, the costliest first."""
        window = self.attribution
        return kernel_totals(
            self.trace, self.device.rows, window.window_start_ns, window.window_end_ns
        )

    @property
    @memoized
    def operators(self) -> OperatorTotals:
        """Operators by name and shapes."""
        return operator_totals(
            self.trace,
            self.launching_operator,
            self.steps.own(self.device.rows),
            self.steps.owner >= 0,
        )

    @property
    @memoized
    def hlo(self) -> HloTotals:
        """Time by XLA operation, the costliest first."""
        rows = host_operations(self.trace) if self.device.is_host_only else self.device.rows
        return hlo_totals(self.trace, self.steps.own(rows))

    @property
    @memoized
    def memory(self) -> Memory | None:
        """Device memory; None if it was not recorded."""
        facts = self.device_facts
        return find_memory(self.trace, self.device.index, facts.memory_bytes if facts else None)

    @property
    @memoized
    def origins(self) -> Origins:
        """Which module, source line and autograd node each event comes from."""
        return find_origins(self.trace, self.launching_operator)
