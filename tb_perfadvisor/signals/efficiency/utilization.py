"""MFU and HFU: the share of the devices' peak that a step uses."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals.efficiency.product_flop import (
    ProductFlop,
    operator_flop,
    runs_products,
    xla_flop,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.useful_share import useful_share
from tb_perfadvisor.signals.recording.hint import first_fitting
from tb_perfadvisor.signals.recording.hints import OUTSIDE_GRAPHS, hint_for
from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS
from tb_perfadvisor.signals.workload.parts import SERVERS, Part
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import NS_PER_S, format_share

KNOWN_SHARE: Final = 0.98
"""Share of the products' time, and of their FLOP, that must be known. At an MFU of 50 %, products
that take 2 % of the time and are not counted lower it by about one point."""


class Utilization(Struct, frozen=True):
    """How much of its devices' peak a rank uses, over the used steps; None is unknown."""

    mfu: float | None = None
    """Model FLOP divided by the time and the devices' dense peak."""
    hfu: float | None = None
    """Executed FLOP, likewise."""
    model_flop: float | None = None
    """Model FLOP per step on all devices of the rank."""
    executed_flop: float | None = None
    peak_flop_per_s: float | None = None
    """Dense peak of one device, weighted by the executed FLOP of each number format."""
    devices: int | None = None
    """Devices whose work was counted."""
    reason: str = ""
    """Why MFU is unknown."""
    reason_in_short: str = ""
    remedy: str = ""
    """How to record what is missing."""


@memoized
def utilization(signals: Signals) -> Utilization:
    """MFU and HFU of one rank."""
    if signals.trace.totals is not None:
        return Utilization(
            reason="The files contain only sums, no single operations.",
            reason_in_short="only sums recorded",
        )
    if signals.device.is_missing:
        return Utilization(
            reason="The profile has no events of the device.",
            reason_in_short="no device events",
        )
    is_xla = len(signals.trace.hlo_events.row) > 0
    flop = xla_flop(signals) if is_xla else operator_flop(signals)
    problem = _unknown_flop(signals, flop, is_xla=is_xla)
    if problem is not None:
        return problem
    flop = _with_small_kernels(flop)
    model = float(flop.model.sum()) / signals.steps.count
    counted = Utilization(
        model_flop=None if np.isnan(model) else model,
        executed_flop=float(flop.executed.sum()) / signals.steps.count,
    )
    if signals.device.index is None:
        return replace(
            counted, reason="The peak rate of the CPU is unknown.", reason_in_short="peak unknown"
        )
    return _at_peak(signals, flop, counted, devices=1 if is_xla else signals.device.used)


def _unknown_flop(signals: Signals, flop: ProductFlop, *, is_xla: bool) -> Utilization | None:
    """Why the FLOP are unknown; None if they are known."""
    share = flop.known_share
    if share is None or (share == 0 and not flop.executed.any()):
        if not is_xla and not (signals.trace.operators.shapes >= 0).any():
            return Utilization(
                reason="The shapes of the operators were not recorded.",
                reason_in_short="no shapes recorded",
                remedy=hint_for(Need.SHAPES, workload(signals)),
            )
        if share is None and runs_products(signals):
            return Utilization(
                reason="The products that run in the steps were launched before them.",
                reason_in_short="work outside the steps",
                remedy=hint_for(Need.SEVERAL_STEPS, workload(signals)),
            )
        if share is None:
            return Utilization(
                reason="No matrix product, convolution or attention was seen in the steps.",
                reason_in_short="no products seen",
            )
    if share < KNOWN_SHARE:
        is_none = not flop.executed.any()
        return Utilization(
            reason="The profile does not give the shapes of matrix products and attention."
            if is_none
            else f"FLOP are known for only {format_share(share)} of the time of matrix products "
            "and attention.",
            reason_in_short="no shapes of products"
            if is_none
            else f"{format_share(share)} of products known",
            remedy=_remedy(signals, is_xla=is_xla),
        )
    if not flop.executed.any():
        return Utilization(
            reason="The products in the steps have no elements.",
            reason_in_short="no products seen",
        )
    return None


