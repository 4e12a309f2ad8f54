"""Tensors that go to the host and come back to the device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Remedy, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import exclusive_time, time_within, work_rows
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_bytes
from tb_perfadvisor.whatif import Async, Remove, Shorten

_REMEDIES = (
    Remedy(
        text="Compute on the device what the host computes between the two copies: NumPy's "
        "functions have counterparts on tensors.",
        snippet=(
            "order = scores.argsort(dim=-1)  # not torch.from_numpy(scores.cpu().numpy().argsort())"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    Remedy(
        text="Replace NumPy and Python functions in the step by TensorFlow's own.",
        snippet="order = tf.argsort(scores)  # not tf.numpy_function(np.argsort, [scores], ...)",
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/function",
    ),
    Remedy(
        text="Keep arrays on the device: jax.numpy in place of numpy, inside the jit.",
        snippet="order = jnp.argsort(scores)  # np.argsort(scores) brings them to the host",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/notebooks/thinking_in_jax.html",
    ),
)


class _Trips(Struct, frozen=True):
    """Copies to the host and those that bring as much back; rows of shape (n,)."""

    out: Int32
    back: Int32


class DeviceHostPingPong(Rule):
    """Data goes from the device to the host and back while the device waits.

    What it finds
    -------------
    A copy to the host that is followed by one of as many bytes to the device, with the device
    idle for most of the time between them, in most of the steps.

    Why it matters
    --------------
    Each round trip is two transfers over a link that is some fifty times slower than the
    device's memory, a wait for all work before, and an empty queue after.

    How it is measured
    ------------------
    High and expected are the two copies, where nothing else runs meanwhile, and the idle between
    them that the host caused; low is the copies alone, as what the host computes may take as
    long on the device. Where the profile allows it, expected is what the steps save when they
    are re-timed without the copies, the wait for the first and the host's work between.

    When to ignore
    --------------
    When the host has to see the data: text to decode, a decision, an environment that answers.
    Activations that are kept on the host to save memory do not hold the device up, and are not
    found.

    How to verify
    -------------
    The copies are gone, and the device works on where they were.

    References:
    ----------
    NVIDIA, "CUDA C++ Best Practices Guide", section on data transfer between host and device;
    PyTorch documentation, "Performance Tuning Guide: Avoid unnecessary CPU-GPU synchronization".
    """

    id = "device-host-ping-pong"
    title = "Keep these tensors on the device"
    category = "placement"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.COPIES)
    is_preview = True

    minimum_share = Limit(0.02, "share", "A trip or two of a few kilobytes costs next to nothing.")
    minimum_bytes = Limit(
        4096, "bytes", "Scalars and flags are read to decide on: that is a synchronization."
    )
    minimum_idle_share = Limit(
        0.5, "share", "A device that works for most of the trip does not wait for it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for its own data."""
        trace, events = signals.trace, signals.trace.events
        trips = self._waited_for(signals, _trips(signals, round(self.minimum_bytes)))
        if not _recurs(signals, trips.out):
            return
        rows = np.sort(np.concatenate((trips.out, trips.back)))
        copying = exclusive_time(signals, rows)
        spans = union(events.start_ns[trips.out], events.end_ns[trips.back])
        claims = join(copying, intersect(signals.host_idle, spans))
        lost_ns = total_ns(claims)
        if self.is_minor(lost_ns, signals):
            return
        size_bytes = trace.by_event(trace.copies.row, trace.copies.size_bytes, 0)[trips.out]
        launches = events.launched_by[trips.out]
        calls = events.launched_by[trips.back]
        returns = np.where(calls >= 0, events.end_ns[calls], events.start_ns[trips.back])
        yield Finding(
            summary=(
                f"{count_per_step(len(trips.out), 'tensor', signals)} of"
                f" {format_bytes(int(size_bytes.mean()))} on average go to the host and come back:"
                f" the device waits {per_step(lost_ns, signals)} for them."
            ),
            saving=Saving(
                total_ns(copying),
                lost_ns,
                lost_ns,
                claims,
                "measured",
                (
                    Remove(union(events.end_ns[trips.out], returns)),
                    Async(launches[launches >= 0]),
                    Shorten(rows, np.zeros(len(rows), dtype=np.int64)),
                ),
            ),
            evidence=(
                work_by_call_site(
                    "Where they are copied",
                    signals,
                    rows,
                    time_within(signals, rows, copying),
                ),
                costliest(
                    "The longest trips",
                    signals.worker,
                    trips.out,
                    events.end_ns[trips.back] - events.start_ns[trips.out],
                ),
            ),
            remedies=_REMEDIES,
        )

    def _waited_for(self, signals: Signals, trips: _Trips) -> _Trips:
        """Those during which the device idles for the most part."""
        events = signals.trace.events
        start, end = events.end_ns[trips.out], events.start_ns[trips.back]
        idle_ns = overlap_ns(signals.host_idle, start, end)
        waits = idle_ns > self.minimum_idle_share * (end - start)
        return _Trips(trips.out[waits], trips.back[waits])


def _trips(signals: Signals, minimum_bytes: int) -> _Trips:
    """Each copy to the host with the next copy to the device, if that brings as much back."""
    trace, rows = signals.trace, work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.COPY]
    copies = trace.copies
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
    over_link = is_in(direction, (CopyDirection.DEVICE_TO_HOST, CopyDirection.HOST_TO_DEVICE)) & (
        size_bytes >= minimum_bytes
    )
    rows, direction, size_bytes = rows[over_link], direction[over_link], size_bytes[over_link]
    # Of each size by itself, in order of start: another tensor may travel between.
    order = np.argsort(size_bytes, kind="stable")
    rows, direction, size_bytes = rows[order], direction[order], size_bytes[order]
    step = np.searchsorted(signals.steps.start_ns, trace.events.start_ns[rows], side="right")
    returns = (direction[:-1] == CopyDirection.DEVICE_TO_HOST) & (
        direction[1:] == CopyDirection.HOST_TO_DEVICE
    )
    returns &= (size_bytes[:-1] == size_bytes[1:]) & (step[:-1] == step[1:])
    at = np.flatnonzero(returns)
    return _Trips(rows[at], rows[at + 1])


def _recurs(signals: Signals, out: Int32) -> bool:
    """Whether most steps have a trip; without steps, whether there are some."""
    steps = signals.steps
    if len(steps) == 0:
        return len(out) > 1
    step = np.searchsorted(steps.start_ns, signals.trace.events.start_ns[out], side="right")
    return 2 * len(distinct(step)) > len(steps)
