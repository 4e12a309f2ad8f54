"""Notes on what the recording caught and missed: its beginning, its end, and what happens once."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.engine.trust import ON_QUIET_CORES
from tb_perfadvisor.machine.facts import Recording
from tb_perfadvisor.note import Note
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.core.device import shows_device_use
from tb_perfadvisor.signals.core.steps.partial_steps import EARLIER_WORK
from tb_perfadvisor.signals.core.steps.steps import find_set_up
from tb_perfadvisor.signals.launch.device_graphs import graph_captures
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.recording.completeness import (
    compiling,
    knows_device_time,
    lost_launches,
    start_up,
)
from tb_perfadvisor.signals.recording.hints import DEVICE_EVENTS, EVERY_EVENT, UNSEEN_INPUT
from tb_perfadvisor.signals.recording.profiled_steps import SKIP_WARM_UP, WAIT_AFTER, WAIT_BEFORE
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.signals.workload.fit import first_fitting
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.soundness.lost import is_sampled
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import single, total_ns
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_bytes, format_duration, format_share

EMPTY = "empty-profile"
"""The note of readers on files without any work."""
LOST_SHARE = 0.05
"""A complete recording has a kernel for every launch in its steps; a few percent may be missing at
its edges."""
COMPILING_SHARE = 0.05
"""If 5 % of the analyzed time is warm-up, everything said about the rest is off by as much."""
FIRST_CALL_SHARE = COMPILING_SHARE
INPUT_SHARE = 0.05
"""The same limit as that of input-stall."""
LONGER_SHARE = 0.3
"""Steps of a short recording vary by as much on a busy machine."""
RECORDING_SHARE = 0.05
"""Less than 5 % is within the usual variation of steps."""
LOADED_SHARE = 0.1
"""Interrupts, agents and desktops take a few percent of the cores of an idle machine."""

_LOOKS: dict[str, str] = {
    "operators": "at what operators read and write",
    "repeated results": "for results that are computed again",
    "unread results": "for results that nothing reads",
    "independent calls": "for calls that do not need each other",
    "zeros": "for products with zeros",
    "padding": "for padding",
    "dropped gradients": "for gradients that no update uses",
    "page faults": "for memory that is given back and taken again",
}
"""What the steps are searched for."""


def recording_notes(signals: Signals, *, starts_up: bool) -> list[Note]:
    """What limits the analysis because of when and how the profile was recorded.

    `starts_up` holds for a profile of a program that starts up.
    """
    return [
        *_on_missing_device(signals),
        *_on_beginning(signals),
        *_on_set_up(signals),
        *_on_lost_launches(signals),
        *(
            [_on_start_up(signals)]
            if starts_up
            else [*_on_compiling(signals), *_on_first_calls(signals)]
        ),
        *_on_captures(signals),
        *_on_overhead(signals),
        *_on_unseen_input(signals),
        *_on_load(signals),
        *_on_failed_looks(signals),
    ]


def _on_missing_device(signals: Signals) -> list[Note]:
    if not signals.device.is_missing or signals.trace.is_snapshot_only:
        return []
    if any(note.id == EMPTY for note in signals.trace.notes):
        return []  # the reader says it, and how to record
    if shows_device_use(signals.trace):
        return [
            Note(
                "device-events-missing",
                "error",
                "The program works on a device, as its host events show, but the profile has no "
                "events of the device. What the device did is unknown.",
                first_fitting(DEVICE_EVENTS, workload(signals)),
            )
        ]
    return [
        Note(
            "no-device-events",
            "error",
            "The profile names a device but has no events from it. Either the program did not "
            "use the device, or its events were not recorded. Its time is unknown.",
            first_fitting(DEVICE_EVENTS, workload(signals)),
        )
    ]


def _on_beginning(signals: Signals) -> list[Note]:
    work, steps, trace = signals.unrecorded_work, signals.steps, signals.trace
    lost = [step for step in steps.excluded if step.reason == EARLIER_WORK]
    if work is None or (len(steps) > 0 and not lost):
        return []
    events = trace.events
    stream = trace.text(int(trace.tracks.label[events.track[work.row]]))
    late_ns = work.until_ns - int(events.end_ns[work.launch_row])
    left_out = f"the first {format_duration(work.until_ns)} of the profile are not analyzed"
    if lost:
        names = ", ".join(str(step.number) for step in lost)
        left_out += f" (step{'s' if len(lost) > 1 else ''} {names})"
    return [
        Note(
            "recording-began-mid-work",
            "warning",
            f"The recording began while the device still ran earlier work: the first event of "
            f"{stream} starts {format_duration(late_ns)} after its launch returned, and nothing "
            f"that was recorded explains why. What the device did until then is unknown, so "
            f"{left_out}.",
            first_fitting(WAIT_BEFORE, workload(signals)),
        )
    ]


def _on_set_up(signals: Signals) -> list[Note]:
    found = find_set_up(signals.trace, signals.device)
    if found is None or len(signals.steps) or signals.steps.window_start_ns != found.end_ns:
        return []
    time_ns = found.end_ns - found.start_ns
    bytes_ = f" of {format_bytes(found.size_bytes)}" if found.size_bytes else ""
    is_most = time_ns > found.recorded_ns / 2
    return [
        Note(
            "set-up",
            "warning" if is_most else "info",
            f"The first {format_duration(time_ns)} of the device's work are set-up: "
            f"{found.copies:,} copies and fills{bytes_} before the first kernel, which never "
            "recur. They are not analyzed.",
            first_fitting(SKIP_WARM_UP, workload(signals)),
        )
    ]


def _on_lost_launches(signals: Signals) -> list[Note]:
    if is_sampled(signals.trace):
        one_in = round(1 / (signals.trace.source.recorded_calls_share or 1))
        return [
            Note(
                "sampled-events",
                "warning",
                f"By the numbers of the runtime's calls, the file has one in {one_in} of them;"
                " complete recordings have one in 18 or more. What the host and the device did in"
                " between is unknown: the device idles less than it seems.",
                first_fitting(EVERY_EVENT, workload(signals)),
            )
        ]
    found = lost_launches(signals)
    if found.lost <= LOST_SHARE * found.launched or not knows_device_time(signals):
        return []  # the time says more than the number of launches
    share = format_share(found.lost / found.launched)
    if found.are_last:
        return [
            Note(
                "recording-ended-early",
                "warning",
                f"The last {found.lost:,} of {found.launched:,} kernel launches ({share}) have no "
                "kernel: the recording ended before the device had run them.",
                first_fitting(WAIT_AFTER, workload(signals)),
            )
        ]
    return [
        Note(
            "dropped-events",
            "warning",
            f"{found.lost:,} of {found.launched:,} kernel launches in the steps ({share}) have no "
            "kernel. Events were dropped, so the device did more than the profile shows.",
            "Record fewer steps, with fewer options (no stacks, no shapes), so that the "
            "profiler's buffers do not overflow.",
        )
    ]


def _on_start_up(signals: Signals) -> Note:
    found = first_calls(signals).by_kind
    kinds = {kind.value: total_ns(found[kind]) for kind in found}
    kinds["compiling or importing"] = total_ns(compiling(signals))
    kinds["capturing graphs"] = total_ns(graph_captures(signals).capturing)
    kinds["allocating memory"] = total_ns(signals.attribution.intervals[Cause.ALLOCATING])
    costly = [kind for kind in sorted(kinds, key=lambda kind: -kinds[kind]) if kinds[kind]]
    return Note(
        "start-up",
        "error",
        f"The program spends {_of_window(total_ns(start_up(signals)), signals)} on what "
        f"happens only once: {'; '.join(costly)}. The findings say little about how the "
        "program runs later.",
        first_fitting(SKIP_WARM_UP, workload(signals)),
    )


def _on_compiling(signals: Signals) -> list[Note]:
    compile_ns = total_ns(compiling(signals))
    if compile_ns <= COMPILING_SHARE * signals.attribution.window_ns:
        return []
    return [
        Note(
            "compile-in-window",
            "warning",
            f"The program spends {_of_window(compile_ns, signals)} compiling or importing. This is "
            "warm-up and says little about later steps.",
            first_fitting(SKIP_WARM_UP, workload(signals)),
        )
    ]


def _on_first_calls(signals: Signals) -> list[Note]:
    found = first_calls(signals)
    idle_ns = total_ns(found.idle)
    if idle_ns <= FIRST_CALL_SHARE * signals.attribution.window_ns:
        return []
    longest = sorted(found.by_kind, key=lambda kind: -total_ns(found.by_kind[kind]))
    kinds = "; ".join(kind.value for kind in longest)
    return [
        Note(
            "first-call",
            "warning",
            f"The device waits {_of_window(idle_ns, signals)} for what happens only once: {kinds}. "
            "This is warm-up and says little about how the program runs later.",
            first_fitting(SKIP_WARM_UP, workload(signals)),
        )
    ]


def _on_captures(signals: Signals) -> list[Note]:
    captures = graph_captures(signals)
    if captures.count == 0:
        return []
    graphs = "a graph is" if captures.count == 1 else f"{captures.count:,} graphs are"
    capturing = _of_window(total_ns(captures.capturing), signals)
    return [
        Note(
            "graph-capture",
            "info",
            f"In {capturing}, {graphs} captured or instantiated. "
            "Later, the program replays graphs instead, so this part is not how it runs then.",
            first_fitting(SKIP_WARM_UP, workload(signals)),
        )
    ]


def _on_overhead(signals: Signals) -> list[Note]:
    """What recording cost: measured, where steps were timed without it, or else estimated."""
    recording, steps = signals.trace.facts.recording, signals.steps
    if recording.step_ns and len(steps) and not steps.is_inferred:
        return _on_longer_steps(recording, steps.duration_ns)
    window = signals.attribution
    whole = single(window.window_start_ns, window.window_end_ns)
    cost_ns = profiler_overhead(signals).within_ns(whole)
    if cost_ns <= RECORDING_SHARE * window.window_ns or signals.trace.totals is not None:
        return []
    options = profiler_overhead(signals).options
    *first, last = options or ("",)
    recorded = f" with {' and '.join(filter(None, (', '.join(first), last)))}" if last else ""
    return [
        Note(
            "profiler-overhead",
            "info",
            f"Recording{recorded} takes an estimated {_of_window(cost_ns, signals)} on the threads "
            "that run the steps. Without a profiler, the host is that much faster.",
            "Record once without stacks, shapes and memory before acting on host findings.",
        )
    ]


def _on_longer_steps(recording: Recording, durations_ns: Int64) -> list[Note]:
    # Savings are shares of the mean, to which steps as slow as the first one may add most.
    is_slow = recording.reason == "slow step"
    recorded_ns = float(np.mean(durations_ns) if is_slow else np.median(durations_ns))
    usual_ns = recording.step_ns or recorded_ns
    if recorded_ns <= (1 + LONGER_SHARE) * usual_ns:
        return []
    longer = (
        f"Steps took {format_duration(recorded_ns)} ({'mean' if is_slow else 'median'}) "
        "while they were recorded, "
        f"{recorded_ns / usual_ns:.1f} times as long as before ({format_duration(usual_ns)})"
    )
    if is_slow:  # the program itself may have become slower
        return [
            Note(
                "slower-than-usual",
                "warning",
                f"{longer}: the recording began because a step was slow. What it shows is not how "
                "the program usually runs, and its savings are shares of these steps.",
                "Look at a recording of usual steps first.",
            )
        ]
    return [
        Note(
            "slowed-by-recording",
            "warning",
            f"{longer}: times of host code are too long here.",
            "Record without stacks, shapes and memory, and compare times without a profiler.",
        )
    ]


def _of_window(part_ns: int, signals: Signals) -> str:
    """`3.00 ms (30.0 %) of the analyzed time`."""
    share = format_share(part_ns / signals.attribution.window_ns)
    return f"{format_duration(part_ns)} ({share}) of the analyzed time"


def _on_unseen_input(signals: Signals) -> list[Note]:
    """That the step waits for batches which processes prepare that the profile does not show."""
    program = workload(signals)
    hint = first_fitting(UNSEEN_INPUT, program)
    share = signals.attribution.share(Cause.INPUT) or 0.0
    if not hint or share < INPUT_SHARE:
        return []
    # Without worker processes, Grain records what it reads and prepares.
    works_here = len(signals.trace.rows(EventKind.INPUT_WORK)) > 0
    if works_here and not program.has(Part.DATA_SERVICE):
        return []
    return [
        Note(
            "unseen-input",
            "info",
            f"The steps wait {format_share(share)} of their time for input. Other processes may "
            "prepare it, and whether they read small remote files or decode is not in this "
            "profile.",
            hint,
        )
    ]


def _on_load(signals: Signals) -> list[Note]:
    """That other programs used the cores while the capture was recorded."""
    load, cores = signals.trace.facts.load, signals.trace.facts.machine.cores
    if load is None or load.others < LOADED_SHARE:
        return []
    of = f"the program's {cores:,} cores" if cores else "the program's cores"
    return [
        Note(
            "loaded-machine",
            "warning",
            f"While this was recorded, other programs used {format_share(load.others)} of the "
            f"time of {of}. Host times, waits for input and CPU steps are longer than on a quiet "
            "machine, and their findings may be of that load.",
            ON_QUIET_CORES,
        )
    ]


def _on_failed_looks(signals: Signals) -> list[Note]:
    """What `perfadvisor run` could not look for in the tensors of the steps."""
    examined = signals.trace.facts.examined
    return [
        Note(
            "failed-look",
            "warning",
            f"In the tensors of a few steps, `perfadvisor run` could not look {_LOOKS[each.look]}: "
            f"{each.why}. What that would have shown is missing here.",
        )
        for each in (examined.failed if examined is not None else ())
        if each.look in _LOOKS
    ]
