"""Device tensors that are reduced on the host."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_costs import link_bandwidth_bytes_per_s, wire_bytes
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import clip, minus, overlap_ns, total_ns, union
from tb_perfadvisor.units import NS_PER_S


class HostBackend(Rule):
    """Collectives run on the host although the program computes on a device.

    What it finds
    -------------
    Gloo or MPI collectives during which the program's device is idle.

    Why it matters
    --------------
    Every byte is copied to the host, reduced by its cores, sent over sockets and copied back, while
    the device's own links are unused.

    How it is measured
    ------------------
    Idle time of the device inside host collectives, minus the time that their bytes would need on
    the device's own link where both are known. Low is half of it: the remainder may be waiting for
    other ranks.

    When to ignore
    --------------
    When the reduced values live on the host anyway: flags, counts, a sampler's seed.

    How to verify
    -------------
    NCCL (or RCCL) kernels replace the host collectives, and the idle time is gone.

    References:
    ----------
    PyTorch documentation, "Distributed communication package", section "Which backend to use?".
    """

    id = "host-backend"
    title = "Run collectives on the device, not on the host"
    category = "communication"
    needs = (Need.WORK, Need.DEVICE_EVENTS, Need.COLLECTIVES)

    minimum_share = Limit(0.02, "share", "A barrier or a flag on the host takes less.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device idles during host collectives."""
        collectives, events = collectives_of(signals), signals.trace.events
        on_host = events.kind[collectives.row] == EventKind.HOST_COLLECTIVE
        if not on_host.any():
            return
        rows = collectives.row[on_host]
        window = signals.attribution
        inside = clip(
            union(events.start_ns[rows], events.end_ns[rows]),
            window.window_start_ns,
            window.window_end_ns,
        )
        claims = minus(inside, signals.device.busy)
        idle_ns = total_ns(claims)
        wire = wire_bytes(signals)[on_host]
        link = link_bandwidth_bytes_per_s(signals)
        on_link_ns = 0
        if link is not None and np.isfinite(wire).all():
            on_link_ns = round(float(wire.sum()) / link * NS_PER_S)
        high = max(idle_ns - on_link_ns, 0)
        if self.is_minor(high, signals):
            return
        inside_ns = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        sizes = collectives.size_bytes[on_host]
        yield Finding(
            instance=f"the device idles {per_step(idle_ns, signals)}",
            summary=(
                f"The device idles {per_step(idle_ns, signals)} during collectives that run on the"
                " host."
            ),
            saving=Saving(high // 2, high, high, claims, "modeled"),
            evidence=(
                Table(
                    "Host collectives",
                    (
                        Column("count", "Count", "count"),
                        Column("size_bytes", "Bytes", "bytes"),
                        Column("duration_ns", "Duration", "ns"),
                        Column("idle_ns", "Device idle", "ns"),
                        Column("link_ns", "Needed on the device's link", "ns"),
                    ),
                    (
                        (
                            int(on_host.sum()),
                            int(sizes.sum()) if (sizes >= 0).all() else None,
                            int(collectives.duration_ns[on_host].sum()),
                            idle_ns,
                            on_link_ns or None,
                        ),
                    ),
                ),
                costliest(
                    "Host collectives with the longest idle time",
                    signals.worker,
                    rows,
                    inside_ns,
                ),
            ),
            remedies=advise("device-collectives"),
        )
