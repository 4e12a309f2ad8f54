"""MFU, HFU and throughput, and whether they are good."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import used_devices
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.device.recomputation import recomputes
from tb_perfadvisor.signals.efficiency.product_flop import (
    ProductFlop,
    launches_work,
    operator_flop,
    runs_products,
    xla_flop,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.needed_work import useful_share
from tb_perfadvisor.signals.recording.completeness import knows_device_time, not_recorded_share
from tb_perfadvisor.signals.recording.hints import OUTSIDE_GRAPHS, hint_for
from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.serving.server_steps import server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.steps.step_variation import micro_batches
from tb_perfadvisor.signals.work.matrix_work import batch_size
from tb_perfadvisor.signals.work.operator_inputs import parse_inputs
from tb_perfadvisor.signals.work.roofline import NUMBER_FORMATS
from tb_perfadvisor.signals.workload.fit import first_fitting
from tb_perfadvisor.signals.workload.workload import SERVERS, UNKNOWN, Part, workload
from tb_perfadvisor.trace import EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, row_mask
from tb_perfadvisor.trace.names import named
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
    if not knows_device_time(signals):
        share = format_share(not_recorded_share(signals))
        return Utilization(
            reason=f"What the device did was not recorded for {share} of the time.",
            reason_in_short="device time not recorded",
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


_TRANSFORMER_ENGINE = regex(r"_(?:LayerNorm|Grouped)?(?:Linear|MLP)(?:Backward)?$")
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


Verdict = Literal["good", "fair", "poor"]


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


def references(signals: Signals, input_wait: float | None) -> Mapping[str, Reference]:
    """The references that fit a program, by the id of the key number.

    A program of another kind has none: its numbers mean something else. `input_wait` is the share
    of the time in which no work runs because input is missing.
    """
    program = workload(signals)
    found: dict[str, Reference] = {}
    if program.mode not in (Part.TRAINING.label, UNKNOWN):
        return found
    if input_wait is not None:
        found["input-wait"] = _of_input(input_wait)
    return found


def _of_input(share: float) -> Reference:
    if share < NOT_INPUT_BOUND:
        verdict: Verdict = "good"
        text = f"below {format_share(NOT_INPUT_BOUND)} is not input-bound"
    else:
        verdict = "poor" if share >= INPUT_BOUND else "fair"
        text = f"{format_share(INPUT_BOUND)} or more is highly input-bound"
    return Reference(verdict, text, _INPUT_SOURCE, _INPUT_URL)


_EMBEDDING = regex(r"aten::embedding$")
_IMAGE_CONVOLUTION = regex(r"aten::(?:conv[23]d|convolution|_convolution)$")
_ATTENTION = regex(r"aten::_?scaled_dot_product_|\w*[Ff]lash_?[Aa]tt")
_IMAGE_RANK = 4
"""Dimensions of a batch of images: samples, channels, height, width. Videos have one more."""
_LOSS = regex(
    r"^aten::(cross_entropy_loss|nll_loss_nd|mse_loss|l1_loss|smooth_l1_loss|huber_loss"
    r"|binary_cross_entropy|binary_cross_entropy_with_logits)$"
)
"""Loss functions (aten/src/ATen/native/native_functions.yaml)."""
_PRODUCT = regex(r" (?:dot|convolution)\(|gemm|matmul")
_MATRIX = regex(r"\[(\d{1,15}),(\d{1,15})\]")


class Throughput(Struct, frozen=True):
    """What one rank processes in a step; None is unknown."""

    tokens_per_step: float | None
    samples_per_step: float | None
    source: str
    """How the known numbers are known; why, if none is known."""


class _Use(Struct, frozen=True):
    """Executions of an operator with equal shapes in the used window."""

    first: tuple[int, ...]
    """Shape of the first input."""
    second: tuple[int, ...]
    count: int


@memoized
def throughput(signals: Signals) -> Throughput:
    """Tokens and samples per step of one rank."""
    found = _of_server(signals) or _from_shapes(signals)
    if found.samples_per_step is None:
        found = replace(found, samples_per_step=samples_per_step(signals))
        if found.tokens_per_step is None and found.samples_per_step is not None:
            found = replace(found, source="Samples are the batch of a forward pass.")
    if signals.options.tokens_per_step is None:
        return found
    tokens = float(signals.options.tokens_per_step)
    return replace(found, tokens_per_step=tokens, source="Tokens per step are your setting.")


def _of_server(signals: Signals) -> Throughput | None:
    """What an inference server's annotations count, if every step states it."""
    steps = server_steps(signals)
    if steps is None or not steps.is_periodic or (steps.tokens < 0).any():
        return None
    tokens = float(steps.tokens.sum()) / signals.steps.count
    return Throughput(tokens, None, "Tokens are those that the server states for each step.")


