"""What an inference server does in a step, and in the time between its phases.

What an inference server's host does while the device waits for the next step.

Sources of names: vllm/v1 (engine, core/sched, worker, sample), sglang/srt (managers,
model_executor, layers), tensorrt_llm/_torch/pyexecutor.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.core.steps.server_annotations import (
    ServerAnnotations,
    StepKind,
    server_annotations,
)
from tb_perfadvisor.signals.host.call_tree import self_times
from tb_perfadvisor.signals.launch.device_graphs import in_graphs
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, last_before, total_ns
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S

Mask = NDArray[np.bool_]


class ServerSteps(ServerAnnotations, frozen=True):
    """The annotated steps whose device work was recorded, by start; shape (steps,).

    A step's work is what the host launches from its annotation to the next one: servers launch the
    sampler after the model. Unknown numbers are -1.
    """

    period_ns: Int64
    """From the start of the step to the start of the next one; -1 if the steps do not repeat."""
    device_ns: Int64
    """Time in which the device executes at least one event of the step."""
    first_ns: Int64
    """When the device begins the step's work."""
    last_ns: Int64
    """When it has done it."""
    graphs: Int64
    """Number of GPU graphs that the step replays."""
    launches: Int64
    """Number of launches beside them."""
    graph_events: Int64
    """Number of device events in its graphs."""
    events: Int64
    """Number of its device events."""

    def is_kind(self, *kinds: StepKind) -> Mask:
        """Which steps are of some kinds."""
        return np.isin(self.kind, kinds)

    @property
    def requests(self) -> Int64:
        """Requests of each step; -1 if either kind is unknown."""
        known = (self.prefill_requests >= 0) & (self.decode_requests >= 0)
        return np.where(known, self.prefill_requests + self.decode_requests, -1)

    @property
    def tokens(self) -> Int64:
        """Tokens that each step processes; -1 if either kind is unknown."""
        known = (self.prefill_tokens >= 0) & (self.decode_tokens >= 0)
        return np.where(known, self.prefill_tokens + self.decode_tokens, -1)

    @property
    def is_periodic(self) -> bool:
        """Whether it is known how long each step takes, with what follows it."""
        return len(self) > 0 and bool((self.period_ns >= 0).all())


@memoized
def server_steps(signals: Signals) -> ServerSteps | None:
    """The steps of an inference server; None if it annotates none, or ran no device work in them.

    These are the used steps, if the profile's steps are those that the server annotates. A profile
    of one or two of them has no steps whose time is known.
    """
    trace, steps = signals.trace, signals.steps
    annotated, events = server_annotations(trace), trace.events
    if not len(annotated) or not len(signals.device.rows):
        return None
    start_ns = events.start_ns[annotated.row]
    period_ns = np.full(len(annotated), -1, dtype=np.int64)
    if len(steps) and not steps.is_inferred:
        end_ns = int(steps.host_end_ns[-1])
        inside = (start_ns >= steps.host_start_ns[0]) & (start_ns < end_ns)
        # The profiler's own markers begin a little before the server's annotations.
        until_ns = np.append(start_ns[1:], end_ns)
        period_ns = np.minimum(until_ns, end_ns) - start_ns
    else:
        inside = np.ones(len(annotated), dtype=bool)
    rows = signals.device.rows
    launch = events.launched_by[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    step = last_before(start_ns, events.start_ns[launch])
    rows, launch, step = rows[step >= 0], launch[step >= 0], step[step >= 0]
    replayed = in_graphs(trace, rows)
    count = len(annotated)

    def per_step(chosen: Mask) -> Int64:
        return np.bincount(step[chosen], minlength=count)

    def launches(chosen: Mask) -> Int64:
        first = np.unique(launch[chosen], return_index=True)[1]
        return np.bincount(step[chosen][first], minlength=count)

    first_ns = np.full(count, np.iinfo(np.int64).max)
    last_ns = np.full(count, -1, dtype=np.int64)
    np.minimum.at(first_ns, step, events.start_ns[rows])
    np.maximum.at(last_ns, step, events.end_ns[rows])
    number = per_step(np.ones(len(step), dtype=bool))
    kept = inside & (number > 0)
    if not kept.any():
        return None
    device_ns = _busy_ns(events.start_ns[rows], events.end_ns[rows], step, count)
    return ServerSteps(
        **{name: getattr(annotated, name)[kept] for name in annotated.__struct_fields__},
        period_ns=period_ns[kept],
        device_ns=device_ns[kept],
        first_ns=first_ns[kept],
        last_ns=last_ns[kept],
        graphs=launches(replayed)[kept],
        launches=launches(~replayed)[kept],
        graph_events=per_step(replayed)[kept],
        events=number[kept],
    )


def _busy_ns(start_ns: Int64, end_ns: Int64, group: Int64, count: int) -> Int64:
    """The length of the union of each group's ranges; shape (count,)."""
    order = np.lexsort((start_ns, group))
    start_ns, end_ns, group = start_ns[order], end_ns[order], group[order]
    # Put the groups one after the other, so that one running maximum serves all of them.
    is_first = np.append(True, group[1:] != group[:-1])
    last = np.flatnonzero(np.append(is_first[1:], True))
    origin_ns = start_ns[is_first]
    lengths_ns = np.maximum.reduceat(end_ns, np.flatnonzero(is_first)) - origin_ns
    moved_ns = np.append(0, np.cumsum(lengths_ns)[:-1]) - origin_ns
    by = np.repeat(moved_ns, np.diff(last, prepend=-1))
    start_ns, end_ns = start_ns + by, end_ns + by
    before = np.append(0, np.maximum.accumulate(end_ns)[:-1])
    new_ns = np.maximum(end_ns - np.maximum(start_ns, before), 0)
    return np.bincount(group, weights=new_ns, minlength=count).astype(np.int64)


def tokens_per_s(steps: ServerSteps, chosen: Mask) -> float | None:
    """Tokens that some steps process per second of their time; None if unknown."""
    tokens, time_ns = steps.tokens[chosen], steps.period_ns[chosen]
    if not len(tokens) or (tokens < 0).any() or (time_ns < 0).any() or not time_ns.sum():
        return None
    return float(tokens.sum()) * NS_PER_S / float(time_ns.sum())


def generated_per_s(steps: ServerSteps) -> float | None:
    """Tokens that decoding generates per second, over all steps; None if unknown.

    It is one token per request. With speculative decoding, the profile does not tell how many
    drafts are accepted.
    """
    requests, time_ns = steps.decode_requests, steps.period_ns
    is_speculative = (steps.decode_tokens != requests).any()
    if is_speculative or (requests < 0).any() or (time_ns < 0).any() or not time_ns.sum():
        return None
    return float(requests.sum()) * NS_PER_S / float(time_ns.sum())


def kinds_of(steps: ServerSteps) -> tuple[StepKind, ...]:
    """The kinds that occur, in order of `StepKind`."""
    return tuple(StepKind(kind) for kind in distinct(steps.kind).tolist())


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
_PATTERNS = tuple((phase, regex(pattern)) for phase, pattern in _NAMES)
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
    rows, own_ns = self_times(trace, track, _KINDS, idle)
    own_ns = np.maximum(own_ns, 0)
    phase_of_name = {
        string: phase_of(trace.strings[string])
        for string in distinct(trace.events.name[rows]).tolist()
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
