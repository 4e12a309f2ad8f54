"""What programs of the same kind reach on the same device, where that has been published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.workload.parts import Part
from tb_perfadvisor.signals.workload.workload import UNKNOWN, workload
from tb_perfadvisor.units import format_share

Verdict = Literal["good", "fair", "poor"]


class Published(Struct, frozen=True):
    """Published MFU of training language models on a device, with 16-bit arithmetic."""

    device: str
    """Part of its name."""
    low: float
    high: float
    source: str
    url: str


LANGUAGE_MODELS: Final = (
    Published(
        "H100",
        0.38,
        0.43,
        "The Llama 3 Herd of Models, table 4",
        "https://arxiv.org/abs/2407.21783",
    ),
    Published(
        "A100",
        0.415,
        0.563,
        "Reducing Activation Recomputation in Large Transformer Models, table 5",
        "https://arxiv.org/abs/2205.05198",
    ),
    Published(
        "TPU v4",
        0.462,
        0.462,
        "PaLM, table 3",
        "https://arxiv.org/abs/2204.02311",
    ),
)
FAR_BELOW: Final = 0.75
"""Of the low end of what has been published. Less is poor."""

NOT_INPUT_BOUND: Final = 0.05
INPUT_BOUND: Final = 0.2
"""From here on, the TensorFlow Profiler calls a program highly input-bound."""
_INPUT_SOURCE: Final = "TensorFlow Profiler, input pipeline analyzer"
_INPUT_URL: Final = "https://www.tensorflow.org/guide/profiler#input_pipeline_analyzer"


class Reference(Struct, frozen=True):
    """How a number compares with what has been published."""

    verdict: Verdict
    text: str
    """What has been published, in a few words."""
    source: str
    url: str


def references(
    signals: Signals, mfu: float | None, input_wait: float | None
) -> Mapping[str, Reference]:
    """The references that fit a program, by the id of the key number.

    A program on another device, or of another kind, has none: its numbers mean something else.

    Args:
        signals: Of the rank that the numbers are of.
        mfu: Its model FLOP utilization; None if unknown.
        input_wait: The share of its time in which no work runs because input is missing.
    """
    program = workload(signals)
    found: dict[str, Reference] = {}
    if program.mode not in (Part.TRAINING.label, UNKNOWN):
        return found
    if input_wait is not None:
        found["input-wait"] = _of_input(input_wait)
    # Fused attention shows a transformer, and that its attention is no bottleneck by itself.
    if mfu is not None and program.has(Part.TRAINING) and program.has(Part.FUSED_ATTENTION):
        name = signals.device_facts.name if signals.device_facts is not None else ""
        fitting = next((each for each in LANGUAGE_MODELS if each.device in name), None)
        if fitting is not None:
            found["mfu"] = _of_mfu(mfu, fitting)
    return found


def _of_input(share: float) -> Reference:
    if share < NOT_INPUT_BOUND:
        verdict: Verdict = "good"
        text = f"below {format_share(NOT_INPUT_BOUND)} is not input-bound"
    else:
        verdict = "poor" if share >= INPUT_BOUND else "fair"
        text = f"{format_share(INPUT_BOUND)} or more is highly input-bound"
    return Reference(verdict, text, _INPUT_SOURCE, _INPUT_URL)


def _of_mfu(mfu: float, published: Published) -> Reference:
    reach = f"{published.low * 100:.0f}"
    if published.high > published.low:
        reach += f" to {published.high * 100:.0f}"
    verdict: Verdict = "good" if mfu >= published.low else "fair"
    if mfu < FAR_BELOW * published.low:
        verdict = "poor"
    text = f"large language models reach {reach} % on {published.device}"
    return Reference(verdict, text, published.source, published.url)
