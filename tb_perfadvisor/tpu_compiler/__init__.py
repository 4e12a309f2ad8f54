"""Asks XLA's TPU compiler what programs and shapes cost, without a TPU (extra `tpu`)."""

from tb_perfadvisor.tpu_compiler.compiler import (
    CompiledProgram,
    Operation,
    Refused,
    Source,
    compile_for_tpu,
    tpu_compiler_versions,
)
from tb_perfadvisor.tpu_compiler.generations import (
    GENERATIONS,
    Generation,
    find_generation,
)
from tb_perfadvisor.tpu_compiler.kernels import Kernel

__all__ = [
    "GENERATIONS",
    "CompiledProgram",
    "Generation",
    "Kernel",
    "Operation",
    "Refused",
    "Source",
    "compile_for_tpu",
    "find_generation",
    "tpu_compiler_versions",
]
