"""The host waits for the device, or the device for the host, in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host import (
    annotation_table,
    host_code_table,
    idle_by_host_state,
    idle_by_launching_operator,
    longest_stretch,
)
from tb_perfadvisor.rules.evidence.synchronization import (
    changes_for,
    costliest_waits,
    describe_wait,
    if_not_needed,
    main_causes,
    wait_table,
    waiting_work,
    waits_by_call_site,
)
from tb_perfadvisor.rules.evidence.tables import executions_by_operation
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.rules.savings import most_saved_ns, saving_without_waits
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.call_tree import self_time
from tb_perfadvisor.signals.host.host_callbacks import host_callbacks
from tb_perfadvisor.signals.host.idle import IdleOwner, idle_owners
from tb_perfadvisor.signals.host.queued_waits import QueuedWaits, queued_waits
from tb_perfadvisor.signals.host.waits import WaitCallSite, wait_call_sites, wait_count
from tb_perfadvisor.signals.input.core_sharing import ALL_CORES
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.launch.device_graphs import ReplayPreparation, replay_preparation
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import join, total_ns

_MOST_CHANGES = 4
"""For known causes; the table lists all of them."""

_FOR_UNKNOWN_CAUSES = ("overlapped-schedule", "keep-on-device")


class DeviceSynchronization(Rule):
    """The host waits for the device, and afterwards the device waits for the host."""

    id = "device-synchronization"
    title = "Stop waiting for the device"
    reads_sums = True
    needs = (Need.LAUNCHED_WORK,)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "One or two waits per step for logging cost well under 1 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        if self.is_minor(most_saved_ns(signals), signals):
            return
        all_waits = np.ones(len(signals.synchronizations), dtype=np.bool_)
        saving = saving_without_waits(signals, all_waits)
        if self.is_minor(saving.high_ns, signals):
            return
        sites = wait_call_sites(signals)
        costly = tuple(site for site in sites if site.induced_ns > 0) or sites
        if signals.device.is_host_only:
            # The cores are shared, so what may be saved is more or less than that.
            cost = (
                "The host waits for results, so it cannot run ahead: no operator runs for"
                f" {per_step(saving.claimed_ns, signals)}"
            )
        else:
            cost = (
                f"Waiting for the device costs {per_step(saving.expected_ns, signals)}, because the"
                f" host cannot run ahead{if_not_needed(saving, signals)}"
            )
        specific = changes_for(costly, _MOST_CHANGES)
        yield Finding(
            instance=f"{count_per_step(wait_count(sites), 'wait', signals)}{main_causes(sites)}",
            summary=f"{cost}.",
            saving=saving,
            evidence=(
                waits_by_call_site("Where the host waits", signals, sites, all_waits, saving),
                costliest_waits(signals, all_waits, saving),
            ),
            remedies=advise(
                *(specific or _FOR_UNKNOWN_CAUSES), "tensors-from-step", "read-arrays-rarely"
            ),
        )


_MOST_CHANGES_IN_BACKWARD = 3


class BackwardSynchronization(Rule):
    """A backward operator waits for the device, and afterwards the device waits for the host."""

    id = "backward-synchronization"
    title = "Take the waits out of the backward pass"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.PYTORCH)
    refines = "device-synchronization"

    minimum_share = Limit(
        0.01, "share", "Rewriting a forward operator is not worth it for less than 1 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        waits = signals.synchronizations
        if self.is_minor(most_saved_ns(signals), signals):
            return
        is_backward = signals.origins.node[waits.row] >= 0
        if not is_backward.any():
            return
        saving = saving_without_waits(signals, is_backward)
        if self.is_minor(saving.high_ns, signals):
            return
        sites = tuple(site for site in wait_call_sites(signals) if site.node)
        yield Finding(
            instance=_place(sites[0]),
            summary=(
                "Waiting for the device in the backward pass costs"
                f" {per_step(saving.expected_ns, signals)}:"
                f" {count_per_step(wait_count(sites), 'wait', signals)}, mostly in"
                f" {_place(sites[0])}, without which the host would run ahead"
                f"{if_not_needed(saving, signals)}."
            ),
            saving=saving,
            evidence=(
                waits_by_call_site(
                    "Where the backward pass waits", signals, sites, is_backward, saving
                ),
                costliest_waits(signals, is_backward, saving),
            ),
            remedies=advise(*changes_for(sites, _MOST_CHANGES_IN_BACKWARD), "change-forward"),
        )


def _place(site: WaitCallSite) -> str:
    """`GatherBackward0 of aten::gather (PatchDropout_0, model.py:47 forward)`."""
    location = ", ".join(part for part in (site.module, site.line) if part)
    forward = f" of {site.forward}" if site.forward else ""
    return f"{site.node}{forward}{f' ({location})' if location else ''}"


_TO_RECORD = ("record-stream-waits",)
_TO_LOOK_AT = ("look-at-blocked-work", "look-at-other-processes")


class BlockedStream(Rule):
    """Launched work waits on the device while the device idles."""

    id = "blocked-stream"
    title = "Find out why queued work does not start"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.EVERY_LAUNCH)
    is_preview = False

    minimum_share = Limit(
        0.1, "share", "A tenth of the steps is worth a look even where the profile names no reason."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        found = queued_waits(signals)
        if self.is_minor(found.total_ns, signals) or not found.waits:
            return
        longest = found.waits[0]
        yield Finding(
            instance=waiting_work(longest),
            summary=(
                "Nothing tells why work that is launched waits for"
                f" {per_step(found.total_ns, signals)}. The longest wait is that of"
                f" {describe_wait(longest)}:"
                f" {per_step(longest.idle_ns, signals)}.{_awaited_events(found, signals)}"
            ),
            saving=Saving(0, 0, found.total_ns, found.intervals, "heuristic", is_unknown=True),
            evidence=(
                wait_table(found),
                longest_stretch(
                    "Longest wait", signals, found.intervals, "The next work is launched, but waits"
                ),
                *annotation_table(signals, found.intervals),
            ),
            remedies=advise(
                *(_TO_RECORD if found.after_stream_wait_ns is None else ()), *_TO_LOOK_AT
            ),
        )


def _awaited_events(found: QueuedWaits, signals: Signals) -> str:
    """How much of the waiting recorded waits of streams explain; empty if none were recorded."""
    if found.after_stream_wait_ns is None:
        return ""
    if not found.after_stream_wait_ns:
        return " No stream was told to wait for an event before any of this work."
    return (
        f" For {per_step(found.after_stream_wait_ns, signals)} of it, the program made the stream"
        " wait for an event of another stream."
    )


class HostCallback(Rule):
    """The compiled step stops to run a Python function on the host."""

    id = "host-callback"
    title = "Keep Python out of the compiled step"
    needs = (Need.WORK, Need.DISPATCH)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "Printing one number costs a few percent of a step of several milliseconds."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        callbacks, cores = host_callbacks(signals), tfdata(signals).cores
        waited_ns, claims, beside = total_ns(callbacks.waits), callbacks.waits, ""
        taken_ns = total_ns(callbacks.beside) // cores if cores else 0
        if self.is_minor(waited_ns + taken_ns, signals):
            return
        if taken_ns:
            claims = join(claims, callbacks.beside)
            beside = f" For another {per_step(total_ns(callbacks.beside), signals)}"
            beside += f" they take one of {cores} cores from the step's operators."
        evidence = executions_by_operation(
            signals, callbacks.rows, "Calls of Python in the step", "Longest calls"
        )
        subject = "No other operator runs" if signals.device.is_host_only else "The device waits"
        yield Finding(
            instance=f"{evidence[0].rows[0][0]}",
            summary=(
                f"{subject} for {per_step(waited_ns, signals)} while the step calls Python"
                f" ({count_per_step(callbacks.count, 'call', signals)}), mostly"
                f" {evidence[0].rows[0][0]}.{beside}"
            ),
            saving=Saving(
                0,
                waited_ns + round(ALL_CORES * taken_ns),
                waited_ns + taken_ns,
                claims,
                "modeled" if taken_ns else "measured",
            ),
            evidence=evidence,
            remedies=advise("no-callback", "print-outside"),
        )


_REMOVABLE_SHARE = 0.5
"""Part of the preparation that a program can do earlier or leave out. Some of it needs the results
of the step before."""
_RECURRING_SHARE = 0.5
"""Part of the idle time before the only recorded replay that other replays have, too. The device
may have run out of work when the profiler started."""


class LateGraphReplay(Rule):
    """The step is one graph launch, and the device idles while the host prepares it."""

    id = "late-graph-replay"
    title = "Prepare the next graph replay while the current one runs"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "A launch latency remains between two replays, however early the next one."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        preparation = replay_preparation(signals)
        claims = idle_owners(signals)[IdleOwner.REPLAY_PREPARATION]
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        recording = profiler_overhead(signals).within_ns(claims)
        host_code = self_time(signals.trace, signals.step_track, claims)
        yield Finding(
            instance=f"the device waits for {share_of_each(total, signals)}",
            summary=(
                "The host prepares the inputs of a graph while the device has nothing to do."
                f" {_launches(preparation)}"
            ),
            saving=Saving(
                0, _expected_ns(preparation, total - recording), total, claims, "heuristic"
            ),
            evidence=(
                idle_by_host_state(signals, claims, recording),
                idle_by_launching_operator(signals, claims),
                host_code_table(
                    "Host code before the replays, by self time",
                    "Code",
                    Column("own_ns", "Device idle", "ns"),
                    host_code,
                    total - sum(host_code.self_ns),
                ),
                costliest(
                    "Replays that the device waits for",
                    signals.worker,
                    preparation.row[preparation.idle_ns > 0],
                    preparation.idle_ns[preparation.idle_ns > 0],
                ),
            ),
            remedies=advise("overlapped-schedule", "replay-ahead", "larger-batch"),
        )


def _expected_ns(preparation: ReplayPreparation, total_ns: int) -> int:
    """What an earlier and shorter preparation saves of the idle time."""
    idle_ns, is_first = preparation.idle_ns, preparation.is_first
    recurs = (idle_ns[~is_first] > 0).mean() if (~is_first).any() else _RECURRING_SHARE
    first_share = idle_ns[is_first].sum() / max(int(idle_ns.sum()), 1)
    return int(max(total_ns, 0) * _REMOVABLE_SHARE * (1 - first_share * (1 - recurs)))


def _launches(preparation: ReplayPreparation) -> str:
    is_late = preparation.idle_ns > 0
    mean = preparation.launches[is_late].mean()
    count = f"{mean:.0f} {'kernel or copy' if round(mean) == 1 else 'kernels and copies'}"
    if preparation.is_first.all():
        return (
            f"It launches {count} before. The profile has only one replay, so this may be its"
            " start."
        )
    return f"It launches {count} before each replay."
