"""Long stretches of host code in the middle of steps."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host_code import (
    dispatching_on_host,
    host_code_table,
    is_mostly_wrapper,
    longest_stretch,
)
from tb_perfadvisor.rules.evidence.instance import short_name
from tb_perfadvisor.rules.evidence.source_lines import (
    BusyFunction,
    busiest_for,
    likely_ns,
    seen_most,
)
from tb_perfadvisor.rules.finding import (
    Column,
    Evidence,
    Finding,
    Saving,
    costliest,
)
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.host.idle_annotations import nameless
from tb_perfadvisor.signals.host.idle_owners import (
    OVERRIDING,
    STALLING,
    IdleOwner,
    idle_without,
)
from tb_perfadvisor.signals.host.recurring_gaps import (
    is_python_in_single_step,
    records_all_operators,
    recurs,
)
from tb_perfadvisor.signals.host.self_time import SelfTime, self_time
from tb_perfadvisor.signals.launch.gaps import (
    LONGEST_LAUNCH_GAP_NS,
    short_and_long_gaps,
    stretched_ns,
    taken_by_others_ns,
)
from tb_perfadvisor.signals.launch.runtime_calls import dispatching
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    total_ns,
)
from tb_perfadvisor.whatif import Remove

_OF_WRAPPER = "Speed up the generated wrapper of the compiled code"
_NAMELESS = "Record what the host does in the long gaps"
_OF_SAMPLES = "Make batches in fewer calls of Python"
_OF_VALUES = "Make arrays of arrays, not of Python values"
_ADVICE = ("overlapped-schedule", "processor-backend", "host-work")
_IN_WRAPPER = ("device-graphs", "cpp-wrapper", "larger-regions")
"""Changes that spend less time between the kernels of a compiled graph."""


class PythonOverhead(Rule):
    """The device idles for long stretches while the host runs Python and launches nothing.

    What it finds
    -------------
    Idle gaps of more than two milliseconds in the middle of most steps, in which the host is in
    Python or framework code and launches nothing: data handling, bookkeeping, sleeping. For
    PyTorch on the CPU, where every operator is recorded, the limit is 0.3 milliseconds. Both are
    longer in proportion where other programs used the cores meanwhile.

    Why it matters
    --------------
    Faster kernels or faster launches do not shorten such a gap. Moving the code out of the step,
    or overlapping it with the device's work, does.

    How it is measured
    ------------------
    The idle time attributed to *Python*, *framework* and *unexplained* in gaps that are too long
    for slow launching. Idle time that other rules report (calls that lost their core,
    synchronizations, garbage collection, Python callbacks, slow launches of one kernel), what XLA
    does to dispatch a program, and
    collectives on the host are left out, and so are waiting for input, the time between steps, and
    gaps in which the host compiles for longer than it runs other code. Low and expected are the
    recorded Python and framework code without the estimated cost of recording it; high adds
    what was not recorded. If less than half of the gaps was recorded, expected is a guess: half
    of the gaps, without the time for which other programs had the cores. If looks over the whole
    run find that a function converts Python values meanwhile, nine tenths of it are expected. If
    neither an event nor an annotation of the program names more than half of them, the first thing
    to do is to record what they are, unless looks over the whole run found one function of the
    program for half as long.
    Stretches in at most half of the steps are left to the rules about steps. In a profile of one
    step, low is 0, because the stretches may not recur. If most of the code is the wrapper that
    torch.compile generates around its kernels, the advice is about that wrapper.

    When to ignore
    --------------
    When the code only exists for the profile, such as printing or checking results.

    How to verify
    -------------
    The code named here no longer runs between two launches, and the step is shorter by about its
    time.

    References:
    ----------
    PyTorch documentation, "Performance Tuning Guide"; JAX documentation, "Asynchronous dispatch".
    """

    id = "python-overhead"
    title = "Speed up the host code that everything waits for"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.EVERY_LAUNCH)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Restructuring a program is not worth it for less than 5 % of the step."
    )
    minimum_stall_ns = Limit(
        LONGEST_LAUNCH_GAP_NS,
        "ns",
        "In shorter gaps the host launches, even if slowly.",
    )
    minimum_python_ns = Limit(
        300_000,
        "ns",
        "On the CPU PyTorch records every operator, including views and checks. Between two of "
        "them there are about 20 microseconds of Python, after a backward pass up to 200.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when most steps have long stretches of host code."""
        attribution = signals.attribution
        is_recorded = records_all_operators(signals)
        usual_ns = self.minimum_python_ns if is_recorded else self.minimum_stall_ns
        longest_ns = stretched_ns(usual_ns, signals.trace)
        _, gaps = short_and_long_gaps(attribution.idle, longest_ns)
        recorded = attribution.of(Cause.PYTHON, Cause.FRAMEWORK)
        stalls = intersect(
            join(recorded, attribution.intervals[Cause.UNEXPLAINED]),
            idle_without(signals, *OVERRIDING, *STALLING, IdleOwner.SLOW_LAUNCH),
        )
        stalls = minus(stalls, join(dispatching_on_host(signals), dispatching(signals)))
        # The host code inside a gap must be long by itself.
        host_code_ns = overlap_ns(stalls, gaps[:, 0], gaps[:, 1])
        compiling = attribution.intervals[Cause.COMPILING]
        # The Python around a compilation prepares it, and goes with it.
        compiling_ns = overlap_ns(compiling, gaps[:, 0], gaps[:, 1])
        gaps = gaps[(host_code_ns > longest_ns) & (host_code_ns > compiling_ns)]
        claims = intersect(stalls, gaps)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        is_recurring = recurs(signals, gaps)
        if not is_recurring and not is_python_in_single_step(signals, claims):
            return
        recorded_stalls = intersect(claims, recorded)
        recorded_ns = total_ns(recorded_stalls)
        is_known = 2 * recorded_ns >= total
        # What others took of the cores stops the program anywhere, and nothing names it.
        is_seen = is_known or busiest_for(signals, total) is not None
        others_ns = 0 if is_seen else taken_by_others_ns(attribution.window_ns, signals.trace)
        if self.is_minor(total - others_ns, signals):
            return
        recording_ns = profiler_overhead(signals).within_ns(recorded_stalls)
        host_code = self_time(signals.trace, signals.step_track, claims)
        is_in_wrapper = is_mostly_wrapper(host_code, total)
        name = short_name(host_code.names[0]) if is_known and host_code.names else ""
        what = f", mostly in {name}" if name else ""
        if is_in_wrapper:
            what = ", mostly in the wrapper that torch.compile generated around its kernels"
        seen = seen_most(signals.trace.facts.lines)
        unnamed = nameless(signals, minus(claims, recorded))
        is_nameless = not is_in_wrapper and 2 * total_ns(unnamed) > total
        what = f"; nothing in the profile tells what that code is{seen}" if is_nameless else what
        function = busiest_for(signals, total) if is_nameless else None
        first = _IN_WRAPPER if is_in_wrapper else ()
        subject = "No operator runs" if signals.device.is_host_only else "The device idles"
        yield Finding(
            title=_title(function, is_nameless, is_in_wrapper),
            instance=name if function is None else str(function),
            summary=(
                f"{subject} for {per_step(total, signals)} during long stretches of host code that"
                f" launch nothing{what}."
            ),
            saving=Saving(
                max(recorded_ns - recording_ns, 0) if is_known and is_recurring else 0,
                recorded_ns if is_known else likely_ns(signals, function, total, others_ns),
                total,
                claims,
                "measured" if is_known else "heuristic",
                (Remove(recorded_stalls),) if is_known else (),
            ),
            evidence=_evidence(signals, claims, total - recorded_ns, host_code),
            remedies=advise(*_first_advice(function, is_nameless), *first, *_ADVICE),
        )