def _from_shapes(signals: Signals) -> Throughput:
    tokens = _looked_up_tokens(signals)
    if tokens is not None and len(used_devices(signals.trace)) > 1:
        return Throughput(
            None,
            None,
            "The profile does not tell how the devices divide the tokens. Set --tokens-per-step.",
        )
    if tokens is not None:
        source = "Tokens are those that the embedding of the vocabulary looks up."
        return Throughput(tokens, None, source)
    if not (signals.trace.operators.shapes >= 0).any():
        return Throughput(None, None, _without_shapes(signals))
    images = _images(signals)
    if images is not None:
        source = "Samples are the batch of the convolution that reads the images."
        return Throughput(None, images, source)
    if _image_uses(signals):
        return Throughput(
            None, None, "The number of forward passes over the batch in a step is unknown."
        )
    return _from_embeddings(signals)


def _without_shapes(signals: Signals) -> str:
    if signals.trace.source.framework != "pytorch":
        return "The profile does not tell tokens or samples. Set --tokens-per-step."
    hint = hint_for(Need.SHAPES, workload(signals))
    return f"The shapes of the operators were not recorded. {hint}"


def _from_embeddings(signals: Signals) -> Throughput:
    uses = [use for use in _uses(signals, _EMBEDDING) if len(use.first) == 2 and use.second]
    if not uses:
        return Throughput(None, None, "The profile shows no embedding and reads no images.")
    # Tables of positions have fewer indices, and tables of attention biases fewer columns.
    width = max(use.first[1] for use in uses)
    tables = {use.first for use in uses if use.first[1] == width}
    lookups = {
        table: sum(use.count * prod(use.second) for use in uses if use.first == table)
        for table in tables
    }
    table = max(tables, key=lambda table: (lookups[table], table))
    read = [use for use in uses if use.first == table]
    is_sequence = all(len(use.second) == 2 and use.second[1] > 1 for use in read)
    program = workload(signals)
    if not is_sequence and not program.has(Part.SERVER) and not _has_attention(signals):
        return Throughput(None, None, "The embeddings do not look up sequences of tokens.")
    steps = signals.steps.count
    passes = sum(use.count for use in read)
    samples = None
    if passes == steps and all(len(use.second) == 2 for use in read):
        samples = sum(use.count * use.second[0] for use in read) / steps
    source = "Tokens are those that the embedding of the vocabulary looks up."
    return Throughput(lookups[table] / steps, samples, source)


def _images(signals: Signals) -> float | None:
    """Images or videos per step, if it is known how often the model reads the batch."""
    uses = [use for use in _image_uses(signals) if use.first[1] == _fewest_channels(signals)]
    batches = {use.first[0] for use in uses}
    if len(batches) != 1 or batch_size(signals) not in batches:
        return None
    passes = sum(use.count for use in uses) / signals.steps.count
    return batches.pop() * passes if passes in (1, micro_batches(signals)) else None


def _fewest_channels(signals: Signals) -> int:
    return min((use.first[1] for use in _image_uses(signals)), default=0)


@memoized
def _image_uses(signals: Signals) -> tuple[_Use, ...]:
    return tuple(
        use
        for use in _uses(signals, _IMAGE_CONVOLUTION)
        if len(use.first) == len(use.second) >= _IMAGE_RANK
    )


def _has_attention(signals: Signals) -> bool:
    names = distinct(signals.trace.events.name[signals.trace.operators.row]).tolist()
    return any(_ATTENTION.match(signals.trace.strings[name]) for name in names)


