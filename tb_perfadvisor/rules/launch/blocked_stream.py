"""Launched work waits on the device, and nothing that was recorded says what for."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host_code import longest_stretch
from tb_perfadvisor.rules.evidence.idle_annotations import annotation_table
from tb_perfadvisor.rules.evidence.queued_waits import describe_wait, wait_table, waiting_work
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.queued_waits import QueuedWaits, queued_waits

_TO_RECORD = ("record-stream-waits",)
_TO_LOOK_AT = ("look-at-blocked-work", "look-at-other-processes")


class BlockedStream(Rule):
    """Launched work waits on the device while the device idles.

    What it finds
    -------------
    Idle time of the device after its next work was launched: the launch has returned, and the
    launch latency has passed. What Python callbacks of a compiled program explain is left out, and
    so is time before a collective, which exposed-communication reports.

    Why it matters
    --------------
    The host is not too slow, so launching faster would not help. The stream waits for something
    else: an event of another stream or device, a transfer, another rank, a function on the host, or
    another process that uses the device.

    How it is measured
    ------------------
    From the launches and starts of the device's events. The profile does not show what the stream
    waits for, so there is no estimate: the finding ranks by the time itself. The evidence names the
    stream, the work that waits, the call that launched it, what the host does meanwhile, and the
    annotation around it. If waits of streams were recorded, it says how much of the time follows
    one.

    When to ignore
    --------------
    When the wait is meant to be there, as between the stages of a pipeline.

    How to verify
    -------------
    The gaps before the named work are gone from the next profile.

    References:
    ----------
    NVIDIA CUDA C++ Programming Guide, "Streams" and "Events"; PyTorch documentation, "CUDA
    streams".
    """

    id = "blocked-stream"
    title = "Find out why queued work does not start"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.EVERY_LAUNCH)
    is_preview = False

    minimum_share = Limit(
        0.1, "share", "A tenth of the steps is worth a look even where the profile names no reason."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if launched work waits for a good part of the steps."""
        found = queued_waits(signals)
        if self.is_minor(found.total_ns, signals) or not found.waits:
            return
        longest = found.waits[0]
        yield Finding(
            instance=waiting_work(longest),
            summary=(
                f"The device idles {per_step(found.total_ns, signals)} although its next work is"
                f" launched. The longest wait is that of {describe_wait(longest)}:"
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
