"""Matrix products in more bits than needed, or without the units made for them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import per_step, share_of_each, share_of_window, time_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import (
    costly_work,
    matrix_products_by_size,
    product_text,
    wide_kernels,
)
from tb_perfadvisor.rules.evidence.tables import costliest_groups, executions_by_operation
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings import faster_device_work, halfway_to_best
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.device import DeviceFacts
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.device.device_work import exclusive_time, time_within
from tb_perfadvisor.signals.host.call_tree import source_line
from tb_perfadvisor.signals.program.argument_reads import wide_arrays
from tb_perfadvisor.signals.serving.server_steps import server_steps
from tb_perfadvisor.signals.tpu.product_time import products_in_passes
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.signals.work.matrix_kernels import (
    MatrixKernels,
    fills_device,
    is_misaligned_size,
    matrix_kernels,
    may_have_matrix_units,
    padded_sizes,
    peak_ratio,
    sizes_of,
    times_in_format,
    wide_rows,
    with_tf32,
    work_for_16_bits,
)
from tb_perfadvisor.signals.work.roofline import (
    COMPUTE_BOUND,
    LATENCY_BOUND,
    MEMORY_BOUND,
    NUMBER_FORMATS,
    roofline,
)
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import KernelFamily, Precision
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_duration, format_share

_BFLOAT16 = ("bfloat16", "bfloat16-weights", "bfloat16-if-possible")
_FLOAT16 = ("float16",)


class FullPrecisionCompute(Rule):
    """The device computes in 32 bits although it is several times faster in 16."""

    id = "full-precision-compute"
    title = "Compute in 16 bits"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "With less 32-bit matrix work, mixed precision is already in use."
    )
    minimum_ratio = 1.5
    """Below 1.5 times the rate, casts cost most of the gain."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        if has_tiled_layouts(signals):
            yield from self._on_tpu(signals)
            yield from self._wide_arrays(signals)
            return
        work = work_for_16_bits(signals, self.minimum_ratio)
        if work is None:
            yield from self._on_unknown_device(signals)
            return
        products = work.products
        # Cheap check first: exclusive time cannot exceed the total duration.
        if self.is_minor(int(products.duration_ns.sum()), signals):
            return
        exposed_ns = total_ns(exclusive_time(signals, products.rows))
        if self.is_minor(exposed_ns, signals):
            return
        saving = faster_device_work(
            signals,
            work.rows,
            work.expected_ns,
            basis="modeled",
            least_then_ns=work.best_ns,
            most_then_ns=work.worst_ns,
        )
        whole = "each step" if len(signals.steps) else "the profile"
        exposed_share = share_of_window(exposed_ns, signals)
        total_32_ns = total_ns(signals.attribution.intervals[Cause.COMPUTE_32])
        yield Finding(
            instance=f"{format_share(exposed_share)} of {whole} multiplies 32-bit numbers",
            summary=(
                f"{per_step(total_32_ns, signals)} is 32-bit compute,"
                f" {format_duration(exposed_ns / signals.steps.count)} of it in matrix products"
                f" with nothing beside them; {work.device or 'the device'} reaches"
                f" {work.flop_per_s / 1e12:.0f} TFLOP/s in 16 bits."
            ),
            saving=saving,
            evidence=wide_kernels(signals, products, work.rows),
            remedies=advise(*_changes(signals, work.peaks)),
        )

    def _on_tpu(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the matrix unit multiplies 32-bit numbers in several passes."""
        rows, passes, best_ns, then_ns, worst_ns = products_in_passes(signals)
        saving = faster_device_work(
            signals, rows, then_ns, basis="modeled", least_then_ns=best_ns, most_then_ns=worst_ns
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            title="Multiply 32-bit numbers in one pass",
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into products of 32-bit numbers with"
                f" a precision that takes {_listed(passes)} passes of the matrix unit. By default,"
                " a TPU multiplies them in one pass, rounded to bfloat16."
            ),
            saving=saving,
            evidence=executions_by_operation(
                signals, rows, "Products in several passes", "Longest products in several passes"
            ),
            remedies=advise("one-pass-products"),
        )

    def _wide_arrays(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when operations of a TPU wait for the bytes of 32-bit arrays."""
        rows, half_ns, best_ns = wide_arrays(signals)
        now_ns = signals.trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals, rows, (now_ns + half_ns) // 2, basis="modeled", least_then_ns=best_ns
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        yield Finding(
            title="Keep activations in 16 bits",
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into operations that wait for the"
                " memory to read and write 32-bit arrays. In 16 bits, these have half of the bytes."
            ),
            saving=saving,
            evidence=executions_by_operation(
                signals,
                rows,
                "Operations that wait for 32-bit arrays",
                "Longest waits for 32-bit arrays",
            ),
            remedies=advise(*_BFLOAT16),
        )

    def _on_unknown_device(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding from a rule of thumb, if the device may be faster in 16 bits."""
        facts = signals.device_facts
        if facts is None or not may_have_matrix_units(facts):
            return
        rows = wide_rows(signals)
        now_ns = signals.trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals, rows, now_ns * 3 // 4, basis="heuristic", least_then_ns=now_ns // 2
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        work = "matrix work" if signals.trace.totals is None else "compute"
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} is 32-bit {work} on a GPU whose rates are"
                " unknown. GPUs since Volta multiply 16-bit numbers several times faster, so the"
                " saving is a rule of thumb: a quarter of that time."
            ),
            saving=saving,
            evidence=(costliest("Longest 32-bit kernels", signals.worker, rows, now_ns),),
            remedies=advise(*(_FLOAT16 if _lacks_bfloat16(facts) else _BFLOAT16)),
        )


def _listed(passes: Int64) -> str:
    """The numbers of passes: `3 or 6`."""
    return " or ".join(str(number) for number in distinct(passes).tolist())


# Where nothing else is known, the name may tell the generation: `NVIDIA GPU (Volta or newer)`.
_BEFORE_BFLOAT16 = regex(r"Volta|Turing|RTX 20\d\d|GTX 16\d\d|Quadro RTX")


def _lacks_bfloat16(facts: DeviceFacts) -> bool:
    """Whether a device whose rates are unknown is known to be older than bfloat16."""
    return facts.architecture.startswith("7.") or bool(_BEFORE_BFLOAT16.search(facts.name))


def _changes(signals: Signals, peaks: Peaks) -> tuple[str, ...]:
    """Changes that this device supports and the program does not have."""
    casts = _BFLOAT16 if peaks.flop_per_s("bf16") is not None else _FLOAT16
    narrow, wide = peaks.flop_per_s("tf32"), peaks.flop_per_s("fp32", tensor=False)
    has_tf32 = narrow is not None and wide is not None and narrow > wide
    is_on = len(with_tf32(matrix_kernels(signals))) > 0
    return (*casts, "tf32") if has_tf32 and not is_on else casts


class Tf32Off(Rule):
    """Matrix kernels compute in full 32 bits although the device supports TF32."""

    id = "tf32-off"
    title = "Allow TF32 for 32-bit matrix products"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION, Need.PEAKS)
    refines = "full-precision-compute"
    is_preview = False

    minimum_share = Limit(0.03, "share", "A smaller gain rarely justifies a change in numerics.")
    minimum_ratio = Limit(
        1.5, "ratio", "Devices whose TF32 is hardly faster than their vector units gain nothing."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        facts = signals.device_facts
        peaks = facts.peaks if facts else None
        # AMD's matrix units multiply full 32-bit numbers, and PyTorch offers no alternative.
        if facts is None or peaks is None or "tf32" not in peaks.tensor or facts.vendor == "amd":
            return
        kernels = matrix_kernels(signals)
        without_tf32 = kernels.select(
            (kernels.precision == Precision.BITS_32)
            & (kernels.tensor_cores == 0)
            & ~is_in(kernels.family, with_tf32(kernels))
        )
        ratio = peak_ratio(signals, without_tf32, "tf32", peaks)
        without_tf32 = without_tf32.select(ratio >= self.minimum_ratio)
        times = times_in_format(signals, without_tf32, "tf32", peaks)
        saving = faster_device_work(
            signals,
            without_tf32.rows,
            times.expected_ns,
            basis="modeled",
            least_then_ns=times.best_ns,
            most_then_ns=times.worst_ns,
        )
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into matrix kernels in full 32 bits;"
                f" {facts.name} reaches {(peaks.flop_per_s('tf32') or 0) / 1e12:.0f} TFLOP/s with"
                f" TF32 and {(peaks.flop_per_s('fp32', tensor=False) or 0) / 1e12:.0f} without."
            ),
            saving=saving,
            evidence=costly_work(
                "32-bit matrix kernels", signals, without_tf32.rows, saving.claims
            ),
            remedies=advise("tf32"),
        )


_ON_TENSOR_CORES = tuple(NUMBER_FORMATS.index(form) for form in ("fp16", "bf16", "fp8", "int8"))


class TensorCoresIdle(Rule):
    """Matrix kernels in 16-bit or 8-bit numbers run without tensor cores."""

    id = "tensor-cores-idle"
    title = "Run matrix kernels on the tensor cores"
    needs = (Need.DEVICE_EVENTS, Need.SHAPES, Need.PEAKS)
    refines = "slow-matmul"

    minimum_share = Limit(0.02, "share", "A smaller gain does not justify the search.")
    minimum_size = Limit(
        8, "count", "A smaller product does not fill a single tensor-core instruction."
    )
    maximum_achieved_share = Limit(
        0.35,
        "share",
        "Kernels that reach more are bound by memory, which tensor cores do not help.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        facts, rooflines, kernels = signals.device_facts, roofline(signals), matrix_kernels(signals)
        if facts is None or facts.peaks is None or not facts.peaks.tensor:
            return
        achieved = rooflines.achievable_ns[kernels.entry] / np.maximum(kernels.duration_ns, 1)
        is_idle = is_in(rooflines.number_format[kernels.entry], _ON_TENSOR_CORES) & (
            kernels.tensor_cores == 0
        )
        is_idle &= achieved < self.maximum_achieved_share
        is_idle &= rooflines.bound[kernels.entry] != LATENCY_BOUND
        is_idle &= fills_device(signals, kernels)
        sizes = rooflines.sizes_of(kernels.entry)[:, 1:]
        is_idle &= sizes.min(axis=1, initial=np.iinfo(np.int64).max) >= self.minimum_size
        is_idle &= ~_helps(signals, kernels)
        idle = kernels.select(is_idle)
        best_ns = np.rint(rooflines.achievable_ns[idle.entry]).astype(np.int64)
        saving = halfway_to_best(signals, idle.rows, best_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        share = best_ns.sum() / idle.duration_ns.sum()
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into 16-bit or 8-bit matrix kernels that do"
                f" not use tensor cores, at {format_share(share)} of the achievable rate."
            ),
            saving=saving,
            evidence=(
                matrix_products_by_size(
                    "16-bit and 8-bit matrix kernels without tensor cores", signals, idle
                ),
                costliest(
                    "Longest of these kernels",
                    signals.worker,
                    idle.rows,
                    time_within(signals, idle.rows, saving.claims),
                ),
            ),
            remedies=advise("channels-last", "library-benchmark", "pad-for-tensor-cores"),
        )


def _helps(signals: Signals, kernels: MatrixKernels) -> NDArray[np.bool_]:
    """Whether another kernel of the same operator uses matrix units, or may; shape (n,)."""
    operator = roofline(signals).operator[kernels.entry]
    helped = operator[(kernels.tensor_cores != 0) & (operator >= 0)]
    return is_in(operator, helped)


class MisalignedShapes(Rule):
    """Sizes of matrix products are not multiples of what tensor cores read at once."""

    id = "misaligned-shapes"
    title = "Pad matrix sizes to fit the tensor cores"
    needs = (Need.DEVICE_EVENTS, Need.SHAPES, Need.PEAKS)
    refines = "slow-matmul"
    is_preview = False

    minimum_share = Limit(0.02, "share", "A smaller gain does not justify the padding.")
    maximum_achieved_share = Limit(
        0.45, "share", "Aligned products that are bound by memory often reach no more."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        rooflines, kernels = roofline(signals), matrix_kernels(signals)
        achieved = rooflines.achievable_ns[kernels.entry] / np.maximum(kernels.duration_ns, 1)
        is_slow = achieved < self.maximum_achieved_share
        is_slow &= rooflines.bound[kernels.entry] != LATENCY_BOUND
        is_slow &= fills_device(signals, kernels)
        slow, achieved = kernels.select(is_slow), achieved[is_slow]
        is_off = is_misaligned_size(signals, slow)
        is_misaligned = np.logical_or.reduce(is_off, axis=1)
        products, is_off, achieved = (
            slow.select(is_misaligned),
            is_off[is_misaligned],
            achieved[is_misaligned],
        )
        # Cheap check first: exclusive time cannot exceed the total duration.
        if self.is_minor(int(products.duration_ns.sum()), signals):
            return
        sizes, padded = sizes_of(signals, products), padded_sizes(signals, products, is_off)
        growth = np.prod(padded / np.maximum(sizes, 1), axis=1)
        best_ns = np.rint(rooflines.achievable_ns[products.entry] * growth).astype(np.int64)
        best_ns = np.minimum(best_ns, products.duration_ns)
        saving = halfway_to_best(signals, products.rows, best_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, products.rows, saving.claims)
        worst = int(costliest_groups(sizes, cost_ns)[0][0][0])
        mean = float((achieved * products.duration_ns).sum() / products.duration_ns.sum())
        yield Finding(
            instance=_advice(sizes[worst], padded[worst]),
            summary=(
                f"{per_step(exposed_ns, signals)} goes into matrix products with misaligned sizes,"
                f" which reach {format_share(mean)} of the achievable rate. For the costliest one,"
                f" {_advice(sizes[worst], padded[worst])}."
            ),
            saving=saving,
            evidence=(
                _table(signals, products, sizes, padded, cost_ns),
                costliest("Longest misaligned products", signals.worker, products.rows, cost_ns),
            ),
            remedies=advise("aligned-shapes"),
        )


def _advice(sizes: Int64, padded: Int64) -> str:
    """For example `pad n (columns of the second operand) from 50257 to 50304`."""
    operands = ("m", "n (columns of the second operand)", "k (columns of the first operand)")
    changes = [
        f"{operand} from {size} to {to}"
        for operand, size, to in zip(operands, sizes.tolist(), padded.tolist(), strict=True)
        if size != to
    ]
    return f"pad {' and '.join(changes)}"


def _table(
    signals: Signals, kernels: MatrixKernels, sizes: Int64, padded: Int64, cost_ns: Int64
) -> Table:
    rooflines, trace = roofline(signals), signals.trace
    rows: list[tuple[Cell, ...]] = []
    for members, group_ns in costliest_groups(sizes, cost_ns):
        first = int(members[0])
        operator = int(rooflines.operator[kernels.entry[first]])
        row = int(kernels.rows[first])
        rows.append(
            (
                trace.name(operator) if operator >= 0 else trace.name(row),
                product_text(rooflines.sizes_of(kernels.entry[first]).tolist()),
                NUMBER_FORMATS[int(rooflines.number_format[kernels.entry[first]])],
                _advice(sizes[first], padded[first]),
                len(members),
                group_ns,
                trace.name(row),
                source_line(signals, row) or "",
            )
        )
    return Table(
        "Misaligned products",
        (
            Column("operator", "Operator"),
            Column("product", "Product (m, n, k)"),
            Column("format", "Data type"),
            Column("advice", "What to pad"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("kernel", "Kernel"),
            Column("source", "Source line"),
        ),
        tuple(rows),
    )


_SIXTEEN_BITS = tuple(NUMBER_FORMATS.index(form) for form in ("fp16", "bf16"))
_CAST_BYTES = 3
"""A cast reads 2 bytes of a number and writes 1."""
_QUANTIZED = regex(r"(?i)fp4|int4|e2m1|marlin|machete|gptq|awq|w[48]a16")
"""Kernels that multiply in 16 bits, but whose weights are already stored in fewer."""


class Fp8Opportunity(Rule):
    """Large 16-bit matrix products take most of the step, and the device is faster in fp8."""

    id = "fp8-opportunity"
    title = "Multiply large matrices in fp8"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION, Need.PEAKS)
    is_preview = False

    minimum_share = Limit(
        0.25, "share", "Half of the time of a quarter of the step is 12 % at best, 6 % expected."
    )
    minimum_ratio = Limit(
        1.5, "ratio", "Below 1.5 times the 16-bit rate, casts cost most of the gain."
    )
    minimum_achieved_share = Limit(
        0.4, "share", "Further below its roofline, something else limits a product."
    )
    minimum_duration_ns = Limit(
        10_000, "ns", "Shorter kernels are dominated by their start and end."
    )
    maximum_fp8_share = Limit(
        0.1, "share", "A program with more fp8 products has chosen what to leave in 16 bits."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        facts, products = signals.device_facts, matrix_kernels(signals)
        peaks = facts.peaks if facts else None
        fp8, bf16 = (peaks.flop_per_s(form) if peaks else None for form in ("fp8", "bf16"))
        if facts is None or peaks is None or not fp8 or not bf16 or fp8 < self.minimum_ratio * bf16:
            return
        products = products.select(products.family == KernelFamily.MATMUL)
        in_fp8_ns = products.duration_ns[products.precision == Precision.BITS_8].sum()
        if in_fp8_ns > self.maximum_fp8_share * products.duration_ns.sum():
            return
        program = workload(signals)
        is_inference = program.has(Part.FORWARD_ONLY) or program.has(Part.SERVER)
        large = products.select(self._is_large(signals, products, is_inference=is_inference))
        best_ns = _in_fp8_ns(signals, large, peaks, is_inference=is_inference)
        saving = faster_device_work(
            signals,
            large.rows,
            (best_ns + large.duration_ns) // 2,
            basis="heuristic",
            least_then_ns=best_ns,
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            instance=f"matrix products take {share_of_each(saving.claimed_ns, signals)}",
            summary=(
                f"16-bit matrix products take {time_of_each(saving.claimed_ns, signals)}."
                f" {_gain(signals, facts.name, fp8, fp8 / bf16)} Fp8 costs accuracy, which a"
                " profile does not show."
            ),
            saving=saving,
            severity="low",
            evidence=(
                matrix_products_by_size("Large 16-bit products", signals, large),
                costliest("Longest of them", signals.worker, large.rows, large.duration_ns),
            ),
            remedies=advise("fp8"),
        )

    def _is_large(
        self, signals: Signals, products: MatrixKernels, *, is_inference: bool
    ) -> NDArray[np.bool_]:
        """Whether fp8 would shorten each product; shape (n,)."""
        rooflines, entry = roofline(signals), products.entry
        bounds = (COMPUTE_BOUND, MEMORY_BOUND) if is_inference else (COMPUTE_BOUND,)
        achieved = rooflines.achievable_ns[entry] / np.maximum(products.duration_ns, 1)
        is_large = is_in(rooflines.number_format[entry], _SIXTEEN_BITS)
        is_large &= is_in(rooflines.bound[entry], bounds)
        is_large &= rooflines.sizes_of(entry)[:, 0] == 1
        is_large &= achieved >= self.minimum_achieved_share
        if is_inference:
            is_large |= np.isnan(achieved) & (products.precision == Precision.BITS_16)
        is_large &= products.duration_ns >= self.minimum_duration_ns
        return is_large & ~_is_quantized(signals, products)


def _gain(signals: Signals, device: str, fp8_flop_per_s: float, ratio: float) -> str:
    steps = server_steps(signals)
    if steps is not None and steps.is_kind(StepKind.DECODE).all():
        return (
            "Steps that only generate tokens read all weights to compute little with them, and in"
            " fp8 weights are half as large."
        )
    return (
        f"{device or 'The device'} multiplies {ratio:.1f} times as fast in fp8"
        f" ({fp8_flop_per_s / 1e12:,.0f} TFLOP/s)."
    )


def _is_quantized(signals: Signals, products: MatrixKernels) -> NDArray[np.bool_]:
    names, of_product = unique_inverse(signals.trace.events.name[products.rows])
    texts = signals.trace.texts(names)
    return np.array([bool(_QUANTIZED.search(text)) for text in texts], dtype=bool)[of_product]


def _in_fp8_ns(
    signals: Signals, products: MatrixKernels, peaks: Peaks, *, is_inference: bool
) -> Int64:
    """Times at the same share of the fp8 roofline, with the casts of the operands; shape (n,)."""
    rooflines, entry = roofline(signals), products.entry
    ratio = rooflines.achievable_in("fp8", peaks)[entry] / rooflines.achievable_ns[entry]
    _, m, n, k = rooflines.sizes_of(entry).T
    # Inference casts activations; weights are cast once. In training, each operand of a layer takes
    # part in two of three products.
    numbers = m * k if is_inference else (m * k + k * n) / 2
    bandwidth = (peaks.memory_bandwidth_bytes_per_s or np.inf) * peaks.achievable_bandwidth
    cast_ns = numbers * (_CAST_BYTES / bandwidth * 1e9)
    in_fp8_ns = products.duration_ns * np.where(np.isnan(ratio), 0.5, ratio) + cast_ns
    best_ns: Int64 = np.rint(np.minimum(in_fp8_ns, products.duration_ns)).astype(np.int64)
    return best_ns
