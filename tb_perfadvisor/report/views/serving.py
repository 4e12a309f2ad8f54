"""The serving view: what an inference server's steps do, and what the host does between them."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.serving.decode import DecodeFloor, decode_floor
from tb_perfadvisor.signals.serving.server_steps import (
    Mask,
    ServerSteps,
    generated_per_s,
    host_phases,
    kinds_of,
    server_steps,
    tokens_per_s,
)
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_bytes, format_duration, format_share

MAX_STEPS = 2_000
"""More bars than a screen has pixels."""


class ServingKind(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one kind; means over them. Null is unknown."""

    kind: str
    """prefill, mixed or decode."""
    steps: int
    requests: float | None
    prefill_tokens: float | None
    decode_tokens: float | None
    period_ns: int | None
    """From the start of a step to the start of the next one."""
    device_ns: int
    """Time in which the device executes the step's work."""
    tokens_per_s: float | None
    replayed_steps: int
    """How many of the steps replay GPU graphs."""
    graph_share: float
    """Share of the device's events that graphs launch."""
    launches: float
    """Launches beside the graphs."""
    captured_requests: float | None
    """Size of the graph that a step is padded to."""


class ServingCode(msgspec.Struct, frozen=True, kw_only=True):
    """Host code, by its own part of the idle time."""

    name: str
    idle_ns: int


class ServingPhase(msgspec.Struct, frozen=True, kw_only=True):
    """What the host does while the device is idle; means per step."""

    phase: str
    idle_ns: int
    code: list[ServingCode]


class ServingView(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of an inference server that annotates them, on one rank."""

    kinds: list[ServingKind]
    generated_per_s: float | None
    """Tokens that decoding generates per second, over all steps."""
    step_kind: list[str]
    """Per step, in order, like the lists below; the first ones of a long profile."""
    step_ns: list[int]
    """From the start of a step to the start of the next one; the device's time if
    `is_device_time`."""
    step_requests: list[int | None]
    step_tokens: list[int | None]
    step_graphs: list[int]
    is_device_time: bool
    """Whether the profile has too few steps to tell how long one takes."""
    truncated: int
    floor: str
    """What a decode step takes at least, or why that is unknown; empty without decode steps."""
    phases: list[ServingPhase]


def make_serving_view(signals: Signals) -> ServingView | None:
    """The serving view; None for programs that annotate no steps of a server."""
    steps = server_steps(signals)
    if steps is None:
        return None
    time_ns = steps.period_ns if steps.is_periodic else steps.device_ns
    # Without known steps, the whole recording counts as one.
    divisor = signals.steps.count
    return ServingView(
        kinds=[_of_kind(steps, kind) for kind in kinds_of(steps)],
        generated_per_s=generated_per_s(steps),
        step_kind=[StepKind(kind).label for kind in steps.kind[:MAX_STEPS].tolist()],
        step_ns=time_ns[:MAX_STEPS].tolist(),
        step_requests=_known(steps.requests[:MAX_STEPS]),
        step_tokens=_known(steps.tokens[:MAX_STEPS]),
        step_graphs=steps.graphs[:MAX_STEPS].tolist(),
        is_device_time=not steps.is_periodic,
        truncated=max(len(steps) - MAX_STEPS, 0),
        floor=describe_floor(decode_floor(signals), _decode_device_ns(steps)),
        phases=[
            ServingPhase(
                phase=part.phase.value,
                idle_ns=round(part.idle_ns / divisor),
                code=[
                    ServingCode(name=name, idle_ns=round(idle_ns / divisor))
                    for name, idle_ns in part.code
                ],
            )
            for part in host_phases(signals)
        ],
    )


def _decode_device_ns(steps: ServerSteps) -> float:
    device_ns = steps.device_ns[steps.is_kind(StepKind.DECODE)]
    return float(device_ns.mean()) if len(device_ns) else 0.0


def describe_floor(floor: DecodeFloor | None, device_ns: float) -> str:
    """The floor of decode steps in words; empty without such steps.

    `device_ns` is what they take on the device, on average.
    """
    if floor is None:
        return ""
    if floor.floor_ns is None:
        return f"What a decode step takes at least is unknown. {floor.missing}"
    read = []
    if floor.weight_bytes is not None:
        read.append(f"{format_bytes(floor.weight_bytes)} of weights")
    if floor.cache_bytes is not None:
        read.append(f"{format_bytes(floor.cache_bytes)} of the key-value cache")
    condition = rest = ""
    if floor.cache_bytes is None:
        rest = f" The key-value cache comes on top. {floor.missing}"
    else:
        condition = f" if every layer attends to all {floor.cached_tokens:,.0f} tokens"
    if floor.weight_bytes is None:
        rest = f" The weights come on top. {floor.missing}"
    return (
        f"Reading {' and '.join(read)} takes at least {format_duration(floor.floor_ns)}{condition}:"
        f" {format_share(floor.floor_ns / device_ns)} of a decode step's time on the device.{rest}"
    )


def _of_kind(steps: ServerSteps, kind: StepKind) -> ServingKind:
    chosen = steps.is_kind(kind)
    period_ns = mean(steps.period_ns, chosen)
    return ServingKind(
        kind=kind.label,
        steps=int(chosen.sum()),
        requests=mean(steps.requests, chosen),
        prefill_tokens=mean(steps.prefill_tokens, chosen),
        decode_tokens=mean(steps.decode_tokens, chosen),
        period_ns=None if period_ns is None else round(period_ns),
        device_ns=round(float(steps.device_ns[chosen].mean())),
        tokens_per_s=tokens_per_s(steps, chosen),
        replayed_steps=int((steps.graphs[chosen] > 0).sum()),
        graph_share=float(steps.graph_events[chosen].sum() / steps.events[chosen].sum()),
        launches=float(steps.launches[chosen].mean()),
        captured_requests=mean(steps.captured_requests, chosen),
    )


def mean(values: Int64, chosen: Mask) -> float | None:
    """The mean over some steps; None if it is unknown for one of them."""
    values = values[chosen]
    return float(values.mean()) if len(values) and (values >= 0).all() else None


def _known(values: Int64) -> list[int | None]:
    return [None if value < 0 else value for value in np.asarray(values).tolist()]
