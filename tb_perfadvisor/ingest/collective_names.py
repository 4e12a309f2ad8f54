"""Which kernels communicate, by name: NCCL of every generation, its kin, and custom kernels."""

from __future__ import annotations

import re
from typing import Final

# Reductions inside one device are named alike: those of a warp, a block, a wave.
_ALL_REDUCE: Final = r"(?<!warp)(?<!warp_)(?<!block)(?<!block_)(?<!wave)(?<!wave_)all_?reduce"

_LIBRARIES: Final = re.compile(
    r"(?i)(?:^|[^a-z])(?:nccl|rccl|hccl|mccl|msccl|mscclpp|oneccl|pccl)"
    r"|nccl(?:Dev)?Kernel|ncclSym|oneapi::ccl|^hcom_|nvshmem|userbuffers"
    r"|cross_device_reduce|(?:one|two)_?shot_\w*reduce|multimem_|lamport|quick_?reduce"
    r"|deep_?ep|(?:intra|inter)node(?:_ll)?::|ep::\w*(?:dispatch|combine)"
)
_OPERATIONS: Final = re.compile(
    rf"(?i){_ALL_REDUCE}|all_?gather|reduce_?scatter|(?<![a-z])all_?to_?all|alltoallv?_"
)
# Compilers name a kernel by all that was fused around it; `triton_poi_fused_all_gather_…` only
# works on what a collective brought.
_COMPILED: Final = re.compile(r"^(?:triton_[a-z]{3}_fused|(?:loop|input)_\w*fusion|at::native::)")
_LOCAL: Final = re.compile(
    r"(?i)^(?:void )?(?:at::native|at_cuda_detail|c10d|cub|thrust|rocprim)::"
)
_COPIES: Final = re.compile(r"(?i)^(?:hip|cuda)?mem(?:cpy|set)")

_BY_OPERATION: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), operation)
    for pattern, operation in (
        (r"reduce_?scatter", "reduce-scatter"),
        (r"all_?gather", "all-gather"),
        (r"all_?to_?all|(?<![a-z])a2a|dispatch|combine", "all-to-all"),
        (r"all_?reduce|cross_device_reduce|(?:one|two)_?shot|quick_?reduce|lamport", "all-reduce"),
        (r"broadcast", "broadcast"),
        (r"send_?recv|_send|_recv|p2p", "send-recv"),
        (r"reduce", "reduce"),
    )
)


def is_collective(name: str) -> bool:
    """Whether a kernel's name says that it communicates with other devices."""
    if _COMPILED.match(name) or _LOCAL.match(name) or _COPIES.match(name):
        return False
    return bool(_LIBRARIES.search(name) or _OPERATIONS.search(name))


def collective_operation(name: str) -> str:
    """The operation that a communicating kernel carries out.

    Returns:
        `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `broadcast`, `reduce`,
        `send-recv`, or `unknown`.
    """
    for pattern, operation in _BY_OPERATION:
        if pattern.search(name):
            return operation
    return "unknown"
