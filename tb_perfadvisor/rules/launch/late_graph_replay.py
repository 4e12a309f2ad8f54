"""The device waits for the replay of a graph while the host prepares its inputs."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host_code import host_code_table
from tb_perfadvisor.rules.evidence.launches import idle_by_host_state, idle_by_launching_operator
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.idle_owners import IdleOwner, idle_owners
from tb_perfadvisor.signals.host.self_time import self_time
from tb_perfadvisor.signals.launch.device_graphs import ReplayPreparation, replay_preparation
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import total_ns

_REMOVABLE_SHARE = 0.5
"""Part of the preparation that a program can do earlier or leave out. Some of it needs the results
of the step before."""
_RECURRING_SHARE = 0.5
"""Part of the idle time before the only recorded replay that other replays have, too. The device
may have run out of work when the profiler started."""


class LateGraphReplay(Rule):
    """The step is one graph launch, and the device idles while the host prepares it.

    What it finds
    -------------
    Idle time before the replay of a GPU graph (CUDA or HIP), between the few copies and kernels
    that set its inputs, and in the launch of the graph itself.

    Why it matters
    --------------
    A replay makes launching cheap, so the time between two replays is what is left: choosing the
    next batch, computing its indices and lengths, and copying them into the buffers that the graph
    reads. An inference server does that for each token.

    How it is measured
    ------------------
    The idle time that ends with a replay or with one of the launches before it, if they are fewer
    than half of the replay's events; more launches are a part of the step outside the graph. Idle
    time after a wait for the device is left out, and so are gaps of more than two milliseconds.

    High is all of it. Expected is half of it, minus the estimated cost of recording: part of the
    preparation needs the results of the replay before. The idle time before the first replay in the
    profile may come from the start of the recording. It counts as much as later replays are late
    as well, and half if there are none. Low is 0.

    When to ignore
    --------------
    When the server has few requests: then it waits for them, not for the preparation.

    How to verify
    -------------
    In a profile of several replays, the launch of each returns before the previous one has ended.

    References:
    ----------
    PyTorch documentation, "CUDA Graphs"; NVIDIA CUDA C++ Programming Guide, "CUDA Graphs".
    """

    id = "late-graph-replay"
    title = "Prepare the next graph replay while the current one runs"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "A launch latency remains between two replays, however early the next one."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for replays."""
        preparation = replay_preparation(signals)
        claims = idle_owners(signals)[IdleOwner.REPLAY_PREPARATION]
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        recording = profiler_overhead(signals).within_ns(claims)
        host_code = self_time(signals.trace, signals.step_track, claims)
        yield Finding(
            instance=f"the device waits {per_step(total, signals)}",
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
            remedies=advise("overlapped-schedule", "replay-ahead", "replay-inputs", "larger-batch"),
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
