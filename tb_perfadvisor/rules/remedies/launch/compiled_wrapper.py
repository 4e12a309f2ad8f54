"""Remedies for slow host code that torch.compile generated around its kernels."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.launch.graphs import GRAPHS
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

COMPILED_WRAPPER = (
    *GRAPHS,
    Remedy(
        text="Let the compiler generate the wrapper in C++ rather than in Python: set this before "
        "the model is compiled.",
        snippet="torch._inductor.config.cpp_wrapper = True",
        framework="pytorch",
        needs=(Part.TORCH_COMPILE,),
        unless=SERVERS,
        reference="https://docs.pytorch.org/tutorials/unstable/inductor_cpp_wrapper_tutorial.html",
    ),
    Remedy(
        text="Compile fewer, larger regions: each call of one checks its inputs and allocates its "
        "outputs on the host. PyTorch logs which lines split them.",
        snippet="TORCH_LOGS=graph_breaks python train.py",
        language="bash",
        framework="pytorch",
        needs=(Part.TORCH_COMPILE,),
        unless=SERVERS,
        reference="https://docs.pytorch.org/docs/stable/logging.html",
    ),
)
"""Spend less time between the kernels of a compiled graph."""
