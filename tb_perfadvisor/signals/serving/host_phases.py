"""What an inference server's host does while the device waits for the next step.

Sources of names: vllm/v1 (engine, core/sched, worker, sample), sglang/srt (managers,
model_executor, layers), tensorrt_llm/_torch/pyexecutor.
"""

from __future__ import annotations

import re
from enum import Enum

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.serving.server_steps import server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, overlap_ns, total_ns
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64


class Phase(Enum):
    """A part of a server's loop."""

    SCHEDULING = "Scheduling"
    REQUESTS = "Receiving requests"
    INPUTS = "Preparing inputs"
    MODEL = "Launching the model"
    SAMPLING = "Sampling"
    RESULTS = "Processing results"
    OTHER = "Other host code"
    UNKNOWN = "Not recorded"


# The innermost name that matches tells the phase. A Python frame is `path/file.py(line): function`.
_NAMES = (
    (
        Phase.RESULTS,
        r"output_processor|/detokenizer|detokenize|/metrics/|/observability/"
        r"|: (?:process_batch_result|update_from_output|_bookkeeping_sync|_handle_responses"
        r"|_update_requests|stream_output|copy_to_cpu|get_output)\b",
    ),
    (
        Phase.REQUESTS,
        r"/zmq/|: (?:recv_requests|process_input_requests|process_input_sockets"
        r"|_process_input_queue|_fetch_new_requests|_fetch_and_activate_new_requests"
        r"|handle_generate_request)\b",
    ),
    (
        Phase.SAMPLING,
        r"vllm/v1/sample/|sglang/srt/(?:layers/sampler|sampling/)|pyexecutor/sampler"
        r"|: (?:sample|_sample|sample_tokens|_sample_async)\b",
    ),
    (
        Phase.INPUTS,
        r"vllm/v1/worker/(?:gpu_input_batch|block_table)|vllm/v1/attention/|/layers/attention/"
        r"|model_executor/(?:forward_batch_info|input_buffers)|/speculative/"
        r"|: (?:_prepare_\w+|_update_states\w*|_build_attention_metadata|_preprocess|replay_prepare"
        r"|init_forward_metadata\w*|prepare_for_decode|prepare_for_extend|init_new"
        r"|get_model_worker_batch)\b",
    ),
    (
        Phase.MODEL,
        r"^nn\.Module: |model_executor/models/|sglang/srt/models/|compilation/cuda_graph\.py"
        r"|_torch/models/|: (?:_model_forward|_forward_step|replay)\b|GraphLaunch",
    ),
    (
        Phase.SCHEDULING,
        r"vllm/v1/core/|sglang/srt/managers/(?:schedule_batch|schedule_policy)\.py"
        r"|sglang/srt/mem_cache/|pyexecutor/(?:scheduler|resource_manager|kv_cache_manager)"
        r"|: (?:_?schedule|get_next_batch_to_run|get_new_batch_prefill|update_running_batch)\b",
    ),
)
_PATTERNS = tuple((phase, re.compile(pattern)) for phase, pattern in _NAMES)
_KINDS = (
    EventKind.PYTHON,
    EventKind.ANNOTATION,
    EventKind.OPERATOR,
    EventKind.LAUNCH,
    EventKind.SYNCHRONIZE,
    EventKind.RUNTIME,
)


class PhaseTime(Struct, frozen=True):
    """Idle time of the device while the host is in a phase."""

    phase: Phase
    idle_ns: int
    code: tuple[tuple[str, int], ...]
    """The innermost names, by their own part of that time; the longest first."""


@memoized
def host_phases(signals: Signals) -> tuple[PhaseTime, ...]:
    """Idle time that the host causes, by phase, the longest first; empty for other programs."""
    if server_steps(signals) is None:
        return ()
    idle = signals.attribution.of(*HOST_CAUSED, Cause.BETWEEN_STEPS)
    return phases_within(signals, idle)


def phases_within(signals: Signals, idle: Intervals) -> tuple[PhaseTime, ...]:
    """The phases of the thread that runs the model, during some intervals."""
    trace, steps = signals.trace, server_steps(signals)
    if steps is None:
        return ()
    track = int(trace.events.track[steps.row[0]])
    rows, own_ns = _own_time(trace, track, idle)
    phase_of_name = {
        string: phase_of(trace.strings[string])
        for string in np.unique(trace.events.name[rows]).tolist()
    }
    phases = _phases(trace, track, phase_of_name, rows)
    found = []
    for number, phase in enumerate(Phase):
        chosen = phases == number
        if (idle_ns := int(own_ns[chosen].sum())) > 0:
            found.append(PhaseTime(phase, idle_ns, _by_name(trace, rows[chosen], own_ns[chosen])))
    unknown_ns = total_ns(idle) - int(own_ns.sum())
    if unknown_ns > 0:
        found.append(PhaseTime(Phase.UNKNOWN, unknown_ns, ()))
    return tuple(sorted(found, key=lambda part: -part.idle_ns))


def phase_of(name: str) -> Phase | None:
    """The phase that a name proves."""
    return next((phase for phase, pattern in _PATTERNS if pattern.search(name)), None)


def _own_time(trace: Trace, track: int, idle: Intervals) -> tuple[Int32, Int64]:
    """The thread's events, and the idle time of each without that of the events inside it."""
    events = trace.events
    rows = trace.rows(*_KINDS)
    rows = rows[events.track[rows] == track]
    inside = overlap_ns(idle, events.start_ns[rows], events.end_ns[rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    own_ns = np.zeros(len(events), dtype=np.int64)
    own_ns[rows] = inside
    around = np.zeros(len(events), dtype=bool)
    around[rows] = True
    above = events.parent[rows]
    parent = np.where(above >= 0, nearest(events.parent, around)[above], -1)
    np.subtract.at(own_ns, parent[parent >= 0], inside[parent >= 0])
    return rows, np.maximum(own_ns[rows], 0)


def _phases(trace: Trace, track: int, phase_of_name: dict[int, Phase | None], rows: Int32) -> Int64:
    """The number of each row's phase, that of the innermost event around it that has one."""
    events, order = trace.events, list(Phase)
    on_track = np.flatnonzero(events.track == track).astype(np.int32)
    names, name = unique_inverse(events.name[on_track])
    numbers = np.full(len(names), -1, dtype=np.int64)
    for slot, string in enumerate(names.tolist()):
        phase = phase_of_name.get(string)
        numbers[slot] = -1 if phase is None else order.index(phase)
    number = np.full(len(events), -1, dtype=np.int64)
    number[on_track] = numbers[name]
    inner = nearest(events.parent, number >= 0)[rows]
    return np.where(inner >= 0, number[inner], order.index(Phase.OTHER))


_MOST_NAMES = 3


def _by_name(trace: Trace, rows: Int32, own_ns: Int64) -> tuple[tuple[str, int], ...]:
    names, name = unique_inverse(trace.events.name[rows])
    total = np.bincount(name, weights=own_ns, minlength=len(names)).astype(np.int64)
    longest = np.argsort(-total, kind="stable")[:_MOST_NAMES].tolist()
    return tuple((trace.strings[names[i]], int(total[i])) for i in longest if total[i] > 0)