def _with_small_kernels(flop: ProductFlop) -> ProductFlop:
    """Take unknown model FLOP for the executed ones if they are a small part of all."""
    is_unknown = np.isnan(flop.model)
    if float(flop.executed[is_unknown].sum()) > (1 - KNOWN_SHARE) * float(flop.executed.sum()):
        return flop
    return replace(flop, model=np.where(is_unknown, flop.executed, flop.model))


def _remedy(signals: Signals, *, is_xla: bool) -> str:
    if is_xla:
        return ""
    program = workload(signals)
    if program.has(Part.DEVICE_GRAPHS) and not len(signals.trace.captured.row):
        return first_fitting(OUTSIDE_GRAPHS, program)
    if not (signals.trace.operators.shapes >= 0).any():
        return hint_for(Need.SHAPES, program)
    if (function := _launching_function(signals)) is not None:
        return (
            f"{function} launches its products without an operator, as in Transformer Engine 2, "
            "so no profile has their shapes."
        )
    if any(program.has(part) for part in SERVERS):
        return "Kernels that the server brings along for its products have no formula."
    return (
        "Custom kernels, and products that torch.compile generates, have no formula. Record some "
        "steps with PyTorch's own operators, such as scaled_dot_product_attention, and without "
        "max-autotune."
    )


_TRANSFORMER_ENGINE = re.compile(r"_(?:LayerNorm|Grouped)?(?:Linear|MLP)(?:Backward)?$")
"""Its autograd functions. With tensor parallelism, what they multiply may be larger than their
inputs, so these do not tell the product."""


def _launching_function(signals: Signals) -> str | None:
    """The first of its autograd functions that launches kernels itself."""
    trace = signals.trace
    launch = trace.events.launched_by[trace.rows(EventKind.KERNEL)]
    operator = signals.launching_operator[launch[launch >= 0]]
    names = trace.texts(distinct(trace.events.name[operator[operator >= 0]]))
    found = sorted(name for name in names if _TRANSFORMER_ENGINE.match(name))
    return found[0] if found else None


def _at_peak(
    signals: Signals, flop: ProductFlop, counted: Utilization, *, devices: int
) -> Utilization:
    facts = signals.device_facts
    if facts is None or facts.peaks is None:
        return replace(
            counted,
            reason="The peak rate of the device is unknown.",
            reason_in_short="peak unknown",
            remedy="Name the device with --device.",
        )
    rate = _rates(facts.peaks)[flop.number_format]
    executed = float(flop.executed.sum())
    if float(flop.executed[np.isnan(rate)].sum()) > (1 - KNOWN_SHARE) * executed:
        return replace(
            counted,
            reason="The number format of the products, or the device's peak for it, is unknown.",
            reason_in_short="precision unknown",
        )
    rate = np.where(np.isnan(rate), np.nanmax(rate), rate)
    possible_s = signals.attribution.window_ns / NS_PER_S * devices
    mfu, hfu = (float((amount / rate).sum()) / possible_s for amount in (flop.model, flop.executed))
    if hfu > 1:
        return replace(
            counted,
            reason="The products would exceed the device's peak: it did not run in the recorded "
            "time what was launched in it, or it is not the device that it is taken for.",
            reason_in_short="above the peak",
        )
    peak = executed / float((flop.executed / rate).sum())
    counted = replace(counted, hfu=hfu, peak_flop_per_s=peak, devices=devices)
    if np.isnan(mfu):
        return replace(
            counted,
            reason="What kernels of the program's own, such as fused attention, compute for the "
            "model is unknown.",
            reason_in_short="custom kernels",
        )
    # What several devices repeat, or what nobody uses, is no work of the model.
    useful = useful_share(signals)
    return replace(counted, mfu=mfu if useful is None else mfu * useful)


def _rates(peaks: Peaks) -> Float64:
    """The dense peak of each of `NUMBER_FORMATS` in FLOP/s; NaN if it is unknown."""
    rates = [
        # fp32, as opposed to tf32, runs on the vector units.
        peaks.flop_per_s(name, tensor=name != "fp32") if name else None
        for name in NUMBER_FORMATS
    ]
    return np.array([np.nan if rate is None else rate for rate in rates])
