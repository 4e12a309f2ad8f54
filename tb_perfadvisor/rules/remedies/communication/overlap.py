"""What makes exposed collectives cost less, by what they are for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.communication.gradients import (
    ASYNC_COLLECTIVE,
    FEWER_REDUCTIONS,
    LARGER_BATCH,
    NO_BUFFER_BROADCAST,
    OVERLAP_GRADIENTS,
    TF_NCCL,
    XLA_OVERLAP,
)
from tb_perfadvisor.rules.remedies.communication.model_parallel import (
    EVEN_EMBEDDINGS,
    KEEP_SHARDS,
    NARROW_EMBEDDINGS,
    OTHER_CONTEXT_EXCHANGE,
    OVERLAP_EXPERTS,
    OWN_STATISTICS,
    PREFETCH_SHARDS,
    SHORTER_BUBBLE,
)
from tb_perfadvisor.rules.remedies.communication.tensor_parallel import (
    CUSTOM_ALL_REDUCE,
    FEWER_TENSOR_PARALLEL_RANKS,
    OVERLAP_TENSOR_PARALLEL,
)
from tb_perfadvisor.signals.ranks.collective_roles import Role

OVERLAP: Final[dict[Role, tuple[Remedy, ...]]] = {
    Role.GRADIENTS: (*OVERLAP_GRADIENTS, *FEWER_REDUCTIONS, *LARGER_BATCH),
    Role.SHARDS: (*PREFETCH_SHARDS, KEEP_SHARDS, *LARGER_BATCH),
    Role.BUFFERS: NO_BUFFER_BROADCAST,
    Role.TENSOR: (
        *CUSTOM_ALL_REDUCE,
        *OVERLAP_TENSOR_PARALLEL,
        *FEWER_TENSOR_PARALLEL_RANKS,
    ),
    Role.CONTEXT: OTHER_CONTEXT_EXCHANGE,
    Role.PIPELINE: SHORTER_BUBBLE,
    Role.EXPERTS: OVERLAP_EXPERTS,
    Role.EMBEDDINGS: (NARROW_EMBEDDINGS, EVEN_EMBEDDINGS),
    Role.STATISTICS: (OWN_STATISTICS,),
    Role.UNKNOWN: (ASYNC_COLLECTIVE, XLA_OVERLAP, TF_NCCL, *LARGER_BATCH),
}
"""What makes exposed collectives cost less, by what they are for."""


def overlap_remedies(roles: Iterable[Role]) -> tuple[Remedy, ...]:
    """What makes exposed collectives cost less, each remedy once.

    Args:
        roles: What the collectives are for, the costliest first.
    """
    remedies = (remedy for role in roles for remedy in OVERLAP[role])
    return tuple(dict.fromkeys(remedies))