def _title(function: BusyFunction | None, is_nameless: bool, is_in_wrapper: bool) -> str:
    if function is not None and function.converts:
        return f"{_OF_VALUES}: {function}"
    if function is not None:
        return f"{_OF_SAMPLES}: {function}" if function.makes_samples else ""
    return _NAMELESS if is_nameless else _OF_WRAPPER if is_in_wrapper else ""


def _first_advice(function: BusyFunction | None, is_nameless: bool) -> tuple[str, ...]:
    if function is not None and function.converts:
        return ("arrays-once",)
    if function is not None:
        return ("batch-at-once",) if function.makes_samples else ("one-call-for-all",)
    return ("record-host-code",) if is_nameless else ()


def _evidence(
    signals: Signals, claims: Intervals, unrecorded_ns: int, host_code: SelfTime
) -> tuple[Evidence, ...]:
    evidence: tuple[Evidence, ...] = (
        longest_stretch("Longest stretch", signals, claims, "no launches"),
        host_code_table(
            "Host code during the stretches, by self time",
            "Code",
            Column("own_ns", "Device idle", "ns"),
            host_code,
            unrecorded_ns,
        ),
    )
    if not host_code.names:
        return evidence
    rows, cost_ns = host_code.rows, host_code.row_self_ns
    return (*evidence, costliest("Longest of these events", signals.worker, rows, cost_ns))
