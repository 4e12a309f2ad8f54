"""What each collective is for: gradients, tensor-parallel layers, sharded parameters and so on.

Advice depends on it. Buckets help gradients, which are needed only at the end of the step. They do
not help tensor-parallel layers, which need each result at once.

The evidence, the strongest first: what encloses the launch on the host, by names that only one use
has; what the program calls the process group; the kernel; what an embedded program of XLA computes
from the array; the operation. What all launched collectives of an operation and group are for also
holds for those whose launch is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.devices import Carried, carried
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, places_by_value
from tb_perfadvisor.trace.nesting import nearest, with_enclosing
from tb_perfadvisor.trace.tables import Int32


class Role(Enum):
    """What a collective is for; the value completes "for …"."""

    UNKNOWN = "an unknown purpose"
    GRADIENTS = "gradients of data-parallel ranks"
    SHARDS = "sharded parameters and their gradients"
    BUFFERS = "buffers of DistributedDataParallel"
    TENSOR = "tensor-parallel layers"
    CONTEXT = "context-parallel attention"
    PIPELINE = "pipeline stages"
    EXPERTS = "expert-parallel layers"
    EMBEDDINGS = "sharded embedding tables"
    STATISTICS = "batch statistics"


_ROLES: Final = tuple(Role)
_REDUCING: Final = frozenset({"all-reduce", "reduce-scatter", "reduce"})
_BETWEEN_STAGES: Final = frozenset({"send", "recv"})
_OPERATIONS: Final = {
    Role.BUFFERS: frozenset({"broadcast"}),
    Role.GRADIENTS: _REDUCING,
}
"""Operations that a role has; the other roles have any. `DistributedDataParallel.forward` also
encloses the model's own collectives."""

