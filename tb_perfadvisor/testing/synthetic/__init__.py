"""Synthetic profiles of machines that we don't have: the demo's TPU and its eight GPUs.

Each has a slow and a fixed version. The GPUs' times follow from sizes and from the rates in data
sheets, so the right advice can be worked out by hand. The TPU's are those that XLA's compiler
estimates for a program that it compiled. Nothing is random. The files and their labels are marked
as synthetic.
"""

from __future__ import annotations

from tb_perfadvisor.testing.synthetic.gpu import OVER_NVLINK, OVER_PCIE, gpu_data_parallel
from tb_perfadvisor.testing.synthetic.profiles import write_synthetic
from tb_perfadvisor.testing.synthetic.tpu import FITTING, PADDED, tpu_attention
from tb_perfadvisor.testing.synthetic.training import training_scalars

__all__ = [
    "FITTING",
    "OVER_NVLINK",
    "OVER_PCIE",
    "PADDED",
    "gpu_data_parallel",
    "tpu_attention",
    "training_scalars",
    "write_synthetic",
]