def _uses(signals: Signals, pattern: re.Pattern[str]) -> list[_Use]:
    """Outermost operators of some names in the used window, except recomputed ones."""
    trace = signals.trace
    table, events = trace.operators, trace.events
    names = events.name[table.row]
    wanted = [name for name in distinct(names).tolist() if pattern.match(trace.strings[name])]
    slot = np.flatnonzero(
        is_in(names, wanted) & (table.shapes >= 0) & (signals.steps.owner[table.row] >= 0)
    )
    if not slot.size:
        return []
    is_inside = has_ancestor(events.parent, table.row[slot], row_mask(len(events), table.row[slot]))
    slot = slot[~is_inside]
    is_used = ~recomputes(signals, table.row[slot])
    if signals.device.index is not None:
        is_used &= launches_work(signals, table.row[slot])
    slot = slot[is_used]
    if not slot.size:
        return []
    first, group = group_rows(table.shapes[slot], table.dtypes[slot])
    uses = []
    for index, count in zip(slot[first].tolist(), np.bincount(group).tolist(), strict=True):
        shapes, dtypes = (trace.text(int(c[index])) for c in (table.shapes, table.dtypes))
        try:
            tensors = parse_inputs(shapes, dtypes, "").tensors
        except (ValueError, TypeError, KeyError):
            continue
        if len(tensors) >= 2 and tensors[0] is not None and tensors[1] is not None:
            uses.append(_Use(tensors[0].shape, tensors[1].shape, count))
    return uses


@memoized
def samples_per_step(signals: Signals) -> int | None:
    """Samples that one rank processes in each used step; None if the profile does not tell.

    The batch size is that of one forward pass, so each step must have exactly one: it fetches one
    batch, or computes one loss.
    """
    if not len(signals.steps):
        return None
    batch = batch_size(signals)
    is_single = _runs_once_per_step(signals, (EventKind.INPUT_WAIT,)) or _runs_once_per_step(
        signals, (EventKind.OPERATOR,), _LOSS
    )
    return batch if is_single else None


def _runs_once_per_step(
    signals: Signals, kinds: tuple[EventKind, ...], pattern: re.Pattern[str] | None = None
) -> bool:
    """Whether as many such events as steps start in the used window."""
    trace = signals.trace
    rows = trace.rows(*kinds)
    rows = signals.steps.own(rows)
    if pattern is not None:
        rows = rows[named(trace, rows, pattern)]
    return len(rows) == len(signals.steps)


def _looked_up_tokens(signals: Signals) -> float | None:
    """Tokens per step of an XLA program on the profile's device; None if unknown.

    They are the rows that the vocabulary's embedding looks up. Other tables, such as the nodes of a
    graph or the items of a recommender, look the same. But a vocabulary has an output layer as
    well: a product with a matrix of the table's size.
    """
    if not signals.trace.lookups or signals.device.index is None:
        return None
    multiplied, executions = _multiplied_matrices(signals), _executions(signals)
    tokens: Counter[tuple[int, int]] = Counter()
    for lookup in signals.trace.lookups:
        table = (lookup.rows, lookup.width)
        if table in multiplied:
            tokens[table] += lookup.count * executions[lookup.module, lookup.operation]
    return max(tokens.values(), default=0) / signals.steps.count or None


def _multiplied_matrices(signals: Signals) -> set[tuple[int, int]]:
    """The sizes of the matrices that products read or write, in either order of dimensions."""
    hlo = signals.trace.hlo
    texts = signals.trace.texts(distinct(np.concatenate((hlo.product, hlo.text))))
    sizes = {
        (int(rows), int(columns))
        for text in texts
        if _PRODUCT.search(text)
        for rows, columns in _MATRIX.findall(text)
    }
    return sizes | {(columns, rows) for rows, columns in sizes}


def _executions(signals: Signals) -> Counter[tuple[str, str]]:
    """How often the device runs each operation in the used steps, by module and name."""
    trace = signals.trace
    links = trace.hlo_events
    track = trace.events.track[links.row]
    is_counted = links.op >= 0
    is_counted &= trace.tracks.kind[track] == TrackKind.DEVICE_STREAM
    is_counted &= trace.tracks.device[track] == signals.device.index
    is_counted &= signals.steps.owner[links.row] >= 0
    count = np.bincount(links.op[is_counted])
    executions: Counter[tuple[str, str]] = Counter()
    for op in np.flatnonzero(count).tolist():
        name = trace.text(int(trace.hlo.name[op])).lstrip("%")
        executions[trace.text(int(trace.hlo.module[op])), name] += int(count[op])
    return executions
