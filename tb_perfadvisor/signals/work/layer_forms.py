"""What the layers of a PyTorch program on the CPU would take in another form.

Three forms: bfloat16 under autocast, where the processor multiplies it faster, channels last, and
32-bit numbers instead of 64-bit ones. The prices are shares of the time now, measured with PyTorch
2.13 on one core: the first two by `cost_models/layer_forms.py`, the third with AVX2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.operators import parse_shapes, shapes_of
from tb_perfadvisor.signals.core.precision import width_of_types
from tb_perfadvisor.signals.device.attention import ATTENTION_PRODUCTS, layers_among
from tb_perfadvisor.signals.host.call_tree import host_operators
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.fusible_work import fusible_on_cpu
from tb_perfadvisor.trace import Precision, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import Intervals, intersect
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

_AMX = "amx_bf16"
_MULTIPLIES_BFLOAT16 = ("avx512_bf16", _AMX)
_MULTIPLIES_FLOAT16 = ("avx512_fp16", "amx_fp16", "asimdhp")
_HALF = "c10::Half"
_OF_16_BITS = {_HALF: _MULTIPLIES_FLOAT16, "c10::BFloat16": _MULTIPLIES_BFLOAT16}
_SLOW_WITHOUT_AMX = "Intel"
"""In the name of a processor whose AVX512-BF16 gains nothing, such as a virtual machine's whose
system does not know AMX. Under `ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16`, a Xeon with AMX took 1.2 to
1.7 times as long as in 32 bits for linear layers from a million multiplications on, 1.1 to 1.6
times for convolutions and 1.0 to 1.5 for LSTM layers, in three rounds by processor time, in turns
with 32 bits and with AMX."""


class _Layer(Struct, frozen=True):
    """A kind of operator, and the share of its time that another form leaves."""

    names: re.Pattern[str]
    least: float
    expected: float
    most: float
    is_product: bool = False


_MATRIX = regex(r"^aten::(addmm_?|mm|b?addbmm_?|bmm)$")
_CONVOLUTION = regex(r"^aten::(mkldnn_convolution|convolution_backward)$")
_RECURRENT = regex(r"^aten::mkldnn_rnn_layer(_backward)?$")
_ATTENTION = regex(r"^aten::_scaled_dot_product_flash_attention_for_cpu(_backward)?$")
_BATCH_NORM = regex(r"^aten::native_batch_norm(_backward)?$")
_ACTIVATION = regex(r"^aten::(clamp_min_?|relu_?|threshold_backward|tanh|tanh_backward)$")
_MAX_POOL = regex(r"^aten::max_pool2d_with_indices(_backward)?$")

_BESIDE_PRODUCTS = (
    # 3.6, 2.0, 0.83 and 0.76 for sequences of 64, 128, 512 and 1,024; 0.3 to 0.7 forward only.
    _Layer(_ATTENTION, 0.3, 0.9, 3.6, is_product=True),
    _Layer(_BATCH_NORM, 0.27, 0.4, 1.0),
    _Layer(_ACTIVATION, 0.6, 0.75, 1.0),
)
_IN_BFLOAT16 = (
    # 0.44 to 0.53 from a million multiplications on, without what casts cost.
    _Layer(_MATRIX, 0.44, 0.52, 0.7, is_product=True),
    # 0.51 to 0.75, the latter with one or three channels.
    _Layer(_CONVOLUTION, 0.5, 0.6, 0.75, is_product=True),
    # LSTM: 0.58 to 0.71. Other recurrent layers are matrix products.
    _Layer(_RECURRENT, 0.55, 0.62, 0.75, is_product=True),
    *_BESIDE_PRODUCTS,
)
_WITH_AMX = (
    # 0.24 to 0.46 for large matrices.
    _Layer(_MATRIX, 0.22, 0.35, 0.7, is_product=True),
    # 0.27 to 0.75 with 16 channels or more, else up to 0.89.
    _Layer(_CONVOLUTION, 0.27, 0.55, 0.9, is_product=True),
    # LSTM: 0.45 to 0.75.
    _Layer(_RECURRENT, 0.42, 0.53, 0.75, is_product=True),
    *_BESIDE_PRODUCTS,
)
_FROM_FLOAT16 = {
    # In bfloat16: 0.10 to 0.13 for 32 rows and more, 0.22 to 0.66 for 4, and 0.9 to 2.3 for one.
    True: (
        _Layer(_MATRIX, 0.09, 0.25, 0.9, is_product=True),
        _Layer(_CONVOLUTION, 0.03, 0.05, 0.2, is_product=True),
        _Layer(_ATTENTION, 0.45, 0.54, 0.65, is_product=True),
    ),
    # In 32 bits: 0.09 to 0.28 for 32 rows and more, 0.36 to 1.6 for 4, and 0.8 to 3.3 for one.
    False: (
        _Layer(_MATRIX, 0.2, 0.4, 1.0, is_product=True),
        _Layer(_CONVOLUTION, 0.03, 0.05, 0.2, is_product=True),
        _Layer(_ATTENTION, 0.11, 0.45, 0.6, is_product=True),
    ),
}
"""By whether the processor gains by bfloat16. PyTorch 2.13 on one core of an AMD EPYC that has
AVX512-BF16 and no instructions for float16, by processor time."""
_PER_MULTIPLICATION = 45
"""A product with few multiplications for each number that it reads or writes mostly casts and moves
numbers. With AMX, 0.31 of a linear layer is left at 455 for each (4,096 rows, 1,024 inputs and
outputs), 0.38 at 256, 0.53 at 128, 0.86 at 32, and 1.14 at 16."""
_MOST_LEFT = 1.1
_PER_MULTIPLICATION_OF_FLOAT16 = {True: 2.2, False: 2.5}
"""The same for products of float16 without instructions for it, in bfloat16 and in 32 bits. These
take 0.13 ns for each multiplication, and read numbers as fast as others do."""
_TOLERANCE = np.array([0.7, 1.0, 1.3])
"""Of six other sizes, 0.9 to 1.25 times as much was left as this says."""
_CHANNELS_LAST = (
    _Layer(_MAX_POOL, 0.19, 0.27, 0.4),
    # 0.48 to 0.6, and 1.05 beyond the cache.
    _Layer(_BATCH_NORM, 0.47, 0.65, 1.05),
    # 0.73 to 1.07; fewer channels gain more.
    _Layer(_CONVOLUTION, 0.8, 0.95, 1.07),
)
_QUERIES = (64, 128, 256, 512)
_FUSED_FORWARD, _FUSED_BACKWARD = (1.45, 1.25, 1.0, 0.6), (1.75, 1.4, 1.2, 0.9)
"""What fused attention takes of the time of the products that it computes as well, by the length of
the sequences, in 32 bits. Longer ones have scores that leave the cache, and then the products on
them wait for memory, too. Measured with PyTorch 2.13 on one core with AVX-512, by processor time,
each operator in turns with the fused ones, for 4 to 128 heads of 32 to 128 numbers. Of ten sizes,
forward, with its backward pass and forward in bfloat16, 29 of 30 gains lie in the range."""
_FUSED_IN_16_BITS = (1.25, 2.0)
"""Forward and backward in bfloat16 on AMX: 1.05 to 1.7 for any length, and 2 to 9. Training took up
to six times as long with short sequences; from 2,048 on it gained 30 to 80 %."""
_LONG_QUERIES = 2048
_FUSED_TOLERANCE = (1.4, 1.0, 0.65)
_FUSED_LOOPS = (0.2, 0.6, 0.95, 1.2)
"""What compiled loops save of the time of the bytes that they do not move: at least, as expected
for tensors in the cache and beyond it, and at most. Ten chains on 2 and 32 MB, compiled by
TorchInductor, saved 0.23 to 0.96 and 0.84 to 1.17 of it, in turns, by processor time of a core."""
_BEYOND_CACHE_BYTES = 16e6
"""What an operator moves."""
_IN_32_BITS = (
    # 0.41 to 0.65 from 64 x 64 on.
    _Layer(_MATRIX, 0.4, 0.5, 0.65),
    # 0.29: oneDNN has no kernels for 64 bits.
    _Layer(regex(r"^aten::(_slow_conv\w+|convolution_backward)$"), 0.25, 0.35, 0.5),
    # 0.20 to 0.58: half of the bytes, and twice as many numbers in an instruction.
    _Layer(regex(r"^aten::"), 0.25, 0.5, 0.75),
)
"""The first one that matches counts."""
_LEAST_NS = 20_000
"""What is shorter consists of dispatch: adding 16,000 numbers takes 8 us, and 5 in 32 bits."""
_CAST_NS = (20_000, 40_000, 70_000)
"""What autocast adds to each product: casts of its inputs, and their dispatch. A linear layer of 64
numbers takes 0.09 ms, and 0.20 with autocast, with its backward pass."""
_CASTS_BYTES_PER_S = 23e9
_CAST_BYTES_PER_BYTE = 3
"""A weight is read and half of it written in the forward pass, and its gradient the other way round
in the backward pass. A layer of 1024 x 4096 weights took 2.2 ms longer than half of its time."""


class Form(Struct, frozen=True):
    """What changes in another form, over the used steps."""

    rows: Int32
    """Operators that change."""
    now_ns: Int64
    """Their own times; shape (n,)."""
    spans: Intervals
    """When they run."""
    low_ns: int
    """What it saves."""
    expected_ns: int
    high_ns: int


def gains_by_bfloat16(trace: Trace) -> bool:
    """Whether products of bfloat16 are known to take less time than in 32 bits."""
    machine = trace.facts.machine
    is_slow = _SLOW_WITHOUT_AMX in machine.processor and not machine.has(_AMX)
    return not is_slow and any(machine.has(name) for name in _MULTIPLIES_BFLOAT16)


def emulated_products(signals: Signals) -> tuple[Int32, Int64]:
    """Products of 16-bit numbers on a CPU that is not known to have instructions for them.

    Rows of operators and their own times, each of shape (n,).
    """
    operators, machine = host_operators(signals), signals.trace.facts.machine
    layers = [layer for layer in _IN_BFLOAT16 if layer.is_product]
    is_product = is_in(operators.rows, _named(signals, layers, operators.rows))
    chosen = np.zeros(len(operators.rows), dtype=bool)
    for dtype, instructions in _OF_16_BITS.items():
        if not any(machine.has(name) for name in instructions):
            chosen |= is_product & _reads(signals, operators.rows, dtype)
    return operators.rows[chosen], operators.self_ns[chosen]


@memoized
def without_float16(signals: Signals) -> Form | None:
    """Products of float16 in bfloat16, or in 32 bits if the processor does not gain by that.

    None if it has instructions for float16, or if that is unknown.
    """
    trace, machine = signals.trace, signals.trace.facts.machine
    if machine.instruction_sets is None or any(machine.has(n) for n in _MULTIPLIES_FLOAT16):
        return None
    gains = gains_by_bfloat16(trace)
    is_half = _reads(signals, host_operators(signals).rows, _HALF)
    per_multiplication = _PER_MULTIPLICATION_OF_FLOAT16[gains]
    return _form(signals, _FROM_FLOAT16[gains], is_half, per_multiplication=per_multiplication)


@memoized
def in_bfloat16(signals: Signals) -> Form | None:
    """The layers under autocast; None where that is not known to be faster, or in use."""
    if not gains_by_bfloat16(signals.trace):
        return None
    layers = _WITH_AMX if signals.trace.facts.machine.has(_AMX) else _IN_BFLOAT16
    form = _form(signals, layers, per_multiplication=_PER_MULTIPLICATION, most=_MOST_LEFT)
    if form is None or not _is_32_bit(signals, form.rows):
        return None
    products = _named(signals, [layer for layer in layers if layer.is_product], form.rows)
    weights = sum(model.number("parameter_bytes") for model in _models(signals))
    # What the shapes of products tell includes the casts of their weights.
    weights *= bool((shapes_of(signals.trace, products) < 0).any())
    casts = signals.steps.count * _CAST_BYTES_PER_BYTE * weights / _CASTS_BYTES_PER_S * 1e9
    least_ns, usual_ns, most_ns = (int(len(products) * each + casts) for each in _CAST_NS)
    return Form(
        form.rows,
        form.now_ns,
        form.spans,
        form.low_ns - most_ns,
        form.expected_ns - usual_ns,
        form.high_ns - least_ns,
    )


@memoized
def in_channels_last(signals: Signals) -> Form | None:
    """The layers of images with channels last; None without convolutions, or if it is in use.

    Where nothing tells whether it is, it may save nothing, and half is expected.
    """
    layouts = {model.facts.get("channels_last") for model in _models(signals)} - {None}
    if True in layouts:
        return None
    form = _form(signals, _CHANNELS_LAST)
    convolution = [layer for layer in _CHANNELS_LAST if layer.names is _CONVOLUTION]
    if form is None or not len(_named(signals, convolution, form.rows)):
        return None
    return form if layouts else replace(form, low_ns=0, expected_ns=form.expected_ns // 2)


@memoized
def in_32_bits(signals: Signals) -> Form | None:
    """The operators on 64-bit numbers."""
    operators = host_operators(signals)
    is_wide = _widths(signals, operators.rows) == Precision.BITS_64
    return _form(signals, _IN_32_BITS, is_wide & (operators.self_ns >= _LEAST_NS))


@memoized
def in_fused_attention(signals: Signals) -> Form | None:
    """Attention that is written out, in one operator, which computes the same products.

    None without any. On the CPU, PyTorch does not fuse attention with dropout.
    """
    operators, trace = host_operators(signals), signals.trace
    found = layers_among(trace, operators.rows, operators.rows)
    if not len(found.rows):
        return None
    names = trace.texts(trace.events.name[found.rows])
    drops = np.array(["dropout" in name or "bernoulli" in name for name in names])
    trains = distinct(found.layer[found.is_backward])
    is_narrow = _widths(signals, found.first) == Precision.BITS_16
    slows = is_narrow & (found.sizes[:, 1] < _LONG_QUERIES)
    left_out = {*found.layer[drops].tolist(), *trains[slows[trains]].tolist()}
    kept = ~is_in(found.layer, list(left_out))
    rows, layer, is_backward = found.rows[kept], found.layer[kept], found.is_backward[kept]
    if not len(rows):
        return None
    now_ns = operators.self_ns[np.searchsorted(operators.rows, rows)]
    is_product = np.isin(np.array(names)[kept], ATTENTION_PRODUCTS)
    queries = found.sizes[layer, 1]
    fused = np.where(
        is_backward,
        np.interp(queries, _QUERIES, _FUSED_BACKWARD),
        np.interp(queries, _QUERIES, _FUSED_FORWARD),
    )
    fused = np.where(is_narrow[layer], np.where(is_backward, *_FUSED_IN_16_BITS[::-1]), fused)
    then_ns = float((now_ns * is_product) @ fused)
    saved = [float(now_ns.sum()) - part * then_ns for part in _FUSED_TOLERANCE]
    return _saving(signals, rows, now_ns, saved)


@memoized
def in_fused_loops(signals: Signals) -> tuple[Form | None, int]:
    """Operators on large tensors, compiled to a few loops, and how many loops; None without any."""
    work = fusible_on_cpu(signals)
    if not len(work.rows):
        return None, 0
    gone = np.maximum(1 - work.fused_bytes / work.now_bytes, 0)[work.kernel]
    is_large = (work.now_bytes / np.bincount(work.kernel) >= _BEYOND_CACHE_BYTES)[work.kernel]
    least, in_cache, beyond, most = _FUSED_LOOPS
    parts = least, np.where(is_large, beyond, in_cache), most
    saved = [float((work.now_ns * gone * part).sum()) for part in parts]
    return _saving(signals, work.rows, work.now_ns, saved), len(work.now_bytes)


def _form(
    signals: Signals,
    layers: Sequence[_Layer],
    chosen: NDArray[np.bool_] | None = None,
    *,
    per_multiplication: float | None = None,
    most: float = np.inf,
) -> Form | None:
    """The operators of some layers in another form, or those `chosen` of them.

    What is left of matrix products depends on `per_multiplication`, if it is given.
    """
    operators = host_operators(signals)
    if signals.trace.source.framework != "pytorch" or not len(operators.rows):
        return None
    left = np.ones((len(operators.names), 3))
    for index, name in enumerate(operators.names):
        layer = next((layer for layer in layers if layer.names.match(name)), None)
        if layer is not None:
            left[index] = layer.least, layer.expected, layer.most
    changes = (left != 1).any(axis=1)[operators.name]
    if chosen is not None:
        changes &= chosen
    rows, now_ns = operators.rows[changes], operators.self_ns[changes]
    if not len(rows):
        return None
    left = left[operators.name[changes]]
    if per_multiplication is not None:
        _set_left_of_products(signals, rows, left, per_multiplication, most)
    return _saving(signals, rows, now_ns, ((1 - left).T @ now_ns)[::-1].tolist())


def _saving(signals: Signals, rows: Int32, now_ns: Int64, saved_ns: Sequence[float]) -> Form:
    """The form that saves so much at least, as expected, and at most."""
    events = signals.trace.events
    spans = events.spans(rows)
    spans = intersect(spans, signals.attribution.intervals[Cause.HOST_COMPUTE])
    low_ns, expected_ns, high_ns = (round(each) for each in saved_ns)
    return Form(rows, now_ns, spans, low_ns, expected_ns, high_ns)


def _set_left_of_products(
    signals: Signals, rows: Int32, left: Float64, per_multiplication: float, most: float
) -> None:
    """Correct what another type leaves of matrix products by their recorded shapes."""
    trace = signals.trace
    is_product = is_in(rows, _named(signals, _IN_BFLOAT16[:1], rows))
    texts = np.where(is_product, shapes_of(trace, rows), -1)
    for index, places in places_by_value(texts):
        matrices = [s for s in parse_shapes(trace.text(index)) if len(s) > 1] if index >= 0 else []
        if len(matrices) < 2:
            continue
        first, second = map(prod, matrices[-2:])
        columns = matrices[-1][-1]
        numbers = first + second + first // max(matrices[-2][-1], 1) * columns
        each = first * columns / max(numbers, 1)
        usual = min(left[places[0], 0] + per_multiplication / max(each, 1), most)
        left[places] = usual * _TOLERANCE


def _named(signals: Signals, layers: Sequence[_Layer], rows: Int32) -> Int32:
    strings, names = signals.trace.strings, signals.trace.events.name[rows]
    known = [n for n in distinct(names).tolist() if any(x.names.match(strings[n]) for x in layers)]
    found: Int32 = rows[is_in(names, known)]
    return found


def _is_32_bit(signals: Signals, rows: Int32) -> bool:
    """Whether the operators compute in 32 bits; if no types were recorded, whether the model is."""
    trace, widths = signals.trace, _widths(signals, rows)
    known = widths[widths != Precision.UNKNOWN]
    if len(known):
        return float((known == Precision.BITS_32).mean()) > 0.9
    models = [model for model in _models(signals) if model.number("parameters")]
    has_casts = int(trace.is_any_of(trace.events.name, "aten::_to_copy").sum()) > len(rows) // 4
    return (
        bool(models)
        and not has_casts
        and all(model.facts.get("dtype") == "float32" for model in models)
    )


def _widths(signals: Signals, rows: Int32) -> NDArray[np.uint8]:
    """`Precision` of what operators read; shape (rows,)."""
    trace = signals.trace
    types = trace.by_event(trace.operators.row, trace.operators.dtypes, -1)[rows]
    widths = np.full(len(rows), Precision.UNKNOWN, dtype=np.uint8)
    for index, places in places_by_value(types):
        if index >= 0:
            widths[places] = width_of_types(trace.text(index))
    return widths


def _reads(signals: Signals, rows: Int32, dtype: str) -> NDArray[np.bool_]:
    """Whether operators read tensors of a type; shape (rows,)."""
    trace = signals.trace
    types = trace.by_event(trace.operators.row, trace.operators.dtypes, -1)[rows]
    known = [i for i in distinct(types).tolist() if i >= 0 and dtype in trace.text(i).split(";")]
    return is_in(types, known)


def _models(signals: Signals) -> tuple[Made, ...]:
    return signals.trace.facts.program.all_made("model")