# Sources: torch/nn/parallel/distributed.py, torch/distributed/fsdp, torch/distributed/tensor,
# torch/nn/modules/_functions.py; megatron/core/tensor_parallel/mappings.py, layers.py and
# cross_entropy.py; deepspeed/runtime/zero, deepspeed/sequence/layer.py and deepspeed/moe;
# transformer_engine/pytorch/attention; torchrec/distributed; vllm and sglang,
# distributed/communication_op.py; yunchang/comm/all_to_all.py and FastVideo (`AllToAll4D`).
_ENCLOSING: Final = (
    (
        Role.TENSOR,
        r"_(?:Copy|Reduce|Scatter|Gather|AllGather|ReduceScatter)\w{0,60}"
        r"(?:Model|Sequence|Tensor)ParallelRegion|_?VocabParallelCrossEntropy"
        r"|LinearWithGradAccumulationAndAsyncCommunication"
        r"|megatron/core/tensor_parallel/|tensor_model_parallel_|vllm::all_reduce"
        r"|(?:sgl_kernel|sglang|_C_custom_ar)::\w*all_reduce",
    ),
    (
        Role.SHARDS,
        r"FSDP::|FullyShardedDataParallel\._|torch/distributed/fsdp/|torch/distributed/_composable/"
        r"fsdp|deepspeed/runtime/zero/(?:stage3|partition|parameter)",
    ),
    (
        Role.EMBEDDINGS,
        r"All2All_(?:Pooled|Seq)|ReduceScatter(?:Base|V)?_(?:Req|Wait)|All_?Gather(?:Base)?_(?:Req"
        r"|Wait)|KJT\w{0,60}(?:All2All|AllToAll)|## (?:all2all|alltoall)|sparse_data_dist"
        r"|torchrec/distributed/",
    ),
    (
        Role.EXPERTS,
        r"(?i)\bmoe|_moe_|token_?dispatch|expert_?parallel|deep_?ep\b|deepspeed/moe"
        r"|fused_?(?:dispatch|combine)",
    ),
    (
        Role.CONTEXT,
        r"AttnFuncWithCP|SeqAllToAll|AllToAll4D|ring_?attention|context_?parallel"
        r"|deepspeed/sequence/",
    ),
    (
        Role.PIPELINE,
        r"megatron/core/pipeline_parallel/|torch/distributed/pipelining/|deepspeed/runtime/pipe/",
    ),
    (Role.STATISTICS, r"SyncBatchNorm"),
    (
        Role.BUFFERS,
        r"DistributedDataParallel\.forward|torch/nn/parallel/distributed\.py\(\d+\): _\w*sync_",
    ),
    (
        Role.GRADIENTS,
        r"torch::autograd::AccumulateGrad|torch/nn/parallel/distributed\.py"
        r"|megatron/core/distributed/|megatron/core/optimizer/|deepspeed/runtime/zero/stage_1"
        r"|deepspeed/runtime/engine\.py\(\d+\): \w*(?:reduce|gradient)|apex/parallel/distributed",
    ),
)
_BACKWARD: Final = r"autograd::engine::evaluate_function|\w+Backward\d*$"
_DDP: Final = r"DistributedDataParallel\."
# Sources: torch/distributed/device_mesh.py ("mesh_" and the dimension's name), torchtitan's
# parallel_dims.py, megatron/core/parallel_state.py, deepspeed/utils/groups.py.
_DESCRIPTIONS: Final = (
    (Role.GRADIENTS, r"(?i)expert_data_parallel|dp_replicate|(?:^|_)e?ddp(?:$|_)"),
    (Role.TENSOR, r"(?i)tensor_(?:model_)?parallel|(?:^|_|:)e?tp(?:$|_|:)"),
    (Role.EXPERTS, r"(?i)expert_(?:model_)?parallel|(?:^|_|:)ep(?:$|_|:)"),
    (Role.SHARDS, r"(?i)fsdp|dp_shard|shard"),
    (Role.PIPELINE, r"(?i)pipeline|(?:^|_|:)pp(?:$|_|:)"),
    (Role.GRADIENTS, r"(?i)data_parallel|(?:^|_|:)dp(?:$|_|:)"),
    (Role.CONTEXT, r"(?i)context_parallel|sequence_parallel|(?:^|_|:)[cs]p(?:$|_|:)"),
)
# One-shot and two-shot all-reduces among the GPUs of a node (vLLM, SGLang, TensorRT-LLM, PyTorch's
# symmetric memory) are made for the small messages of tensor-parallel inference.
_KERNELS: Final = (
    (Role.EXPERTS, r"(?i)deep_?ep|moe_?a2a|(?:intra|inter)node(?:_ll)?::|ep::\w*(?:dispatch|comb)"),
    (
        Role.TENSOR,
        r"(?i)cross_device_reduce|(?:one|two)_?shot_\w{0,60}reduce|multimem_all|lamport|quick_?reduce"
        r"|userbuffers",
    ),
)
_CARRIED: Final = {
    Carried.PARAMETERS: Role.SHARDS,
    Carried.GRADIENTS: Role.GRADIENTS,
    Carried.ACTIVATIONS: Role.TENSOR,
}
# DTensor moves shards with a function of this name, whatever the mesh is for.
_REDISTRIBUTE: Final = r"Redistribute(?:Backward)?$|_(?:From|To)TorchTensor(?:Backward)?$"


class RoleUse(Struct, frozen=True):
    """The collectives that are for one thing."""

    role: Role
    count: int
    evidence: str
    """What most of them are recognized by, such as "in `_ReduceFromModelParallelRegion`"; empty if
    unknown."""


