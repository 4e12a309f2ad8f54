"""Kernels that only draw random numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32


class RandomNumberKernels(Rule):
    """The device spends a good part of its time drawing random numbers.

    What it finds
    -------------
    Kernels of GPUs that fill tensors with random numbers and do nothing else: TensorFlow's
    `FillPhiloxRandom`, PyTorch's `distribution_elementwise`, cuRAND's and JAX's generators.

    Why it matters
    --------------
    The mask of a dropout layer is as large as the layer's output. Drawn by a kernel of its own, the
    numbers are written to memory, read, compared and converted, which takes several times as long
    as dropping the values does. A compiler draws them in the kernel that uses them.

    How it is measured
    ------------------
    The time in which nothing else runs on the device. High is all of it, expected is half, because
    the numbers are still computed, and low is 0. What other kernels do with the numbers is left
    out. Where the profile allows it, replaying the steps refines the expected saving.

    When to ignore
    --------------
    When the random numbers are the purpose of the program, as in a simulation.

    How to verify
    -------------
    The kernels in the table are gone or take less time.

    References:
    ----------
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), on Philox and Threefry;
    TensorFlow guide, "XLA: Optimizing Compiler for Machine Learning".
    """

    id = "random-number-kernels"
    title = "Draw random numbers where they are used"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_share = Limit(0.03, "share", "Dropout in a compiled step takes less than this.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when drawing random numbers takes a good part of the step."""
        rows = _random_rows(signals)
        now_ns = signals.trace.events.duration_ns[rows]
        if self.is_minor(int(now_ns.sum()), signals):
            return
        saving = faster_device_work(signals, rows, now_ns // 2, basis="heuristic")
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into drawing random numbers"
                f" ({count_per_step(len(rows), 'kernel', signals)}), which other kernels then read."
            ),
            saving=saving,
            evidence=costly_work("drawing random numbers", signals, rows, saving.claims),
            remedies=advise(
                "compiled-random-numbers", "compile", "hardware-generator", "fewer-random-numbers"
            ),
        )


@cache
def _names() -> re.Pattern[str]:
    # tensorflow/core/kernels/random_op_gpu.h; aten/src/ATen/native/cuda/DistributionTemplates.h;
    # cuRAND; JAX's jaxlib/gpu/prng_kernels.cu.cc.
    return re.compile(
        r"FillPhiloxRandom|distribution_elementwise|curand_?\w*kernel|gen_sequenced|ThreeFry2x32",
        re.IGNORECASE,
    )


def _random_rows(signals: Signals) -> Int32:
    """Kernels that only draw random numbers."""
    trace, rows = signals.trace, work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.KERNEL]
    names = trace.events.name[rows]
    drawing = [name for name in distinct(names).tolist() if _names().search(trace.strings[name])]
    random: Int32 = rows[is_in(names, drawing)]
    return random
