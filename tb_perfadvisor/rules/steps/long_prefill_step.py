"""Requests that generate tokens wait while a step reads prompts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import NS_PER_MS, format_duration

_FEWEST_DECODES = 3
"""With fewer steps that only decode, their usual time is unknown."""


class LongPrefillStep(Rule):
    """Requests that generate tokens wait long for the next one, because a step reads prompts.

    What it finds
    -------------
    Steps of an inference server that read prompts while other requests are in the middle of their
    answers, and take much longer than steps that only generate.

    Why it matters
    --------------
    All requests of a step get their tokens when the step ends. A step that reads thousands of
    prompt tokens takes many times as long as one that only generates, so that answers pause.
    Splitting prompts into smaller chunks makes the pauses shorter and more frequent.

    How it is measured
    ------------------
    In a step that both reads and generates, its decoding requests wait. In a step that only reads
    prompts, as many wait as decode both in the step before it and after it. The time is from the
    start of the step to the start of the next one, or the device's time if the profile has too
    few steps. There is no estimate: smaller chunks shorten the longest pause, but not the time for
    all requests together, which rather grows.

    When to ignore
    --------------
    When only throughput counts, as in offline batches, or when the first token matters more than
    the pauses after it.

    How to verify
    -------------
    On the page Serving, steps that read prompts take a small multiple of a decode step. The
    server's 99th percentile of inter-token latency falls.

    References:
    ----------
    Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve" (2024);
    vLLM documentation, "Optimization and Tuning", chunked prefill.
    """

    id = "long-prefill-step"
    title = "Split long prompts into smaller chunks"
    category = "steps"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    shortest_pause_ns = Limit(
        50 * NS_PER_MS,
        "ns",
        "20 tokens per second are more than people read; MLPerf Inference asks for 40 to 200 ms.",
    )
    smallest_ratio = Limit(
        3.0, "ratio", "A step of three times the usual time is what a small chunk costs as well."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when decoding requests wait long for prompts."""
        steps = server_steps(signals)
        if steps is None:
            return
        pauses = _pauses(steps)
        is_long = (pauses.waiting > 0) & (pauses.time_ns >= self.shortest_pause_ns)
        if pauses.usual_ns is not None:
            is_long &= pauses.time_ns >= self.smallest_ratio * pauses.usual_ns
        if not is_long.any():
            return
        time_ns = pauses.time_ns[is_long]
        longest = int(np.flatnonzero(is_long)[time_ns.argmax()])
        count, waiting = int(is_long.sum()), int(pauses.waiting[longest])
        pause = format_duration(int(time_ns.max()))
        times = "once" if count == 1 else f"{count:,} times"
        often = (
            f"Requests in the middle of their answers wait for prompts {times} in"
            f" {len(steps):,} steps: {waiting:,} of them wait"
            if len(steps) > 1
            else f"{waiting:,} requests in the middle of their answers wait"
        )
        usual = (
            ""
            if pauses.usual_ns is None
            else f" Steps that only decode take {format_duration(pauses.usual_ns)}."
        )
        yield Finding(
            instance=f"{waiting:,} requests wait {pause}",
            summary=(f"{often} {pause} for the next token{_read(steps, longest)}.{usual}"),
            severity="low",
            evidence=(
                _table(steps, pauses, is_long),
                costliest(
                    "Steps that decoding requests wait for",
                    signals.worker,
                    steps.row[is_long],
                    time_ns,
                ),
            ),
            remedies=advise("prefill-chunks"),
        )


class _Pauses(Struct, frozen=True):
    """How long requests wait for each step; columns of shape (steps,)."""

    waiting: Int64
    """Requests that wait for their next token; 0 for steps that read no prompts."""
    time_ns: Int64
    usual_ns: int | None
    """Of steps that only decode; None if there are too few."""


def _pauses(steps: ServerSteps) -> _Pauses:
    decodes = steps.is_kind(StepKind.DECODE)
    time_ns = steps.period_ns if steps.is_periodic else steps.device_ns
    usual = int(np.median(time_ns[decodes])) if decodes.sum() >= _FEWEST_DECODES else None
    number = np.maximum(steps.decode_requests, 0)
    # Steps that only read prompts may follow one another.
    decoding = np.flatnonzero(number > 0)
    following = np.searchsorted(decoding, np.arange(len(steps)))
    around = np.minimum(
        np.append(0, number[decoding])[following], np.append(number[decoding], 0)[following]
    )
    waiting = np.where(steps.is_kind(StepKind.PREFILL), around, number)
    return _Pauses(np.where(decodes, 0, waiting), time_ns, usual)


def _read(steps: ServerSteps, place: int) -> str:
    tokens = int(steps.prefill_tokens[place])
    return "" if tokens < 0 else f" while the step reads {tokens:,} prompt tokens"


def _table(steps: ServerSteps, pauses: _Pauses, chosen: Mask) -> Table:
    def known(value: int) -> Cell:
        return None if value < 0 else value

    longest_first = np.flatnonzero(chosen)[np.argsort(-pauses.time_ns[chosen], kind="stable")]
    return Table(
        "Steps that decoding requests wait for",
        (
            Column("kind", "Step"),
            Column("waiting", "Requests that wait", "count"),
            Column("prompts", "Prompts", "count"),
            Column("tokens", "Prompt tokens", "count"),
            Column("time_ns", "Time", "ns"),
        ),
        tuple(
            (
                StepKind(steps.kind[place]).label,
                int(pauses.waiting[place]),
                known(int(steps.prefill_requests[place])),
                known(int(steps.prefill_tokens[place])),
                int(pauses.time_ns[place]),
            )
            for place in longest_first.tolist()
        ),
    )
