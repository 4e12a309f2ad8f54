"""16-bit compute on hardware that has no units for it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.work.matrix_kernels import matrix_kernels
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in

_BFLOAT16 = re.compile(r"bf16|bfloat16", re.IGNORECASE)
_READS = "/Cast/ReadVariableOp:ReadVariableOp"


class EmulatedSixteenBits(Rule):
    """The program computes in 16 bits on hardware that has no units for it.

    What it finds
    -------------
    Matrix kernels in bfloat16 on a GPU without bfloat16 units (NVIDIA's before Ampere). And Keras
    models on the CPU whose layers cast their weights to 16 bits, if oneDNN does not compute them.

    Why it matters
    --------------
    Without such units, each number is converted to 32 bits and back. A Keras model of convolutions
    took 2.8 times as long with a bfloat16 policy on a CPU as without.

    How it is measured
    ------------------
    On a GPU, the time in which only such kernels run: expected is half of it, which is cautious for
    tensor cores in float16, high three quarters, low 0. On the CPU, nothing in the profile tells
    how long 32 bits would take, so there is no saving.

    When to ignore
    --------------
    When memory is the reason for 16 bits, or when results must match those of other hardware.

    How to verify
    -------------
    Time a few steps in each number format, without the profiler.

    References:
    ----------
    TensorFlow guide, "Mixed precision", on hardware; NVIDIA, "CUDA C++ Programming Guide",
    arithmetic instructions by compute capability.
    """

    id = "emulated-sixteen-bits"
    title = "Compute in a format that the hardware has units for"
    category = "precision"
    needs = (Need.WORK,)
    is_preview = False

    minimum_share = Limit(0.05, "share", "A few layers in another format cost less than this.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 16-bit numbers are emulated."""
        facts = signals.device_facts
        if signals.device.is_host_only:
            yield from _on_cpu(signals)
        elif facts is not None and facts.peaks is not None and _lacks_bfloat16(facts.peaks):
            yield from self._on_gpu(signals, facts.name)

    def _on_gpu(self, signals: Signals, name: str) -> Iterable[Finding]:
        trace, rows = signals.trace, matrix_kernels(signals).rows
        names = trace.events.name[rows]
        in_bfloat16 = [n for n in distinct(names).tolist() if _BFLOAT16.search(trace.strings[n])]
        rows = rows[is_in(names, in_bfloat16)]
        now_ns = trace.events.duration_ns[rows]
        saving = faster_device_work(
            signals, rows, now_ns // 2, basis="heuristic", least_then_ns=now_ns // 4
        )
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into products in bfloat16, which the"
                f" {name} has no units for."
            ),
            saving=saving,
            evidence=(costliest("Longest kernels in bfloat16", signals.worker, rows, now_ns),),
            remedies=advise("float16", "float16-or-32-bits"),
        )


def _lacks_bfloat16(peaks: Peaks) -> bool:
    """Whether a device is known to multiply float16 on matrix units, but not bfloat16."""
    return peaks.flop_per_s("bf16") is None and peaks.flop_per_s("fp16") is not None


def _on_cpu(signals: Signals) -> Iterable[Finding]:
    layers = _layers_with_cast_weights(signals.trace)
    if not layers:
        return
    count = "one layer" if len(layers) == 1 else f"{len(layers)} layers"
    yield Finding(
        summary=(
            f"The policy of this Keras model casts the weights of {count} to 16 bits,"
            " but on the CPU, TensorFlow's own kernels convert each number back: a step often takes"
            " two to three times as long as in 32 bits."
        ),
        evidence=(
            Table(
                "Layers that cast their weights",
                (Column("layer", "Layer"),),
                tuple((layer,) for layer in layers),
            ),
        ),
        remedies=advise("float32", "onednn"),
        severity="medium",
    )


def _layers_with_cast_weights(trace: Trace) -> tuple[str, ...]:
    """Layers that read a variable and cast it; empty if oneDNN computes.

    Keras reads variables of layers through an automatic cast, which is an operator of its own only
    if the policy differs from the variable's type (keras/src/backend/common/variables.py).
    """
    names = trace.events.name[trace.rows(EventKind.OPERATOR)]
    operators = {trace.strings[name] for name in distinct(names).tolist()}
    if any(":_Mkl" in name for name in operators):
        return ()
    read = (name.removesuffix(_READS) for name in operators if name.endswith(_READS))
    cast = (name for name in read if f"{name}/Cast:Cast" in operators)
    # `sequential/dense/BiasAdd` and `sequential/dense/MatMul` are one layer.
    return tuple(sorted({name.rpartition("/")[0] for name in cast}))
