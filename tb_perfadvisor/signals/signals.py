"""All facts of one worker, computed once, when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.attribution import Attribution, Cause, attribute, input_waits
from tb_perfadvisor.signals.collectives import (
    Collectives,
    find_collectives,
    match_transfers,
    waiting_ns,
)
from tb_perfadvisor.signals.device import (
    DeviceFacts,
    DeviceTimeline,
    device_facts,
    device_timeline,
)
from tb_perfadvisor.signals.hlo import HloTotals, hlo_totals
from tb_perfadvisor.signals.host_activity import HostActivity, host_activity
from tb_perfadvisor.signals.kernels import KernelTotal, kernel_totals
from tb_perfadvisor.signals.memory import Memory, find_memory
from tb_perfadvisor.signals.needs import CPU_ONLY, Missing, Need, remedy_for
from tb_perfadvisor.signals.placement import Placement, find_placement
from tb_perfadvisor.signals.precision import effective_precision, launching_operator
from tb_perfadvisor.signals.step_gaps import between_steps
from tb_perfadvisor.signals.steps import Steps, busiest_host_track, find_steps
from tb_perfadvisor.signals.synchronisation import Synchronisations, find_synchronisations
from tb_perfadvisor.trace import EventKind, Precision, Run, Trace
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.trace.tables import Int32

HOST_CAUSED = (
    Cause.SYNCHRONIZATION,
    Cause.LAUNCHING,
    Cause.FRAMEWORK,
    Cause.PYTHON,
    Cause.UNEXPLAINED,
)
"""Idle that the host causes in the middle of a step, without a name of its own."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user can tell that profiles don't say; None is unknown."""

    parameters: int | None = None
    """Parameters of the model."""
    link_bandwidth_bytes_per_s: float | None = None
    """Of the link that collectives use, per device and direction."""


