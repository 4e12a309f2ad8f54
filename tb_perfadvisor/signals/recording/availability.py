"""What a recording has for the signals that rules need."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Look
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.device import used_devices
from tb_perfadvisor.signals.device.memory_use import memory_use
from tb_perfadvisor.signals.input.input_stages import input_stages
from tb_perfadvisor.signals.input.loader_workers import has_loader_workers
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions
from tb_perfadvisor.signals.launch.eager_calls import file_writes
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import running_programs
from tb_perfadvisor.signals.ranks.collective_costs import link_bandwidth_bytes_per_s
from tb_perfadvisor.signals.ranks.ranks import collectives_of, ranks_of
from tb_perfadvisor.signals.recording.compile_log import compile_log, is_only_log
from tb_perfadvisor.signals.recording.hints import hint_for
from tb_perfadvisor.signals.recording.needs import CPU_ONLY, SUMMED, Missing, Need
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import courses, snapshot_capacity_bytes
from tb_perfadvisor.signals.steps.around_steps import program_runs
from tb_perfadvisor.signals.steps.step_variation import gradient_bytes
from tb_perfadvisor.signals.tpu.transfers import barriers
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts, xla_operations
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.soundness.lost import is_sampled
from tb_perfadvisor.trace import Aspect, CopyDirection, EventKind, Precision
from tb_perfadvisor.trace.integer_groups import is_in


def shows_work(signals: Signals) -> bool:
    """Whether the profile has events of the device, or operators of a program without one."""
    device = signals.device
    return not device.is_missing and (not device.is_host_only or shows_host_events(signals))


def shows_host_events(signals: Signals) -> bool:
    """Whether host operators, launches or annotations were recorded, or Python without them."""
    trace = signals.trace
    if trace.totals is not None:
        return Aspect.HOST in trace.totals.shows
    kinds = [EventKind.OPERATOR, EventKind.LAUNCH, EventKind.ANNOTATION, EventKind.STEP]
    if trace.source.framework == "none":
        kinds.append(EventKind.PYTHON)
    return len(trace.rows(*kinds)) > 0


NAMELESS_SHARE = 0.1
"""Of the time: less than a tenth without a name does not hide what decides the step."""


def shows_input(signals: Signals) -> bool:
    """Whether the profile shows any fetching; without it, waiting for input is unknown."""
    trace = signals.trace
    if not shows_work(signals):
        return False
    if trace.totals is not None:
        return Aspect.INPUT in trace.totals.shows
    kinds = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK, EventKind.INFEED_WAIT)
    return len(trace.rows(*kinds)) > 0 or len(signals.attribution.intervals[Cause.INPUT]) > 0


def shows_communication(signals: Signals) -> bool:
    """Whether communication is known: recorded, or impossible with one rank."""
    trace = signals.trace
    if not shows_work(signals):
        return False
    if trace.totals is not None:
        return Aspect.COMMUNICATION in trace.totals.shows
    ranks = trace.source.world_size or len(signals.run.traces)
    return ranks <= 1 or len(trace.collectives.row) > 0


def shows_copies(signals: Signals) -> bool:
    """Whether the profile would show copies if there were any."""
    totals = signals.trace.totals
    return totals is None or Aspect.COPIES in totals.shows


class Check(Struct, frozen=True):
    """How to check a need."""

    is_met: Callable[[Signals], bool]
    reason: str
    """Why the need is not met, if it is not."""
    of_device: bool = False
    """Whether only a profile of a device can meet it."""


def _knows_peaks(signals: Signals) -> bool:
    facts = signals.device_facts
    return facts is not None and facts.peaks is not None


def _knows_shapes(signals: Signals) -> bool:
    trace = signals.trace
    columns = (trace.operators.shapes, trace.hlo.text, trace.hlo.flop)
    return any(bool((column >= 0).any()) for column in columns)


def _knows_capacity(signals: Signals) -> bool:
    facts = signals.device_facts
    return facts is not None and facts.memory_bytes is not None


def _knows_host_memory(signals: Signals) -> bool:
    copies = signals.trace.copies
    is_over_link = is_in(
        copies.direction, (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST)
    )
    return not is_over_link.any() or bool((copies.pageable[is_over_link] >= 0).any())


def _links_launches(signals: Signals) -> bool:
    launched_by = signals.trace.events.launched_by[signals.device.rows]
    return bool((launched_by >= 0).any())


def _runs_programs_on_cpu(signals: Signals) -> bool:
    return (
        signals.device.is_host_only
        and signals.trace.source.framework == "jax"
        and len(program_runs(signals)) > 0
    )


def _knows_precision(signals: Signals) -> bool:
    # Collectives compute nothing, even if their names tell a number format.
    is_compute = signals.trace.events.kind[signals.device.rows] == EventKind.KERNEL
    return bool((signals.precision[is_compute] != Precision.UNKNOWN).any())


def _sizes_all_to_alls(signals: Signals) -> bool:
    table = signals.trace.collectives
    sent = table.sent_bytes[signals.trace.is_any_of(table.operation, "all-to-all")]
    return bool((sent >= 0).any()) or len(sent) == 0


def _sizes_collectives(signals: Signals) -> bool:
    is_known = signals.options.parameters is not None or collectives_of(signals).sizes_known
    return is_known or gradient_bytes(signals) is not None


def _shows_all_devices(signals: Signals) -> bool:
    if signals.trace.totals is not None:
        return False
    # PyTorch trains with one process per device, but a file lists all devices of the machine.
    return signals.trace.source.framework != "pytorch" or len(used_devices(signals.trace)) > 1


FEWEST_STEPS = 5
"""Among fewer steps, no step can be called an exception."""


CHECKS: dict[Need, Check] = {
    Need.WORK: Check(shows_work, "the profile has no operators"),
    Need.DEVICE_EVENTS: Check(lambda s: not s.device.is_missing, "", of_device=True),
    Need.EVENTS: Check(lambda s: s.trace.totals is None, ""),
    Need.HOST_EVENTS: Check(shows_host_events, "the profile has no host events"),
    Need.NAMELESS_TIME: Check(
        lambda s: shows_work(s) and (s.attribution.share(Cause.UNEXPLAINED) or 0) >= NAMELESS_SHARE,
        "events tell what the host did in nearly all of the time",
    ),
    Need.CPU_PROGRAM: Check(lambda s: s.device.is_host_only, "the program uses a device"),
    Need.RUN_LINES: Check(
        lambda s: s.trace.facts.lines is not None,
        "the recorder did not look where the program was over its whole run",
    ),
    Need.RUN_TIMERS: Check(
        lambda s: bool(s.run.timers), "the recorder did not time the steps of the whole run"
    ),
    Need.RUN_INPUT: Check(
        lambda s: any(each.input_ns for each in s.run.timers),
        "the recorder did not see the loop of the whole run fetch its input",
    ),
    Need.RUN_RANKS: Check(
        lambda s: sum(bool(each.input_ns or any(each.ready_ns)) for each in s.run.timers) > 1,
        "the recorder did not time the steps of several ranks over the whole run",
    ),
    Need.FILE_WRITES: Check(
        lambda s: shows_work(s) and len(file_writes(s).spans) > 1,
        "no operator of the profile writes files again and again",
    ),
    Need.EXAMINED_STEPS: Check(
        lambda s: s.trace.facts.examined is not None and s.trace.facts.examined.steps > 0,
        "the recorder did not look at the tensors of any step",
    ),
    Need.INPUT: Check(
        shows_input,
        "the profile shows no fetching of input: another loader may do it, or there is none",
    ),
    Need.INPUT_STAGES: Check(
        lambda s: input_stages(s).is_known,
        "the work inside the input pipeline was not recorded: the fetches contain no Python "
        "frames, or worker processes load",
    ),
    Need.FILE_READS: Check(
        lambda s: input_stages(s).is_known or has_loader_workers(s),
        "the work inside the input pipeline was not recorded: the fetches contain no Python frames",
    ),
    Need.ITERATORS: Check(lambda s: len(tfdata(s)) > 0, "the profile has no tf.data iterators"),
    Need.INFEED: Check(
        lambda s: len(s.trace.rows(EventKind.INFEED_WAIT)) > 0,
        "the device takes no input through an infeed",
        of_device=True,
    ),
    Need.STEPS: Check(
        lambda s: len(s.steps) > 0, "the profile has no steps and none can be inferred"
    ),
    Need.PYTORCH: Check(
        lambda s: s.trace.source.framework == "pytorch",
        "this needs PyTorch's operators, and the program has none",
    ),
    Need.DISPATCH: Check(
        lambda s: s.trace.totals is None and s.trace.source.framework in ("tensorflow", "jax"),
        "only TensorFlow and JAX record how they dispatch operators",
    ),
    Need.COMPILED_REGIONS: Check(
        lambda s: len(compiled_regions(s).row) > 0,
        "the profile has no regions of torch.compile",
    ),
    Need.COMPILE_LOG: Check(
        lambda s: compile_log(s) is not None, "no log of torch.compile lies beside the profile"
    ),
    Need.PYTHON_FRAMES: Check(
        lambda s: len(s.trace.rows(EventKind.PYTHON)) > 0,
        "the profile has no Python frames",
    ),
    Need.SEVERAL_STEPS: Check(
        lambda s: len(s.steps) >= FEWEST_STEPS,
        f"the profile has fewer than {FEWEST_STEPS} usable steps to compare",
    ),
    Need.STEP_ENDS: Check(
        lambda s: s.shows_step_ends,
        "no backward or optimizer work shows where a step's own code ends",
    ),
    Need.COLLECTIVES: Check(
        lambda s: len(s.trace.collectives.row) > 0, "the profile has no collectives"
    ),
    Need.KERNELS: Check(lambda s: s.trace.totals is None, "", of_device=True),
    Need.COPIES: Check(shows_copies, "", of_device=True),
    Need.ALL_RANKS: Check(
        lambda s: bool(ranks_of(s).matched.is_whole.any()),
        "no collective was recorded by all of its ranks",
    ),
    Need.SEVERAL_RANKS: Check(
        lambda s: len(ranks_of(s).matched) > 0, "no collective was recorded by several of its ranks"
    ),
    Need.HOST_MEMORY: Check(
        _knows_host_memory, "the copies do not show whether host memory is pinned", of_device=True
    ),
    Need.COLLECTIVE_SIZES: Check(
        _sizes_collectives, "the sizes or ranks of the collectives were not recorded"
    ),
    Need.SENT_SIZES: Check(
        _sizes_all_to_alls, "the bytes that ranks send in all-to-alls were not recorded"
    ),
    Need.LINK_BANDWIDTH: Check(
        lambda s: link_bandwidth_bytes_per_s(s) is not None,
        "the bandwidth of the link between the ranks is unknown",
    ),
    Need.ALL_DEVICES: Check(
        _shows_all_devices,
        "other processes may use the other devices: the profile covers a single process and device",
        of_device=True,
    ),
    Need.LAUNCH_LINKS: Check(
        _links_launches, "device events are not linked to their launches", of_device=True
    ),
    Need.EVERY_LAUNCH: Check(
        lambda s: not is_sampled(s.trace),
        "the file has only a sample of the runtime's calls, so nothing shows what the host or the "
        "device did between two of them",
    ),
    Need.LAUNCHED_WORK: Check(
        lambda s: _runs_programs_on_cpu(s) or _links_launches(s),
        "device events are not linked to their launches",
    ),
    Need.ORIGINS: Check(
        lambda s: len(s.trace.hlo_events.row) > 0 or _links_launches(s),
        "device work is linked neither to its launches nor to XLA operations",
        of_device=True,
    ),
    Need.KERNEL_PRECISION: Check(
        _knows_precision, "no kernel shows its number format", of_device=True
    ),
    Need.SHAPES: Check(_knows_shapes, "the shapes of the operators were not recorded"),
    Need.PEAKS: Check(_knows_peaks, "the peaks of the device are unknown", of_device=True),
    Need.MEMORY: Check(
        lambda s: s.memory is not None, "device memory was not recorded", of_device=True
    ),
    Need.MEMORY_CHANGES: Check(
        lambda s: memory_use(s) is not None, "no changes of allocated memory were recorded"
    ),
    Need.MEMORY_CAPACITY: Check(
        _knows_capacity, "the size of the device's memory is unknown", of_device=True
    ),
    Need.MEMORY_SNAPSHOT: Check(
        lambda s: s.trace.snapshot is not None, "there is no memory snapshot"
    ),
    Need.MEMORY_HISTORY: Check(
        lambda s: any(course.has_times for course in courses(s)),
        "there is no memory snapshot with a history",
    ),
    Need.SNAPSHOT_CAPACITY: Check(
        lambda s: snapshot_capacity_bytes(s) is not None,
        "the size of the device's memory is unknown",
    ),
    Need.BARRIERS: Check(
        lambda s: len(barriers(s.trace)) > 0,
        "the profile shows no barriers between the cores of a TPU",
        of_device=True,
    ),
    Need.TILED_LAYOUTS: Check(has_tiled_layouts, "no operation has a tiled layout", of_device=True),
    Need.XLA_OPERATIONS: Check(
        lambda s: bool(xla_operations(s)), "no operation has the text of an XLA program"
    ),
    Need.PROGRAMS: Check(
        lambda s: bool(running_programs(s)),
        "the profile does not embed the programs that ran",
    ),
    Need.MATRIX_UNIT: Check(
        lambda s: s.trace.totals is not None and s.trace.totals.matrix_unit_share is not None,
        "the files do not state how much of the matrix units is used",
        of_device=True,
    ),
}


_OF_SNAPSHOTS = (Need.MEMORY_SNAPSHOT, Need.MEMORY_HISTORY, Need.SNAPSHOT_CAPACITY)
_INSIDE_INPUT = (Need.INPUT_STAGES, Need.FILE_READS)
"""Without fetches, nothing that is recorded would show what happens inside them."""
_ONLY_MEMORY = "a memory snapshot shows memory, not what ran"
_ONLY_COMPILER = "a log of torch.compile shows what the compiler did, not what ran"
_RECORD_PROFILE = "Record a profile of the same run with torch.profiler, in the same directory."


@memoized
def why_missing(signals: Signals, need: Need) -> Missing | None:
    """Why a profile does not meet a need; None if it does."""
    reason = _reason(signals, need)
    if reason is None:
        return None
    if signals.trace.is_snapshot_only and need not in _OF_SNAPSHOTS:
        return Missing(need, _ONLY_MEMORY, _RECORD_PROFILE)
    if is_only_log(signals):
        return Missing(need, _ONLY_COMPILER, _RECORD_PROFILE)
    if need in _INSIDE_INPUT and (input_ := why_missing(signals, Need.INPUT)) is not None:
        return replace(input_, need=need)
    # A program without a device cannot record one, so there is no remedy.
    remedy = "" if reason == CPU_ONLY else hint_for(need, workload(signals))
    totals = signals.trace.totals
    if totals is not None and reason != CPU_ONLY:
        return Missing(need, SUMMED.get(need, reason), totals.remedy)
    return Missing(need, reason, remedy)


def why_not_looked(signals: Signals, look: Look) -> Missing | None:
    """Why the recorder could not look for something in the tensors of steps; None if it did."""
    examined = signals.trace.facts.examined
    for failed in examined.failed if examined is not None else ():
        if failed.look == look:
            reason = f"the recorder could not look for {look} in the tensors: {failed.why}"
            return Missing(Need.EXAMINED_STEPS, reason, "")
    return None


def _reason(signals: Signals, need: Need) -> str | None:
    check = CHECKS[need]
    of_device = check.of_device
    if need is Need.LAUNCHED_WORK:
        of_device = not _runs_programs_on_cpu(signals)
    if signals.device.is_missing and (of_device or need is Need.WORK):
        return "the profile has no events of the device"
    if signals.device.is_host_only and of_device:
        return CPU_ONLY
    return None if check.is_met(signals) else check.reason
