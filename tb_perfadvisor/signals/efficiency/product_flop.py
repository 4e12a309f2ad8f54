"""FLOP of the products in the used window: matrix products, convolutions and attention.

*Model FLOP* are what the model needs, by the convention of Chowdhery et al. (PaLM, appendix B):
attention counts in full whatever its mask, its backward pass twice its forward pass, and nothing
counts that is recomputed. *Executed FLOP* are what the device computes: recomputation is included,
and what a causal kernel skips is left out. Neither includes elementwise operations.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import work_operators
from tb_perfadvisor.signals.core.placement import has_ancestor, innermost_marked
from tb_perfadvisor.signals.core.precision import effective_precision
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.device.recomputation import recomputation, recomputes
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import PRODUCTS, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.product_time import product_flop
from tb_perfadvisor.signals.work.operator_inputs import Work
from tb_perfadvisor.signals.work.operator_work import is_product
from tb_perfadvisor.signals.work.products import outermost_products, replayed_products
from tb_perfadvisor.signals.work.roofline import (
    FORMAT_OF_WIDTH,
    MATRIX_FAMILIES,
    NUMBER_FORMATS,
    roofline,
)
from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Precision, TrackKind
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask
from tb_perfadvisor.trace.intervals import overlap_ns, single
from tb_perfadvisor.trace.tables import Float64, Int32, Int64, UInt8

_TEMPLATE = "triton_tem_"
"""How torch.compile names what it generates from its templates for products."""
_FP32, _TF32 = NUMBER_FORMATS.index("fp32"), NUMBER_FORMATS.index("tf32")


class ProductFlop(Struct, frozen=True):
    """Products that the used window launches; in XLA programs, runs. Columns of shape (n,)."""

    executed: Float64
    model: Float64
    number_format: UInt8
    """Index into `NUMBER_FORMATS`; 0 is unknown."""
    known_share: float | None
    """Share of the time of all products whose FLOP are known; None if the device runs none."""


@memoized
def operator_flop(signals: Signals) -> ProductFlop:
    """The products of PyTorch's operators, from the shapes of their inputs.

    An operator inside another one with a known formula is part of it and does not count. If the
    program uses a device, operators that launch nothing compute shapes, or prepare input.
    """
    rows, works = outermost_products(signals)
    replayed = replayed_products(signals)
    kernels = _product_kernels(signals, np.concatenate((rows, replayed.operator)))
    known_share = kernels.known_share
    if signals.device.index is None:
        known_share = _known_share_of_operators(signals, rows)
    else:
        launches = launches_work(signals, rows)
        rows = np.concatenate((rows[launches], replayed.operator))
        works = np.concatenate((works[launches], replayed.work))
    executed = np.array([work.flop for work in works], dtype=np.float64)
    model = np.array([_model_flop(work) for work in works], dtype=np.float64)
    model[recomputes(signals, rows)] = 0.0
    formats = np.array([NUMBER_FORMATS.index(work.number_format) for work in works], dtype=np.uint8)
    return ProductFlop(
        executed,
        model,
        _refined_formats(signals, rows, formats, kernels),
        known_share,
    )


def _model_flop(work: Work) -> float:
    return work.flop if work.model_flop is None else work.model_flop


_WITHOUT_FORMULA = regex(
    r"aten::(?:_cudnn_rnn|mkldnn_rnn_layer|_weight_int\w+_mm|mkldnn_linear)"
    r"|mkldnn::|quantized::|onednn::"
)
"""Operators that compute products of sizes that their inputs do not show, or not to us."""


def _known_share_of_operators(signals: Signals, known: Int32) -> float | None:
    """Share of the time of all products on the CPU whose FLOP are known; None without products."""
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(EventKind.OPERATOR)
    names = events.name[rows]
    strings = trace.strings
    products = [
        name
        for name in distinct(names).tolist()
        if is_product(strings[name]) or _WITHOUT_FORMULA.match(strings[name])
    ]
    is_open = is_in(names, products)
    is_open &= signals.steps.owner[rows] >= 0
    rows = rows[is_open]
    is_known = row_mask(len(events), known)
    rows = rows[~is_known[rows] & ~has_ancestor(events.parent, rows, is_known)]
    # Those around known products are known by them.
    around = row_mask(len(events), rows)
    covered = innermost_marked(events.parent, events.parent[known], around)
    rows = rows[~row_mask(len(events), covered[covered >= 0])[rows]]
    known_ns = int(events.duration_ns[known].sum())
    total_ns = known_ns + int(events.duration_ns[rows].sum())
    return known_ns / total_ns if total_ns else None


def launches_work(signals: Signals, operators: Int32) -> NDArray[np.bool_]:
    """Whether each operator launches anything on a device, itself or by others; shape (n,)."""
    parent = signals.trace.events.parent
    launcher = innermost_marked(
        parent, _launchers(signals), row_mask(len(signals.trace.events), operators)
    )
    return is_in(operators, launcher[launcher >= 0])


@memoized
def _launchers(signals: Signals) -> Int32:
    """The innermost operators that launch work, on any device."""
    launch = signals.trace.events.launched_by[signals.trace.rows(*BUSY_KINDS)]
    launcher = signals.launching_operator[distinct(launch[launch >= 0])]
    launchers: Int32 = distinct(launcher[launcher >= 0])
    return launchers


def runs_products(signals: Signals) -> bool:
    """Whether a device runs a product in the used window, whenever it was launched."""
    trace, window, events = signals.trace, signals.attribution, signals.trace.events
    rows = trace.kernels.row[is_in(trace.kernels.family, MATRIX_FAMILIES)]
    is_inside = events.start_ns[rows] < window.window_end_ns
    is_inside &= events.end_ns[rows] > window.window_start_ns
    return bool(is_inside.any())


class _Kernels(Struct, frozen=True):
    """Kernels that the used window launches, on all devices; columns of shape (n,)."""

    row: Int32
    owner: Int32
    """The operator whose product they compute; -1 if they compute none, or if it is unknown."""
    known_share: float | None


def _product_kernels(signals: Signals, owners: Int32) -> _Kernels:
    trace, events = signals.trace, signals.trace.events
    rows = trace.rows(EventKind.KERNEL)
    rows = rows[trace.tracks.kind[events.track[rows]] == TrackKind.DEVICE_STREAM]
    launch = events.launched_by[rows]
    operator = work_operators(trace, signals.launching_operator, rows)
    is_owner = row_mask(len(events), owners)
    owner = innermost_marked(events.parent, operator, is_owner)
    is_launched = signals.steps.owner[rows] >= 0
    # Kernels without a launch that run before all others were launched before the recording began.
    linked = rows[launch >= 0]
    first_ns = int(events.start_ns[linked[0]]) if len(linked) else 0
    is_launched &= (launch >= 0) | (events.start_ns[rows] >= first_ns)
    family = trace.by_event(trace.kernels.row, trace.kernels.family, 0)[rows]
    is_matrix = is_in(family, MATRIX_FAMILIES)
    # Old kernels of torch.compile have no telling name; the operators that launch them do.
    names = np.where(operator >= 0, events.name[operator], -1)
    templates = [
        n for n in distinct(names[names >= 0]).tolist() if trace.strings[n].startswith(_TEMPLATE)
    ]
    is_matrix |= is_in(names, templates)
    duration_ns = events.duration_ns[rows]
    known_ns = int(duration_ns[is_launched & (owner >= 0)].sum())
    unknown_ns = int(duration_ns[is_launched & (owner < 0) & is_matrix].sum())
    return _Kernels(
        rows[is_launched],
        owner[is_launched],
        known_ns / (known_ns + unknown_ns) if known_ns + unknown_ns else None,
    )


def _refined_formats(signals: Signals, rows: Int32, formats: UInt8, kernels: _Kernels) -> UInt8:
    """The number formats in which kernels compute the products of some operators; shape (n,).

    Kernels tell whether 32-bit numbers are multiplied as tf32. They also tell the format where the
    inputs have several.
    """
    trace = signals.trace
    if not len(kernels.row):
        return formats
    is_owned = kernels.owner >= 0
    kernel_rows, owner = kernels.row[is_owned], kernels.owner[is_owned]
    units = trace.by_event(trace.kernels.row, trace.kernels.tensor_cores, -1)[kernel_rows]
    uses_units = row_mask(len(trace.events), owner[units == 1])[rows]
    uses_none = row_mask(len(trace.events), owner[units == 0])[rows]
    refined: UInt8 = formats.copy()
    is_wide = formats == _FP32
    refined[is_wide & uses_units] = _TF32
    refined[is_wide & ~uses_units & ~uses_none] = 0
    precision = effective_precision(trace, kernel_rows)
    for width, name in {**FORMAT_OF_WIDTH, Precision.BITS_32: "fp32"}.items():
        is_width = row_mask(len(trace.events), owner[precision == width])[rows]
        refined[(formats == 0) & is_width] = NUMBER_FORMATS.index(name)
    return refined


# --- XLA --------------------------------------------------------------------------------------


@memoized
def xla_flop(signals: Signals) -> ProductFlop:
    """The products that the busiest device executes, from the profile or the HLO text.

    XLA counts all FLOP of a fusion. Of these, only those of its products are the model's.
    """
    trace, work = signals.trace, roofline(signals)
    window, events = signals.attribution, signals.trace.events
    inside_ns = overlap_ns(
        single(window.window_start_ns, window.window_end_ns),
        events.start_ns[work.rows],
        events.end_ns[work.rows],
    )
    family = trace.by_event(trace.kernels.row, trace.kernels.family, 0)[work.rows]
    is_product = is_in(family, MATRIX_FAMILIES) & (inside_ns > 0)
    is_known = is_product & work.matrix & ~np.isnan(work.flop)
    share = inside_ns / np.maximum(events.duration_ns[work.rows], 1)
    share *= _launched_shares(signals, work.rows, inside_ns)
    executed = (work.flop * share)[is_known]
    model = executed * _model_shares(signals)[trace.operations(work.rows[is_known])]
    is_recomputed = row_mask(len(events), recomputation(signals).rows)
    model[is_recomputed[work.rows[is_known]]] = 0.0
    total_ns = int(inside_ns[is_product].sum())
    return ProductFlop(
        executed,
        model,
        work.number_format[is_known],
        int(inside_ns[is_known].sum()) / total_ns if total_ns else None,
    )


def _launched_shares(signals: Signals, rows: Int32, inside_ns: Int64) -> Float64:
    """How much of each operation the used steps launched, by what of it ran in their time.

    The device may run behind the host, and end a step before others have begun.

    `inside_ns` is their time inside the used window; all have shape (n,).
    """
    trace, owned = signals.trace, signals.steps.own(signals.device.rows)
    count = len(trace.hlo.name) + 1  # the last one stands for no operation
    duration_ns = trace.events.duration_ns[owned]
    owned_op, op = trace.operations(owned) % count, trace.operations(rows) % count
    owned_ns = np.bincount(owned_op, weights=duration_ns, minlength=count)
    ran_ns = np.bincount(op, weights=inside_ns, minlength=count)
    shares = np.divide(owned_ns, ran_ns, out=np.ones(count), where=ran_ns > 0)
    launched: Float64 = shares[op]
    return launched


def _fused_products(signals: Signals) -> dict[int, float]:
    """FLOP of all products in an operation of the `HloTable`, where the program shows them."""
    flop: dict[int, float] = defaultdict(float)
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(PRODUCTS):
            operation = running.operations.get(program.kernel_of(row))
            product = parse_instruction(program.texts.get(row, ""))
            if operation is not None and product is not None:
                flop[operation.op] += product_flop(product) or 0.0
    return flop


def _model_shares(signals: Signals) -> Float64:
    """The share of each XLA operation's FLOP that the model needs; NaN if unknown.

    Shape (operations + 1,): the last entry stands for no operation.
    """
    hlo, text = signals.trace.hlo, signals.trace.text
    shares, several = np.ones(len(hlo.name) + 1), _fused_products(signals)
    for op in distinct(signals.trace.operations(work_rows(signals))).tolist():
        instruction = parse_instruction(text(int(hlo.product[op])) or text(int(hlo.text[op])))
        if instruction is None:
            continue
        if instruction.opcode in PRODUCTS:
            flop = several.get(op) or product_flop(instruction)
            # The text counts what a convolution multiplies by padding. XLA does not.
            if flop is not None and hlo.flop[op] > 0:
                shares[op] = min(flop / hlo.flop[op], 1.0)
        elif instruction.opcode == "custom-call" and hlo.flop[op] > 0:
            # A kernel of the program's own, such as attention, states FLOP as its author likes.
            shares[op] = np.nan
    return shares
