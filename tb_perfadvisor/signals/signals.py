"""All facts of one worker, computed once, when first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.attribution import Attribution, Cause, attribute, input_waits
from tb_perfadvisor.signals.core.batch_size import batch_size
from tb_perfadvisor.signals.core.collectives import Collectives, find_collectives
from tb_perfadvisor.signals.core.device import (
    DeviceFacts,
    DeviceTimeline,
    device_facts,
    device_timeline,
)
from tb_perfadvisor.signals.core.hlo import HloTotals, hlo_totals
from tb_perfadvisor.signals.core.host_activity import HostActivity, host_activity
from tb_perfadvisor.signals.core.kernels import kernel_totals
from tb_perfadvisor.signals.core.memory import Memory, find_memory
from tb_perfadvisor.signals.core.operators import OperatorTotals, operator_totals
from tb_perfadvisor.signals.core.placement import Placement, find_placement
from tb_perfadvisor.signals.core.precision import (
    compute_shares,
    effective_precision,
    launching_operator,
)
from tb_perfadvisor.signals.core.source_lines import source_line
from tb_perfadvisor.signals.core.step_markers import busiest_host_track
from tb_perfadvisor.signals.core.steps import Steps, find_steps
from tb_perfadvisor.signals.core.synchronization import Synchronizations, find_synchronizations
from tb_perfadvisor.signals.ranks.rank_summary import collectives_kept, summarize
from tb_perfadvisor.signals.ranks.ranks import Ranks, reduce_ranks
from tb_perfadvisor.signals.recording.availability import missing
from tb_perfadvisor.signals.recording.needs import Missing, Need
from tb_perfadvisor.signals.steps.step_gaps import between_steps, shows_step_ends
from tb_perfadvisor.trace import Aspect, EventKind, KernelTotal, Precision, Run, Trace
from tb_perfadvisor.trace.integer_groups import distinct
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

DEVICES_PER_NODE = 8
"""The most GPUs that servers commonly hold; a profile may list fewer than the node has."""


class Options(Struct, frozen=True):
    """What a user can tell that profiles don't say; None is unknown."""

    parameters: int | None = None
    """Parameters of the model."""
    link_bandwidth_bytes_per_s: float | None = None
    """Of the link that collectives use, per device and direction."""


