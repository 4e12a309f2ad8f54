"""The model of matrix products against recorded kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tb_perfadvisor import load
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.matrix_kernels import matrix_kernels
from tb_perfadvisor.signals.work.roofline import roofline
from tb_perfadvisor.trace import KernelFamily


@pytest.mark.parametrize(
    ("path", "library"),
    [
        # Kernels of cuBLAS for aligned products, on an H100 and an A100.
        ("tracelens/h100/facebook_timesformer-base-finetuned-k400", "sm90_xmma_gemm"),
        ("tracelens/h100/google_owlv2-large-patch14-ensemble", "sm90_xmma_gemm"),
        ("astra-sim/megatron_tp8", "_fp16_"),
    ],
)
def test_kernels_of_libraries_take_about_as_long_as_achievable(
    corpus: Path, path: str, library: str
) -> None:
    (run,) = load(corpus / path)
    signals = Signals(run)
    kernels, works = matrix_kernels(signals), roofline(signals)
    is_chosen = (kernels.family == KernelFamily.MATMUL) & (kernels.duration_ns >= 20_000)
    is_chosen &= np.array([library in run.traces[0].name(int(row)) for row in kernels.rows])
    chosen = kernels.select(is_chosen)
    ratio = works.achievable_ns[chosen.entry] / chosen.duration_ns
    assert len(ratio) >= 20
    assert np.median(np.abs(ratio - 1)) <= 0.15
    assert np.quantile(ratio, 0.9) <= 1.2