class Signals:
    """Facts of one worker of a run. Everything is read-only and memoised."""

    def __init__(self, run: Run, worker: int = 0, options: Options | None = None) -> None:
        """Bind to one worker.

        Args:
            run: The capture.
            worker: Index into `run.traces`.
            options: What the user says.
        """
        self.run = run
        self.worker = worker
        self.options = options or Options()
        self.trace: Trace = run.traces[worker]

    @cached_property
    def device(self) -> DeviceTimeline:
        """The busiest device's time line."""
        return device_timeline(self.trace)

    @cached_property
    def device_facts(self) -> DeviceFacts | None:
        """What is known of that device; None on the CPU."""
        return device_facts(self.trace, self.device.index)

    @cached_property
    def steps(self) -> Steps:
        """The steps."""
        return find_steps(self.trace, self.device)

    @cached_property
    def step_track(self) -> int:
        """The host thread that runs the steps; -1 when unknown."""
        track = self.steps.track
        return track if track >= 0 else busiest_host_track(self.trace)

    @cached_property
    def between_steps(self) -> Intervals:
        """Where no step code runs."""
        return between_steps(self.trace, self.steps, self.step_track)

    @cached_property
    def precision(self) -> NDArray[np.uint8]:
        """Effective `Precision` of `device.rows`."""
        return effective_precision(self.trace, self.device.rows)

    @cached_property
    def launching_operator(self) -> Int32:
        """For each event, the innermost operator around it; shape (events,)."""
        return launching_operator(self.trace)

    @cached_property
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

    @cached_property
    def host_idle(self) -> Intervals:
        """Idle that the host caused in the middle of steps."""
        return self.attribution.of(*HOST_CAUSED)

    @cached_property
    def input_waits(self) -> Intervals:
        """When the step thread fetches input, idle or not."""
        return input_waits(self.trace, (self.step_track,))

    @cached_property
    def synchronisations(self) -> Synchronisations:
        """Calls that wait for the device, and the idle that they induce."""
        window = self.attribution
        return find_synchronisations(
            self.trace, self.host_idle, window.window_start_ns, window.window_end_ns
        )

    @cached_property
    def transfers(self) -> tuple[Mapping[int, int], ...]:
        """Per worker, the transfer times of matched collectives."""
        return match_transfers(self.run.traces)

    @cached_property
    def waiting_ns(self) -> int | None:
        """How long this worker waited for others in collectives; None when unknown."""
        return waiting_ns(self.trace, self.transfers[self.worker])

    @cached_property
    def collectives(self) -> Collectives:
        """The collectives of the used window."""
        window = self.attribution
        return find_collectives(
            self.trace,
            window.intervals[Cause.COMMUNICATION],
            window.window_start_ns,
            window.window_end_ns,
            self.transfers[self.worker],
            self.trace.source.world_size,
        )

    @cached_property
    def placement(self) -> Placement:
        """Where operators run."""
        window = self.attribution
        return find_placement(
            self.trace,
            self.launching_operator,
            self.input_waits,
            window.window_start_ns,
            window.window_end_ns,
        )

    @cached_property
    def kernels(self) -> tuple[KernelTotal, ...]:
        """Compute kernels by name, the costliest first."""
        window = self.attribution
        return kernel_totals(
            self.trace, self.device.rows, window.window_start_ns, window.window_end_ns
        )

    @cached_property
    def hlo(self) -> HloTotals:
        """Time by XLA operation, the costliest first."""
        window = self.attribution
        return hlo_totals(
            self.trace, self.device.rows, window.window_start_ns, window.window_end_ns
        )

    @cached_property
    def memory(self) -> Memory | None:
        """Device memory; None when it was not recorded."""
        facts = self.device_facts
        return find_memory(self.trace, self.device.index, facts.memory_bytes if facts else None)

    @property
    def link_bandwidth_bytes_per_s(self) -> float | None:
        """Of the link that the user names, else of the device's link within the node."""
        if self.options.link_bandwidth_bytes_per_s is not None:
            return self.options.link_bandwidth_bytes_per_s
        return self.device_facts.link_bandwidth_bytes_per_s if self.device_facts else None

    def host_activity(self, intervals: Intervals) -> HostActivity:
        """What the step's thread did during some intervals."""
        return host_activity(self.trace, self.step_track, intervals)

    @cached_property
    def precision_is_known(self) -> bool:
        """Whether any compute time has a known width."""
        return bool((self.precision != Precision.UNKNOWN).any())

    def missing(self, need: Need) -> Missing | None:
        """Why a need is not met; None when it is."""
        reason = self._reason(need)
        if reason is None:
            return None
        # A program without a device cannot record one: there is nothing to remedy.
        remedy = "" if reason == CPU_ONLY else remedy_for(need, self.trace.source.framework)
        return Missing(need, reason, remedy)

    def _reason(self, need: Need) -> str | None:
        trace, device = self.trace, self.device
        on_device = {
            Need.DEVICE_EVENTS,
            Need.LAUNCH_LINKS,
            Need.KERNEL_PRECISION,
            Need.PEAKS,
            Need.MEMORY,
            Need.MEMORY_CAPACITY,
        }
        if device.is_missing and need in on_device | {Need.WORK}:
            return "the profile has no events of the device"
        if device.is_host_only and need in on_device:
            return CPU_ONLY
        if need is Need.WORK:
            has_work = not device.is_host_only or self.has_host_events
            return None if has_work else "the profile has no operators"
        if need is Need.HOST_EVENTS:
            return None if self.has_host_events else "the profile has no host events"
        if need is Need.STEPS:
            return None if len(self.steps) else "the profile has no steps and none can be inferred"
        if need is Need.COLLECTIVES:
            return None if len(trace.collectives.row) else "the profile has no collectives"
        if need is Need.COLLECTIVE_SIZES:
            known = self.options.parameters is not None or self.collectives.sizes_known
            return None if known else "the sizes or ranks of the collectives were not recorded"
        if need is Need.LINK_BANDWIDTH:
            known = self.link_bandwidth_bytes_per_s is not None
            return None if known else "the bandwidth of the link between the ranks is unknown"
        if need is Need.LAUNCH_LINKS:
            links = trace.events.launched_by[device.rows] >= 0
            return None if links.any() else "device events are not linked to their launches"
        if need is Need.KERNEL_PRECISION:
            return None if self.precision_is_known else "no kernel tells its number format"
        facts = self.device_facts
        if need is Need.PEAKS:
            known = facts is not None and facts.peaks is not None
            return None if known else f"the peaks of {facts.name if facts else ''!r} are unknown"
        if need is Need.MEMORY:
            return None if self.memory else "device memory was not recorded"
        if need is Need.MEMORY_CAPACITY:
            known = facts is not None and facts.memory_bytes is not None
            return None if known else "the size of the device's memory is unknown"
        return None if self.has_tiled_layouts else "no operation has a tiled layout"

    @cached_property
    def has_host_events(self) -> bool:
        """Whether host operators, launches or annotations were recorded."""
        kinds = (EventKind.OPERATOR, EventKind.LAUNCH, EventKind.ANNOTATION, EventKind.STEP)
        return len(self.trace.rows(*kinds)) > 0

    @cached_property
    def has_tiled_layouts(self) -> bool:
        """Whether any XLA operation's text has a tile."""
        texts = self.trace.hlo.text
        return any(":T(" in self.trace.text(int(index)) for index in np.unique(texts))


def reference_worker(run: Run, options: Options | None = None) -> tuple[int, list[Signals]]:
    """The worker that overview and savings speak of, and every worker's signals.

    It is the critical one: the one that waits least for others in collectives, ties going to
    the lowest rank; without matched collectives the one with the slowest mean step.
    """
    signals = [Signals(run, worker, options) for worker in range(len(run.traces))]
    if len(signals) == 1:
        return 0, signals
    waits = [one.waiting_ns for one in signals]
    known = [wait for wait in waits if wait is not None]
    if len(known) == len(waits):
        return min(range(len(waits)), key=lambda worker: known[worker]), signals
    return max(
        range(len(signals)),
        key=lambda worker: signals[worker].steps.window_ns / signals[worker].steps.count,
    ), signals
