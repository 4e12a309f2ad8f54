"""The steps of an inference server: what each does, for how many requests, and how."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.steps.server_annotations import StepKind, server_annotations
from tb_perfadvisor.signals.launch.device_graphs import in_graphs
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int32, Int64, UInt8
from tb_perfadvisor.units import NS_PER_S

Mask = NDArray[np.bool_]


class ServerSteps(Struct, frozen=True):
    """The annotated steps whose device work was recorded, by start; shape (steps,).

    A step's work is what the host launches from its annotation to the next one: servers launch the
    sampler after the model. Unknown numbers are -1.
    """

    row: Int32
    """The annotation."""
    kind: UInt8
    """`StepKind`."""
    prefill_requests: Int64
    prefill_tokens: Int64
    decode_requests: Int64
    decode_tokens: Int64
    cached_tokens: Int64
    captured_requests: Int64
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

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.row)

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