class CollectiveRoles(Struct, frozen=True):
    """What the collectives of a trace are for; columns have one row per row of their table."""

    role: NDArray[np.uint8]
    """Index into `Role`, in order of definition."""
    evidence: Int32
    """Index into `texts`."""
    texts: tuple[str, ...]

    def is_for(self, *roles: Role) -> Mask:
        """Which collectives are for one of some things; shape (n,)."""
        return np.isin(self.role, [_ROLES.index(role) for role in roles])

    def uses(self, rows: NDArray[np.intp] | None = None) -> tuple[RoleUse, ...]:
        """What some of them (by default all) are for, the most frequent use first."""
        role = self.role if rows is None else self.role[rows]
        evidence = self.evidence if rows is None else self.evidence[rows]
        count = np.bincount(role, minlength=len(_ROLES))
        ranked = [code for code in np.argsort(-count, kind="stable").tolist() if count[code]]
        return tuple(
            RoleUse(
                _ROLES[code],
                int(count[code]),
                self.texts[int(np.bincount(evidence[role == code]).argmax())],
            )
            for code in ranked
        )


@memoized
def collective_roles(signals: Signals) -> CollectiveRoles:
    """What each collective of the trace is for, by row of its table of collectives."""
    trace = signals.trace
    return _Search(trace, carried(signals)).result() if len(trace.collectives.row) else _none()