class Signals:
    """Facts of one worker of a run. Everything is read-only and memoized."""

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
        self._missing: dict[Need, Missing | None] = {}

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
    def shows_step_ends(self) -> bool:
        """Whether time between steps can be told from time in them."""
        return shows_step_ends(self.trace, self.steps)

    @cached_property
    def precision(self) -> NDArray[np.uint8]:
        """Effective `Precision` of `device.rows`."""
        return effective_precision(self.trace, self.device.rows)

    @cached_property
    def compute_shares(self) -> Mapping[Precision, float] | None:
        """Shares of device compute time by the width of its numbers; None when unknown."""
        if self.device.index is None:
            return None
        return compute_shares(self.trace, self.attribution)

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
    def synchronizations(self) -> Synchronizations:
        """Calls that wait for the device, and the idle that they induce."""
        window = self.attribution
        return find_synchronizations(
            self.trace, self.host_idle, window.window_start_ns, window.window_end_ns
        )

    @cached_property
    def ranks(self) -> Ranks:
        """All workers of the run together."""
        if self.run.summaries:
            return reduce_ranks(self.run.sources, self.run.summaries)
        everyone = [
            self if worker == self.worker else Signals(self.run, worker)
            for worker in range(len(self.run.traces))
        ]
        return _ranks_of(self.run, everyone)

    @property
    def waiting_ns(self) -> int | None:
        """How long this worker waited for others in collectives; None when unknown."""
        waiting = int(self.ranks.waiting_ns[self.worker])
        return waiting if waiting >= 0 else None

    @cached_property
    def collectives(self) -> Collectives:
        """The collectives of the used window."""
        window = self.attribution
        return find_collectives(
            self.trace,
            self.device.index,
            window.intervals[Cause.COMMUNICATION],
            window.window_start_ns,
            window.window_end_ns,
            self.ranks.transfers_of(self.worker),
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
    def operators(self) -> OperatorTotals:
        """Operators by name and shapes."""
        window = self.attribution
        return operator_totals(
            self.trace,
            self.launching_operator,
            self.device.rows,
            window.window_start_ns,
            window.window_end_ns,
        )

    @cached_property
    def batch_size(self) -> int | None:
        """Samples in a forward pass; None where no shapes tell."""
        return batch_size(self.trace, self.operators)

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
        """Of the link that the user names, else of the device's link within the node.

        None where GPUs of several nodes take part: the network between them is in no profile.
        """
        if self.options.link_bandwidth_bytes_per_s is not None:
            return self.options.link_bandwidth_bytes_per_s
        facts = self.device_facts
        if facts is None or (facts.kind == "gpu" and self.spans_nodes):
            return None
        return facts.link_bandwidth_bytes_per_s

    @cached_property
    def spans_nodes(self) -> bool:
        """Whether the run's ranks are known to sit on more than one node."""
        hosts = {source.host for source in self.run.sources if source.host}
        ranks = self.trace.source.world_size or len(self.run.traces)
        return len(hosts) > 1 or ranks > max(len(self.trace.devices), DEVICES_PER_NODE)

    def source_line(self, row: int) -> str | None:
        """Where in the user's code an event comes from; None when the profile does not tell."""
        return source_line(self.trace, row, self.launching_operator)

    def host_activity(self, intervals: Intervals) -> HostActivity:
        """What the step's thread did during some intervals."""
        return host_activity(self.trace, self.step_track, intervals)

    @cached_property
    def precision_is_known(self) -> bool:
        """Whether any compute time has a known width."""
        # Of a collective, whose name may tell its own, nothing is computed.
        is_compute = self.trace.events.kind[self.device.rows] == EventKind.KERNEL
        return bool((self.precision[is_compute] != Precision.UNKNOWN).any())

    def missing(self, need: Need) -> Missing | None:
        """Why a need is not met; None when it is."""
        # Nearly a hundred rules share two dozen needs.
        if need not in self._missing:
            self._missing[need] = missing(need, self)
        return self._missing[need]

    @cached_property
    def has_host_events(self) -> bool:
        """Whether host operators, launches or annotations were recorded."""
        if self.trace.totals is not None:
            return Aspect.HOST in self.trace.totals.shows
        kinds = (EventKind.OPERATOR, EventKind.LAUNCH, EventKind.ANNOTATION, EventKind.STEP)
        return len(self.trace.rows(*kinds)) > 0

    @cached_property
    def sees_input(self) -> bool:
        """Whether the profile shows any fetching at all: without it, waiting is unknown."""
        if self.missing(Need.WORK) is not None:
            return False
        if self.trace.totals is not None:
            return Aspect.INPUT in self.trace.totals.shows
        kinds = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK, EventKind.INFEED_WAIT)
        return len(self.trace.rows(*kinds)) > 0

    @cached_property
    def sees_communication(self) -> bool:
        """Whether communication is known: recorded, or none to be had with one rank."""
        if self.missing(Need.WORK) is not None:
            return False
        if self.trace.totals is not None:
            return Aspect.COMMUNICATION in self.trace.totals.shows
        alone = (self.trace.source.world_size or len(self.run.traces)) <= 1
        return alone or len(self.trace.collectives.row) > 0

    @property
    def sees_copies(self) -> bool:
        """Whether copies show, if there are any."""
        totals = self.trace.totals
        return totals is None or Aspect.COPIES in totals.shows

    @cached_property
    def has_tiled_layouts(self) -> bool:
        """Whether any XLA operation's text has a tile."""
        texts = self.trace.hlo.text
        return any(":T(" in self.trace.text(int(index)) for index in distinct(texts))


def reference_worker(run: Run, options: Options | None = None) -> Signals:
    """Signals of the worker that overview and savings speak of: see `Ranks.critical`."""
    if run.summaries:
        ranks = reduce_ranks(run.sources, run.summaries)
        signals = Signals(run, ranks.critical, options)
    else:
        everyone = [Signals(run, worker, options) for worker in range(len(run.traces))]
        if len(everyone) == 1:
            return everyone[0]
        ranks = _ranks_of(run, everyone)
        signals = everyone[ranks.critical]
    signals.ranks = ranks
    return signals


def _ranks_of(run: Run, everyone: Sequence[Signals]) -> Ranks:
    kept = collectives_kept(len(everyone))
    return reduce_ranks(run.sources, [summarize(signals, kept) for signals in everyone])
