"""Remedies for slow links between ranks."""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

_NCCL_DOCS: Final = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

LINK_PATH: Final = variants(
    "link-path",
    Remedy(
        text="Check which path the messages take: it should be NVLink, or InfiniBand with "
        "GPUDirect, not sockets or host memory.",
        snippet=(
            "nvidia-smi topo -m\n"
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH python train.py 2>&1 |\n"
            "    grep -E 'via|NET/|Channel'"
        ),
        language="bash",
        needs=(Part.NVIDIA,),
        reference=_NCCL_DOCS,
    ),
    Remedy(
        text="Check which path the messages take: it should be Infinity Fabric (XGMI), or RDMA, "
        "not sockets or host memory.",
        snippet=(
            "amd-smi topology  # before ROCm 6: rocm-smi --showtopo\n"
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH python train.py 2>&1 |\n"
            "    grep -E 'via|NET/|Channel'"
        ),
        language="bash",
        needs=(Part.AMD,),
        reference="https://rocm.docs.amd.com/projects/rccl/en/latest/how-to/rccl-usage-tips.html",
    ),
    Remedy(
        text="If the ranks communicate with NCCL or RCCL, check which path the messages take.",
        snippet="NCCL_DEBUG=INFO python train.py 2>&1 | grep -E 'via|NET/|Ring|Tree'",
        language="bash",
        unless=(Part.TPU, Part.CPU_ONLY),
        reference=_NCCL_DOCS,
    ),
    Remedy(
        text="Let the mesh follow the topology of the slice, so that neighbors in the mesh are "
        "neighbors in the torus.",
        snippet='mesh = jax.make_mesh((8, 4), ("data", "model"))',
        framework="jax",
        needs=(Part.TPU,),
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.make_mesh.html",
    ),
    Remedy(
        text="Check the topology of the slice: collectives are fastest along its rings.",
        snippet="gcloud compute tpus tpu-vm describe NAME --zone ZONE",
        language="bash",
        needs=(Part.TPU,),
        reference="https://cloud.google.com/tpu/docs/system-architecture-tpu-vm",
    ),
    Remedy(
        text="If the ranks communicate with Gloo, check that it uses the fastest network card.",
        snippet="GLOO_SOCKET_IFNAME=eth0 torchrun train.py",
        language="bash",
        framework="pytorch",
        needs=(Part.CPU_ONLY,),
        reference="https://pytorch.org/docs/stable/distributed.html",
    ),
    Remedy(
        text="If several machines take part, measure the network between them.",
        snippet="iperf3 --client OTHER_HOST",
        language="bash",
        needs=(Part.CPU_ONLY,),
        reference="https://software.es.net/iperf/",
    ),
    framework="",
)
LINK_TEST: Final = variants(
    "link-test",
    Remedy(
        text="Measure the link itself, with the same message size and the same ranks.",
        snippet="./build/all_reduce_perf --minbytes 1M --maxbytes 1G --stepfactor 2 --ngpus 8",
        language="bash",
        needs=(Part.NVIDIA,),
        reference="https://github.com/NVIDIA/nccl-tests",
    ),
    Remedy(
        text="Measure the link itself, with the same message size and the same ranks.",
        snippet="./build/all_reduce_perf --minbytes 1M --maxbytes 1G --stepfactor 2 --ngpus 8",
        language="bash",
        needs=(Part.AMD,),
        reference="https://github.com/ROCm/rccl-tests",
    ),
    framework="",
)
