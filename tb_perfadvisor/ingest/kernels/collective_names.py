"""Which kernels are collectives, by their names."""

from __future__ import annotations

import re
from typing import Final

# Reductions within a warp, block or wave have similar names.
_ALL_REDUCE: Final = r"(?<!warp)(?<!warp_)(?<!block)(?<!block_)(?<!wave)(?<!wave_)all_?reduce"

_LIBRARIES: Final = (
    r"(?i)(?:^|[^a-z])(?:nccl|rccl|hccl|mccl|msccl|mscclpp|oneccl|pccl)"
    r"|nccl(?:Dev)?Kernel|ncclSym|oneapi::ccl|^hcom_|nvshmem|userbuffers"
    r"|cross_device_reduce|(?:one|two)_?shot_\w{0,60}reduce|multimem_|lamport|quick_?reduce"
    r"|deep_?ep|(?:intra|inter)node(?:_ll)?::|ep::\w*(?:dispatch|combine)"
)
_OPERATIONS: Final = (
    rf"(?i){_ALL_REDUCE}|all_?gather|reduce_?scatter|(?<![a-z])all_?to_?all|alltoallv?_"
    r"|moe_?a2a|(?:^|[ :])ep(?:dispatch|combine)\w*kernel"
)
# Every name that matches one of the two patterns contains at least one of these words in lower
# case. Checking the words first takes a fifth of the time of the patterns, which are compiled only
# when needed.
WORDS: Final = (
    *("ccl", "hcom_", "nvshmem", "userbuffers", "cross_device_reduce", "shot_", "multimem_"),
    *("lamport", "quick", "deep", "node", "ep::", "allre", "all_re", "allga", "all_ga", "allto"),
    *("all_to", "scatter", "a2a", "epdispatch", "epcombine"),
)
# Compilers name a kernel after everything fused into it: `triton_poi_fused_all_gather_…` only
# processes the result of a collective.
_COMPILED: Final = r"triton_[a-z]{3}_fused|(?:loop|input)_\w*fusion"
_LOCAL: Final = r"(?i)(?:void )?(?:at::native|at_cuda_detail|c10d|cub|thrust|rocprim)::"
_COPIES: Final = r"(?i)(?:hip|cuda)?mem(?:cpy|set)"

_BY_OPERATION: Final = (
    (r"(?i)reduce_?scatter", "reduce-scatter"),
    (r"(?i)all_?gather", "all-gather"),
    (r"(?i)all_?to_?all|(?<![a-z])a2a|dispatch|combine", "all-to-all"),
    (r"(?i)all_?reduce|cross_device_reduce|(?:one|two)_?shot|quick_?reduce|lamport", "all-reduce"),
    (r"(?i)broadcast", "broadcast"),
    (r"(?i)send_?recv|_send|_recv|p2p", "send-recv"),
    (r"(?i)reduce", "reduce"),
)


def is_collective(name: str) -> bool:
    """Whether a kernel communicates with other devices, according to its name."""
    lower = name.lower()
    if not any(word in lower for word in WORDS):
        return False
    if re.match(_COMPILED, name) or re.match(_COPIES, name):
        return False
    if re.search(_LIBRARIES, name):
        return True
    # PyTorch's symmetric-memory kernels share namespaces with kernels that do not communicate.
    return re.match(_LOCAL, name) is None and re.search(_OPERATIONS, name) is not None


def collective_operation(name: str) -> str:
    """The operation of a communication kernel.

    It is `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `broadcast`, `reduce`,
    `send-recv`, or `unknown`.
    """
    for pattern, operation in _BY_OPERATION:
        if re.search(pattern, name):
            return operation
    return "unknown"


# NCCL has one kernel per type for reductions, named after the type, and one for all types where it
# only moves bytes. The values are PyTorch's names of the types (c10/core/ScalarType.h).
_REDUCING: Final = r"(?i)(?:All_?Reduce|Reduce_?Scatter|(?<!All)Reduce)"
_TYPE: Final = (
    r"(?i)_(?:sum|prod|min|max|minmax|premulsum|sumpostdiv)_"
    r"(__nv_bfloat16|hip_bfloat16|rccl_bfloat16|bf16|half|f16|float|f32|double|f64)(?![a-z0-9])"
)
_TYPES: Final = {
    **dict.fromkeys(("bf16", "__nv_bfloat16", "hip_bfloat16", "rccl_bfloat16"), "BFloat16"),
    **dict.fromkeys(("f16", "half"), "Half"),
    **dict.fromkeys(("f32", "float"), "Float"),
    **dict.fromkeys(("f64", "double"), "Double"),
}


def collective_dtype(name: str) -> str:
    """The floating-point type in the name of a reducing kernel; empty if there is none."""
    match = re.search(_TYPE, name) if re.search(_REDUCING, name) else None
    return _TYPES[match[1].lower()] if match else ""