class _Search:
    """Assigns roles, the strongest evidence first."""

    def __init__(self, trace: Trace, carried: Mapping[tuple[str, str], Carried]) -> None:
        self.trace = trace
        self.carried = carried
        self.table = trace.collectives
        count = len(self.table.row)
        self.role = np.zeros(count, dtype=np.uint8)
        self.evidence = np.zeros(count, dtype=np.int32)
        self.texts: dict[str, int] = {"": 0}
        events = trace.events
        is_host = events.kind[self.table.row] == EventKind.HOST_COLLECTIVE
        around = np.where(is_host, events.parent[self.table.row], -1)
        launch = events.launched_by[self.table.row]
        self.innermost: Int32 = np.where(launch >= 0, launch, around).astype(np.int32)

    def result(self) -> CollectiveRoles:
        self._by_enclosing(_ENCLOSING, "in {}")
        self._by_text(self.table.description, _DESCRIPTIONS, "in the process group {}")
        self._by_text(self.trace.events.name[self.table.row], _KERNELS, "by the kernel {}")
        self._by_program()
        self._by_enclosing(((Role.TENSOR, _REDISTRIBUTE),), "in {}")
        stages = self.trace.is_any_of(self.table.operation, *_BETWEEN_STAGES) & (self.role == 0)
        self._set(stages, Role.PIPELINE, "messages from rank to rank")
        if not (self.role == _ROLES.index(Role.TENSOR)).any():
            self._by_enclosing(((Role.GRADIENTS, _BACKWARD),), "in the backward pass")
        self._like_others()
        self._by_ddp()
        self._set(self.role == 0, Role.UNKNOWN, "")
        return CollectiveRoles(self.role, self.evidence, tuple(self.texts))

    def _set(self, chosen: Mask | NDArray[np.int64], role: Role, text: str) -> None:
        self.role[chosen] = _ROLES.index(role)
        self.evidence[chosen] = self.texts.setdefault(text, len(self.texts))

    def _fits(self, role: Role) -> Mask:
        operations = _OPERATIONS.get(role)
        if operations is None:
            return np.ones(len(self.role), dtype=bool)
        return self.trace.is_any_of(self.table.operation, *operations)

    def _by_enclosing(self, patterns: tuple[tuple[Role, str], ...], text: str) -> None:
        """Assign the role of the innermost enclosing event whose name has one."""
        events = self.trace.events
        open_rows = np.flatnonzero((self.role == 0) & (self.innermost >= 0))
        if not open_rows.size:
            return
        named = distinct(events.name[with_enclosing(events.parent, self.innermost[open_rows])])
        role_of_name = np.zeros(len(self.trace.strings), dtype=np.uint8)
        for name in named.tolist():
            role_of_name[name] = _ROLES.index(_role_of(self.trace.strings[name], patterns))
        has_role = role_of_name[events.name] > 0
        around = nearest(events.parent, has_role)
        above = np.where(events.parent >= 0, around[events.parent], -1)
        # One pass for each event around whose role does not fit the operation.
        enclosing = around[self.innermost[open_rows]]
        while (is_inside := enclosing >= 0).any():
            open_rows, enclosing = open_rows[is_inside], enclosing[is_inside]
            names = events.name[enclosing]
            fits = self._assign(open_rows, names, role_of_name, text)
            open_rows, enclosing = open_rows[~fits], above[enclosing[~fits]]

    def _by_text(self, column: Int32, patterns: tuple[tuple[Role, str], ...], text: str) -> None:
        rows = np.flatnonzero((self.role == 0) & (column >= 0))
        role_of_name = np.zeros(len(self.trace.strings), dtype=np.uint8)
        for name in distinct(column[rows]).tolist():
            role_of_name[name] = _ROLES.index(_role_of(self.trace.strings[name], patterns))
        self._assign(rows, column[rows], role_of_name, text)

    def _assign(
        self, rows: NDArray[np.intp], names: Int32, role_of_name: NDArray[np.uint8], text: str
    ) -> Mask:
        """Assign the roles of names to collectives whose operation fits; returns to which."""
        roles = role_of_name[names]
        fits = roles > 0
        if not fits.any():
            return fits
        for role, operations in _OPERATIONS.items():
            of_role = np.flatnonzero(roles == _ROLES.index(role))
            named = self.table.operation[rows[of_role]]
            fits[of_role] = self.trace.is_any_of(named, *operations)
        self.role[rows[fits]] = roles[fits]
        for name, places in places_by_value(names[fits]):
            shown = text.format(f"`{_shown(self.trace.strings[name])}`")
            self.evidence[rows[fits][places]] = self.texts.setdefault(shown, len(self.texts))
        return fits

    def _by_program(self) -> None:
        """Assign what the embedded program says that each collective carries."""
        hlo, text = self.trace.hlo, self.trace.text
        operations = self.trace.operations(self.table.row)
        rows = np.flatnonzero((operations >= 0) & (self.role == 0))
        by_operation = [(op, rows[places]) for op, places in places_by_value(operations[rows])]
        for op, places in sorted(by_operation, key=lambda found: int(found[1][0])):
            carries = self.carried.get((text(int(hlo.module[op])), text(int(hlo.name[op]))))
            if carries is not None:
                self._set(places, _CARRIED[carries], f"{carries.value}, by the program")

    def _like_others(self) -> None:
        """Collectives without a launch are for what all others of their kind are for."""
        first, kind = group_rows(self.table.operation, self.table.group)
        is_open = (self.role == 0) & (self.innermost < 0)
        for index, places in places_by_value(kind):
            opened = places[is_open[places]]
            known = distinct(self.role[places[~is_open[places]]]).tolist()
            if opened.size and len(known) == 1 and known[0]:
                operation = self.trace.text(int(self.table.operation[first[index]]))
                text = f"like the other {operation}s"
                self._set(opened, _ROLES[known[0]], text)

    def _by_ddp(self) -> None:
        """All-reduces without a launch are gradients if the program runs DDP."""
        is_open = (self.role == 0) & (self.innermost < 0) & self._fits(Role.GRADIENTS)
        if not is_open.any():
            return
        events, strings = self.trace.events, self.trace.strings
        names = distinct(events.name[self.trace.rows(EventKind.ANNOTATION)]).tolist()
        calls = [strings[name] for name in names if re.match(_DDP, strings[name])]
        if calls:
            self._set(is_open, Role.GRADIENTS, f"the program calls `{_shown(calls[0])}`")


def _shown(name: str, most: int = 60) -> str:
    name = name.removeprefix("autograd::engine::evaluate_function: ")
    return name if len(name) <= most else f"{name[:most]}…"


@cache
def _role_of(name: str, patterns: tuple[tuple[Role, str], ...]) -> Role:
    return next((role for role, pattern in patterns if re.search(pattern, name)), Role.UNKNOWN)


def _none() -> CollectiveRoles:
    return CollectiveRoles(np.empty(0, np.uint8), np.empty(0, np.int32), ("",))
