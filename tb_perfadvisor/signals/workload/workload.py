"""What program was profiled: its mode, frameworks, parallelism, input and compilers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.devices_in_use import used_devices
from tb_perfadvisor.signals.device.copy_streams import larger_copies
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.shard_gathers import gathered_once
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.workload.parts import SERVERS, Aspect, Part
from tb_perfadvisor.signals.workload.signs import SIGNS, STACK_SIGNS
from tb_perfadvisor.trace import EventKind, KernelFamily, Trace

UNKNOWN = "unknown"
_FEWEST_OPERATORS = 20
"""A recording of fewer operators may simply not have come to the backward pass."""
_LONGEST_NAME = 80
_DERIVATIVE = "transpose(jvp("
"""JAX names operations of the backward pass so."""
_REDUCING = ("all-reduce", "reduce-scatter", "reduce")
_NARROW = ("bfloat16", "half", "float16", "c10::bfloat16", "c10::half")

_PARALLEL = {
    Role.SHARDS: Part.FSDP,
    Role.TENSOR: Part.TENSOR_PARALLEL,
    Role.CONTEXT: Part.CONTEXT_PARALLEL,
    Role.PIPELINE: Part.PIPELINE_PARALLEL,
    Role.EXPERTS: Part.EXPERT_PARALLEL,
}


class Fact(Struct, frozen=True):
    """A part of the program, and what proves it."""

    part: Part
    evidence: str


class Workload(Struct, frozen=True):
    """What program was profiled. A part without evidence is unknown, not absent."""

    base: str
    """pytorch, tensorflow, jax or unknown."""
    facts: tuple[Fact, ...]

    def has(self, part: Part) -> bool:
        """Whether there is evidence of a part."""
        return any(fact.part is part for fact in self.facts)

    def of(self, aspect: Aspect) -> tuple[Part, ...]:
        """The parts that answer one question, in order of `Part`."""
        return tuple(part for part in Part if part.aspect is aspect and self.has(part))

    @property
    def mode(self) -> str:
        """What the program does: training, forward only, …; or unknown."""
        for part in (Part.FRONT_END, Part.SERVER, Part.TRAINING, Part.FORWARD_ONLY):
            if self.has(part):
                return part.label
        return UNKNOWN

    @property
    def framework(self) -> str:
        """The framework on top; `plain` if stacks were recorded and show none."""
        found = self.of(Aspect.FRAMEWORK)
        return found[0].label if found else UNKNOWN


@memoized
def workload(signals: Signals) -> Workload:
    """What program was profiled."""
    facts = _by_names(signals.trace)
    facts.update(_by_call_stacks(signals.trace, facts))
    for more in (_mode, _compiled, _features, _parallelism, _hardware, _recorder):
        facts.update({part: text for part, text in more(signals, facts) if part not in facts})
    return Workload(
        signals.trace.source.framework,
        tuple(Fact(part, facts[part]) for part in Part if part in facts),
    )


Facts = dict[Part, str]
"""Parts with their evidence."""


def _by_names(trace: Trace) -> Facts:
    """The parts that names of events prove."""
    facts: Facts = {}
    for kinds in dict.fromkeys(sign.kinds for sign in SIGNS):
        count = np.bincount(trace.events.name[trace.rows(*kinds)], minlength=1)
        names = np.flatnonzero(count)
        names = names[np.argsort(-count[names], kind="stable")]  # the most frequent first
        texts = [trace.strings[name] for name in names.tolist()]
        for sign in SIGNS:
            if sign.kinds != kinds or sign.part in facts:
                continue
            for text, times in zip(texts, count[names].tolist(), strict=True):
                if sign.matches(text):
                    facts[sign.part] = _seen(text, times)
                    break
    return facts


def _by_call_stacks(trace: Trace, known: Facts) -> Facts:
    """The parts that call stacks of allocations prove."""
    if trace.snapshot is None:
        return {}
    files = dict.fromkeys(
        frame.file.replace("\\", "/") for frame in trace.snapshot.stacks.frames if frame.file
    )
    return {
        sign.part: f"call stacks in {'/'.join(file.split('/')[-3:])}"
        for sign in (*STACK_SIGNS, *SIGNS)
        if sign.kinds == (EventKind.PYTHON,) and sign.part not in known
        for file in files
        if sign.matches(file)
    }


def _seen(name: str, count: int) -> str:
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return f"{count:,} × {shown}"


def _mode(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    trace = signals.trace
    for part in SERVERS:
        if part in facts:
            yield Part.SERVER, f"{part.label}: {facts[part]}"
    if Part.TRAINING in facts:
        return
    differentiated = sum(_DERIVATIVE in path for path in trace.texts(trace.hlo.path))
    operators = len(trace.rows(EventKind.OPERATOR))
    if differentiated:
        yield Part.TRAINING, f"{differentiated:,} XLA operations of a derivative"
    elif trace.source.framework == "pytorch" and operators >= _FEWEST_OPERATORS:
        yield Part.FORWARD_ONLY, f"{operators:,} operators, none of a backward pass or an optimizer"
    elif operators == 0 and (kernels := _backward_kernels(trace)):
        yield Part.TRAINING, kernels


def _backward_kernels(trace: Trace) -> str:
    """Evidence of kernels of a backward pass, for traces without operators.

    `dgrad` proves nothing: a transposed convolution of a forward pass runs such kernels.
    """
    names, count = np.unique(trace.events.name[trace.kernels.row], return_counts=True)
    for name, times in zip(names.tolist(), count.tolist(), strict=True):
        if "backward" in trace.strings[name].lower():
            return _seen(trace.strings[name], times)
    return ""


def _compiled(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    operations = len(signals.trace.hlo.name)
    if operations:
        yield Part.XLA, f"{operations:,} operations of XLA programs"


def _features(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    trace = signals.trace
    attention = trace.kernels.row[trace.kernels.family == KernelFamily.ATTENTION]
    if len(attention):
        yield Part.FUSED_ATTENTION, _seen(trace.name(int(attention[0])), len(attention))
    once = gathered_once(signals) if Part.TRAINING in facts else None
    if once is not None:
        yield Part.GATHERED_ONCE, f"{once:,} all-gathers, none of them in a backward pass"
    yield from _copies_to_device(signals)
    table = trace.collectives
    of_gradients = collective_roles(signals).is_for(Role.GRADIENTS, Role.SHARDS)
    reduces = of_gradients & np.isin(trace.texts(table.operation), _REDUCING)
    narrow = sum(dtype.lower() in _NARROW for dtype in trace.texts(table.dtype[reduces]))
    if 2 * narrow > reduces.sum():
        yield Part.GRADIENTS_16_BIT, f"{narrow:,} of {reduces.sum():,} collectives of gradients"


def _copies_to_device(signals: Signals) -> Iterator[tuple[Part, str]]:
    """How the larger copies of the steps to the device are done."""
    larger = larger_copies(signals)
    if not len(larger.row):
        return
    count = f"all {len(larger.row):,} larger copies to the device"
    if larger.is_pinned.all():
        yield Part.PINNED_BATCHES, count
    if larger.is_apart.all():
        yield Part.COPY_STREAM, count


def _parallelism(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    run, trace = signals.run, signals.trace
    for use in collective_roles(signals).uses():
        part = _PARALLEL.get(use.role)
        # DeepSpeed's ZeRO shards parameters, too.
        if part is not None and not (part is Part.FSDP and Part.DEEPSPEED in facts):
            yield part, f"{use.count:,} collectives {use.evidence}"
    ranks = max(len(run.sources), trace.source.world_size or 1)
    devices = len(used_devices(trace))
    if ranks > 1:
        yield Part.SEVERAL_DEVICES, f"{ranks:,} ranks"
    elif devices > 1:
        yield Part.SEVERAL_DEVICES, f"{devices:,} devices used"


def _recorder(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    if signals.trace.source.format == "nsight":
        yield Part.NSIGHT, "the format of the file"
    if signals.trace.facts.recording.by in ("run", "continuous"):
        yield Part.RUN, "what the recorder stored beside the profile"


def _hardware(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    if signals.trace.snapshot is not None and Part.GPU not in facts:
        yield Part.GPU, "a memory snapshot of it"
    if signals.device.is_host_only:
        yield Part.CPU_ONLY, "no device events, no launches and no devices"
        return
    known = signals.device_facts
    if known is None:
        return
    if known.kind == "tpu":
        yield Part.TPU, known.name
    elif known.kind == "gpu" or Part.NVIDIA in facts or Part.AMD in facts:
        yield Part.GPU, known.name or "its runtime calls"
    if known.vendor == "nvidia":
        yield Part.NVIDIA, known.name or known.evidence
    if known.vendor == "amd":
        yield Part.AMD, known.name or known.evidence
