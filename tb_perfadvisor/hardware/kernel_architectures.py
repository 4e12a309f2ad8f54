"""What the names of kernels say about the GPU that they run on.

Libraries name kernels after the architecture that they were written for: `volta_sgemm_128x64_nt`,
`sm90_xmma_gemm_…`. NVIDIA's newer GPUs also run kernels for older ones, so such a name gives the
oldest architecture that the device can have. AMD's names give the architecture itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from tb_perfadvisor.hardware.peaks import capability_of_target

_GENERATIONS: Final = {
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
}
"""The first compute capability of each generation of NVIDIA's GPUs with tensor cores."""

_AMD: Final = re.compile(
    r"_ISA([0-9]{2}[0-9a-fA-F])(?![0-9a-zA-Z])|gfx([0-9]{2}[0-9a-f])(?![0-9a-z])"
)
_NVIDIA: Final = (
    (re.compile(r"(?<![a-z])volta_|[hs]884"), (7, 0)),
    (re.compile(r"(?<![a-z])turing_"), (7, 5)),
    (re.compile(r"(?<![a-z])ampere_"), (8, 0)),
    (re.compile(r"^nvjet_(?!sm)"), (9, 0)),
)
# Two digits, or three from 100 on: `sm80_xmma_`, `cutlass_75_`, `arch::Sm90`, `nvjet_sm100_`.
_NUMBERED: Final = re.compile(r"(?<![A-Za-z])(?:[sS][mM]_?|cutlass_)((?:[7-9]\d|1[0-2]\d))(?!\d)")


class BuiltFor(Struct, frozen=True):
    """The newest architecture that some kernels were written for."""

    vendor: str
    capability: tuple[int, int]
    """NVIDIA: the device has this compute capability or a higher one. AMD: exactly this one."""
    generation: str
    """NVIDIA's name of the generation, or AMD's target."""
    kernel: str
    """A kernel that shows it."""


def built_for(kernel_names: Iterable[str]) -> BuiltFor | None:
    """The newest architecture in the names of kernels; None if they name none."""
    newest: BuiltFor | None = None
    for name in kernel_names:
        found = _of_name(name)
        if found is not None and (newest is None or found.capability > newest.capability):
            newest = found
    return newest


def _of_name(name: str) -> BuiltFor | None:
    amd = _AMD.search(name)
    if amd is not None:
        target = "gfx" + (amd[1] or amd[2]).lower()
        return BuiltFor("amd", capability_of_target(target), target, name)
    capabilities = [capability for pattern, capability in _NVIDIA if pattern.search(name)]
    capabilities += [(int(digits[:-1]), int(digits[-1])) for digits in _NUMBERED.findall(name)]
    if not capabilities:
        return None
    newest = max(capabilities)
    generation = [label for first, label in _GENERATIONS.items() if first <= newest][-1]
    return BuiltFor("nvidia", newest, generation, name)
