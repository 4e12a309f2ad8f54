"""Made-up profiles of machines that nobody lent us: the demo's TPU and its eight GPUs.

Each comes twice, slow and with its fix. Times follow from sizes and from rates of the devices'
data sheets, so that what an advisor should say can be worked out by hand; nothing is random.
The files are marked as made up, and so are their labels.
"""

from __future__ import annotations

from tb_perfadvisor.testing.synthetic.gpu import OVER_NVLINK, OVER_PCIE, gpu_data_parallel
from tb_perfadvisor.testing.synthetic.profiles import write_synthetic
from tb_perfadvisor.testing.synthetic.tpu import FITTING, PADDED, tpu_training

__all__ = [
    "FITTING",
    "OVER_NVLINK",
    "OVER_PCIE",
    "PADDED",
    "gpu_data_parallel",
    "tpu_training",
    "write_synthetic",
]
