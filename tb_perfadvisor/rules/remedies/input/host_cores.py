"""Remedies for host threads that have to share their cores."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

OWN_CORES = (
    Remedy(
        text="Give each rank cores of its own, near its GPU. PyTorch 2.9 and later can do it; it "
        "calls numactl.",
        snippet="torchrun --numa-binding=exclusive --nproc-per-node=gpu train.py",
        language="bash",
        framework="pytorch",
        needs=(Part.SEVERAL_DEVICES,),
        unless=(*SERVERS, Part.TPU),
        reference="https://docs.pytorch.org/docs/main/elastic/numa.html",
    ),
    Remedy(
        text="Run fewer threads and processes than there are cores. Each process starts as many"
        " threads for operators on the CPU as the machine has cores, unless it is told otherwise.",
        snippet="export OMP_NUM_THREADS=4",
        language="bash",
        reference="https://docs.pytorch.org/docs/stable/torch_environment_variables.html",
    ),
    Remedy(
        text="Start the process on cores that no other process uses, near its device.",
        snippet="numactl --physcpubind=0-15 --preferred=0 python train.py",
        language="bash",
        reference="https://man7.org/linux/man-pages/man8/numactl.8.html",
    ),
    Remedy(
        text="In a container, raise the CPU limit if the number of throttled periods grows while "
        "the program runs: the kernel stops all threads of a container that has used up its share.",
        snippet="grep throttled /sys/fs/cgroup/cpu.stat",
        language="bash",
        reference="https://docs.kernel.org/scheduler/sched-bwc.html",
    ),
)
"""Leave the launching threads a core of their own."""
