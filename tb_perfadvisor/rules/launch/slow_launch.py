"""The host takes far longer to launch one kernel than others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host_code import generated_ns, host_code_table
from tb_perfadvisor.rules.evidence.instance import short_name
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.idle_owners import slow_launches
from tb_perfadvisor.signals.host.self_time import SelfTime, self_time
from tb_perfadvisor.signals.launch.slow_launches import SlowLaunch as Launches
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.generated_code import GENERATED_KERNEL
from tb_perfadvisor.trace.intervals import total_ns, union
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove

_IN_WRAPPER = ("device-graphs", "cpp-wrapper", "larger-regions")
"""Changes that spend less time between the kernels of a compiled graph."""


class SlowLaunch(Rule):
    """The device idles before each launch of one kernel, because the host prepares it for long.

    What it finds
    -------------
    Idle time of the device before launches of the same kernel by the same operator, if the host
    takes at least ten times as long for them as for the average launch. How long a single gap is
    does not matter.

    Why it matters
    --------------
    Dozens of gaps of a few milliseconds look like slow Python all over the step. If they all stand
    before one kernel, they have one cause: what its launcher does on the host each time, such as
    building descriptors, computing sizes, or looking up a configuration.

    How it is measured
    ------------------
    The idle time that the host causes, without what other rules report, is grouped by the device's
    next work and the operator that launches it. A group counts if it has at least three gaps per
    step of similar length. High is its idle time. Expected leaves as much as other launches take;
    low is half of that, without the estimated cost of recording. Where the profile allows it,
    expected is what the steps save in a replay.

    When to ignore
    --------------
    When the kernel is compiled or tuned in these steps: later launches are then faster.

    How to verify
    -------------
    The gaps before this kernel are gone from the next profile.

    References:
    ----------
    Triton documentation, "Tensor descriptors"; PyTorch documentation, "Using user-defined Triton
    kernels with torch.compile".
    """

    id = "slow-launch"
    title = "Prepare this kernel's launch faster"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.EVERY_LAUNCH)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Rewriting a launcher is not worth it for less than 5 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each kernel whose launches cost a good part of the step."""
        for launches in slow_launches(signals):
            if not self.is_minor(launches.idle_ns, signals):
                yield _finding(signals, launches)


def _finding(signals: Signals, launches: Launches) -> Finding:
    idle_ns, gaps = launches.idle_ns, len(launches.launch_row)
    recording_ns = profiler_overhead(signals).within_ns(launches.idle)
    # An average launch takes the host some time, too, and its kernel waits for as long.
    kept_ns = round(idle_ns / launches.excess / gaps)
    start_ns, end_ns = launches.idle[:, 0], launches.idle[:, 1]
    removed = union(start_ns, np.maximum(end_ns - kept_ns, start_ns))
    expected_ns = total_ns(removed)
    code = self_time(signals.trace, signals.step_track, launches.idle)
    kernel = short_name(launches.event)
    is_generated = bool(GENERATED_KERNEL.match(launches.event))
    changes = _IN_WRAPPER if is_generated or generated_ns(code) else ()
    return Finding(
        title="Speed up the generated wrapper of the compiled code" if is_generated else "",
        instance=f"{format_duration(idle_ns / gaps)} before each {kernel}",
        summary=(
            f"The device idles {per_step(idle_ns, signals)} before one kernel, {kernel}"
            f" ({count_per_step(gaps, 'gap', signals)} of {format_duration(idle_ns / gaps)} on"
            f" average): the host takes {launches.excess:.0f} times as long to launch it as the"
            f" average kernel{_where(signals, launches, code)}."
        ),
        saving=Saving(
            max(expected_ns // 2 - recording_ns, 0),
            expected_ns,
            idle_ns,
            launches.idle,
            "measured",
            (Remove(removed),),
        ),
        evidence=(
            _launcher_table(signals, launches),
            host_code_table(
                "What the host does before it, by self time",
                "Code",
                Column("own_ns", "Device idle", "ns"),
                code,
                idle_ns - sum(code.self_ns),
            ),
            costliest(
                "Launches after the longest gaps",
                signals.worker,
                launches.launch_row,
                launches.gap_ns,
            ),
        ),
        remedies=advise(*(() if is_generated else ("cheaper-launch",)), *changes, "host-work"),
    )


def _where(signals: Signals, launches: Launches, code: SelfTime) -> str:
    """In whose code the host's time passes, as a clause; empty if nothing was recorded."""
    line = signals.origins.line_of(int(launches.launch_row[0]))
    at = f", at {line}" if line else ""
    if 2 * generated_ns(code) > launches.idle_ns:
        return f"{at}, in the wrapper that torch.compile generated around it"
    if code.names and 2 * code.self_ns[0] > launches.idle_ns:
        return f"{at}, mostly in {short_name(code.names[0])}"
    return at


def _launcher_table(signals: Signals, launches: Launches) -> Table:
    row = int(launches.launch_row[0])
    cells: dict[Column, Cell] = {
        Column("name", "Kernel"): launches.event,
        Column("operator", "Launched by"): launches.operator or None,
        Column("module", "Module"): signals.origins.module_of(row),
        Column("source", "Source line"): signals.origins.line_of(row),
        Column("launches", "Launches", "count"): launches.launches,
        Column("count", "Gaps", "count"): len(launches.launch_row),
        Column("idle_ns", "Device idle before", "ns"): launches.idle_ns,
    }
    known = {column: cell for column, cell in cells.items() if cell is not None}
    return Table("The launcher", tuple(known), (tuple(known.values()),))
