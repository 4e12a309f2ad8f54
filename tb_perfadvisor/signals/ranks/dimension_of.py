"""The parallel dimension that each collective belongs to."""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import places_by_value


class Dimension(Enum):
    """A way in which a program divides its work among devices."""

    UNKNOWN = "unknown"
    DATA = "data"
    """Each rank has the whole model and a part of the batch."""
    SHARDED = "sharded"
    """As `DATA`, with parameters, gradients and optimizer state divided among the ranks."""
    TENSOR = "tensor"
    CONTEXT = "context"
    PIPELINE = "pipeline"
    EXPERT = "expert"
    EMBEDDING = "embedding"


DIMENSIONS: Final = tuple(Dimension)
_OF_ROLE: Final = {
    Role.UNKNOWN: Dimension.UNKNOWN,
    Role.GRADIENTS: Dimension.DATA,
    Role.BUFFERS: Dimension.DATA,
    Role.STATISTICS: Dimension.DATA,
    Role.SHARDS: Dimension.SHARDED,
    Role.TENSOR: Dimension.TENSOR,
    Role.CONTEXT: Dimension.CONTEXT,
    Role.PIPELINE: Dimension.PIPELINE,
    Role.EXPERTS: Dimension.EXPERT,
    Role.EMBEDDINGS: Dimension.EMBEDDING,
}
DIMENSION_OF_ROLE: Final = np.array(
    [DIMENSIONS.index(_OF_ROLE[role]) for role in Role], dtype=np.uint8
)
"""Index into `Dimension` by index into `Role`."""
# Names of mesh axes in MaxText (configs/base.yml), Flax's and JAX's documentation and T5X.
_OF_AXIS: Final = {
    **dict.fromkeys(("data", "batch", "dp", "replica", "replicas", "dp_replicate"), Dimension.DATA),
    **dict.fromkeys(("fsdp", "fsdp_transpose", "dp_shard"), Dimension.SHARDED),
    **dict.fromkeys(
        ("tensor", "tensor_transpose", "tensor_sequence", "model", "mdl", "tp", "mp"),
        Dimension.TENSOR,
    ),
    **dict.fromkeys(("context", "sequence", "seq", "cp", "sp"), Dimension.CONTEXT),
    **dict.fromkeys(("stage", "stages", "pipeline", "pipe", "pp"), Dimension.PIPELINE),
    **dict.fromkeys(("expert", "experts", "ep"), Dimension.EXPERT),
}


@memoized
def dimension_of_collectives(signals: Signals) -> NDArray[np.uint8]:
    """Index into `Dimension` of each row of the trace's table of collectives; shape (n,).

    What a collective is for decides. In XLA programs it is the name of the mesh axis, if the
    program has named axes. Sizes of groups prove nothing.
    """
    trace = signals.trace
    dimension = DIMENSION_OF_ROLE[collective_roles(signals).role]
    if trace.source.framework == "pytorch":
        return dimension
    axes = np.where(dimension == 0, trace.collectives.description, -1)
    for index, places in places_by_value(axes):
        if index >= 0:
            dimension[places] = DIMENSIONS.index(dimension_of_axes(trace.strings[index]))
    return dimension


def dimension_of_axes(names: str) -> Dimension:
    """The dimension of a group that spans some axes of a mesh; unknown where axes disagree.

    Args:
        names: The axes, such as `data,fsdp`.
    """
    found = {_OF_AXIS.get(name.strip().lower(), Dimension.UNKNOWN) for name in names.split(",")}
    if found == {Dimension.DATA, Dimension.SHARDED}:
        return Dimension.DATA  # the batch is divided along both
    return found.pop() if len(found) == 1 else Dimension.UNKNOWN
