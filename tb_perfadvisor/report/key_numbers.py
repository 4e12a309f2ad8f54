"""Key numbers of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tb_perfadvisor.contract import model
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.steps.windows import AGREE_SHARE
from tb_perfadvisor.signals.snapshots.course import (
    exhaustion,
    memory_course,
    reserved,
    snapshot_capacity_bytes,
)
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.units import format_bytes, format_duration, format_rate, format_share

_SHOWN_SHARE = 0.001
"""A smaller share rounds to 0.0 %."""


def key_numbers(
    overview: model.Overview,
    steps: model.StepsInfo,
    *,
    recorded_ns: int,
    on_device: bool,
    ranks: int,
) -> list[model.KeyNumber]:
    """The key numbers of a report.

    `recorded_ns` is the length of the reference worker's recording.
    `on_device` holds for a program that used a device, even if its events are missing.
    """
    of = "step time" if overview.steps else "the profile"
    return [
        *_on_time(overview, steps, recorded_ns),
        *_on_serving(overview.serving),
        *(_on_device(overview, of) if on_device else ()),
        *_on_waiting(overview, of, may_communicate=ranks > 1),
        *_on_scaling(overview.next_doubling),
        *_on_memory(overview, on_device=on_device),
        *_on_program_memory(overview.program_memory),
    ]


def _other_side(steps: model.StepsInfo) -> Iterator[str]:
    """What a step takes on the side that does not decide, if that differs."""
    host_ns, device_ns = steps.host_ns, steps.device_ns
    # From the end of one step to that of the next: of two steps, that is one of them, and the step
    # time is the mean of both.
    if not host_ns or not device_ns or steps.used == 2:
        return
    if max(host_ns, device_ns) <= (1 + AGREE_SHARE) * min(host_ns, device_ns):
        return
    if steps.decided_by == "device":
        yield f"on the device; the host dispatches one in {format_duration(host_ns)}"
    else:
        yield f"on the host; the device takes {format_duration(device_ns)}"


def _on_time(
    overview: model.Overview, steps: model.StepsInfo, recorded_ns: int
) -> Iterator[model.KeyNumber]:
    if overview.step_time_ns is None:
        is_part = recorded_ns > (1 + AGREE_SHARE) * overview.window_ns
        recorded = [f"of {format_duration(recorded_ns)} recorded"] if is_part else []
        yield model.KeyNumber(
            id="profiled-time",
            label="Analyzed time",
            value=overview.window_ns,
            unit="ns",
            of="",
            share=None,
            notes=[*recorded, "no repeating steps"],
            definition="The analyzed part of the recording. No step repeats in the profile, as far "
            "as it tells.",
        )
        return
    yield model.KeyNumber(
        id="step-time",
        label="Step time",
        value=overview.step_time_ns,
        unit="ns",
        of="",
        share=None,
        notes=[
            f"mean of {overview.steps:,} steps" if overview.steps > 1 else "1 step",
            *_other_side(steps),
        ],
        definition=(
            "The mean time from the end of a step's work on the device to that of the next one."
            if steps.decided_by == "device"
            else "The mean time from the start of a step to the start of the next one."
        ),
    )
    for what, rate, per_step in (
        ("tokens", overview.tokens_per_s, overview.tokens_per_step),
        ("samples", overview.samples_per_s, overview.samples_per_step),
    ):
        if rate is not None and per_step is not None:
            yield model.KeyNumber(
                id=f"{what}-per-second",
                label=what.capitalize(),
                value=rate,
                unit=f"{what}/s",
                of="",
                share=None,
                notes=[f"{round(per_step, 1):,.10g} per step and rank"],
                definition=f"{what.capitalize()} that one rank processes in a step, divided by the "
                f"step time. {overview.throughput_source}",
            )


def _on_serving(serving: model.ServingInfo | None) -> Iterator[model.KeyNumber]:
    if serving is None:
        return
    is_timed, requests = serving.decode_step_ns is not None, serving.decode_requests
    floor_ns = serving.decode_floor_ns
    yield model.KeyNumber(
        id="decode-step",
        label="Decode step" if is_timed else "Decode step on device",
        value=serving.decode_step_ns if is_timed else serving.decode_device_ns,
        unit="ns",
        of="",
        share=None,
        notes=[
            *([] if requests is None else [f"{requests:,.4g} requests"]),
            *([f"device {format_duration(serving.decode_device_ns)}"] if is_timed else []),
            *([] if floor_ns is None else [f"floor {format_duration(floor_ns)}"]),
        ],
        definition=(
            "The mean time of steps that generate tokens and read no prompts, from the start of "
            "the step to the start of the next one."
            if is_timed
            else "The mean time in which the device executes a step that generates tokens and "
            "reads no prompts. The profile has too few steps to tell how long a step takes."
        )
        + " The floor is the time to read the weights and the key-value cache, as far as they are "
        "known.",
    )
    if serving.generated_per_s is not None:
        yield model.KeyNumber(
            id="generated-tokens-per-second",
            label="Generated",
            value=serving.generated_per_s,
            unit="tokens/s",
            of="",
            share=None,
            notes=["by decoding"],
            definition="Tokens that decoding generates on one rank, one for each request in each "
            "step, divided by the time of all steps. Ranks that share a model generate the same "
            "tokens together.",
        )


def _on_device(overview: model.Overview, of: str) -> Iterator[model.KeyNumber]:
    busy = overview.device_busy_share
    unseen = []
    if overview.device_compute_share is None:
        is_lost = any(part.cause == Cause.NOT_RECORDED.value for part in overview.breakdown)
        unseen = ["device time not recorded" if is_lost else "no device events"]
    yield _share(
        "device-compute",
        "Device compute",
        overview.device_compute_share,
        of=of,
        notes=unseen if busy is None else [f"busy {format_share(busy)}"],
        definition="Share of the time in which the device runs at least one compute kernel. The "
        "device is busy when it computes, copies or communicates.",
    )
    flop, is_known = overview.flop, overview.mfu is not None
    yield _share(
        "mfu",
        "MFU",
        overview.mfu,
        of=format_rate(flop.peak_flop_per_s, "FLOP/s"),
        notes=[
            *([] if overview.hfu is None else [f"HFU {format_share(overview.hfu)}"]),
            *([] if is_known else [flop.unknown_in_short]),
        ],
        definition="Model FLOP utilization: what the model needs to be computed in a step, divided "
        "by what the devices could compute. It counts matrix products, convolutions and attention, "
        "attention in full whatever its mask, and nothing that is recomputed. HFU counts what the "
        "devices execute." + ("" if is_known else f" Unknown here: {flop.unknown_because}"),
    )
    by_count = overview.operators.device_share_by_count
    yield _share(
        "operators-on-device",
        "Operators on device",
        overview.operators.device_share_by_time,
        of="operator time",
        notes=[
            "no operators recorded" if by_count is None else f"by count {format_share(by_count)}"
        ],
        definition="Share of the framework's operators that run on the device, by time and by "
        "count. The others run on the host, where they can slow down the step.",
    )
    in_16_bits, precision = overview.sixteen_bit_share, overview.precision or {}
    yield _share(
        "16-bit-compute",
        "16-bit compute",
        in_16_bits,
        of="device compute",
        notes=unseen
        + [
            f"{label} {format_share(precision[width])}"
            for width, label in (("8", "8-bit"), ("unknown", "unknown"))
            if in_16_bits is not None and precision[width] >= _SHOWN_SHARE
        ]
        + [
            f"weights in {bits} bits {format_share(share)}"
            for bits, share in overview.storage.items()
            if share >= _SHOWN_SHARE
        ],
        definition="Share of device compute time in kernels that compute with 16-bit numbers "
        "(fp16, bf16), judged by kernel names and operand types. Kernels that show neither are "
        "unknown. Weights in fewer bits than they are multiplied in count by the arithmetic.",
    )


def _on_waiting(
    overview: model.Overview, of: str, *, may_communicate: bool
) -> Iterator[model.KeyNumber]:
    yield _share(
        "input-wait",
        "Input wait",
        overview.input_wait_share,
        of=of,
        notes=[] if overview.input_wait_share is not None else ["no fetching of input recorded"],
        definition="Share of the time in which no work runs because the step's thread waits for "
        "the input pipeline. Loading in the background is not counted.",
    )
    if may_communicate or overview.exposed_communication_share:
        yield _share(
            "exposed-communication",
            "Exposed communication",
            overview.exposed_communication_share,
            of=of,
            definition="Share of the time in which ranks communicate without computing, including "
            "time spent waiting for other ranks. Communication that overlaps compute is not "
            "counted.",
        )
    if overview.between_steps_share is not None:
        yield _share(
            "between-steps",
            "Between steps",
            overview.between_steps_share,
            of=of,
            definition="Share of the time in which no work runs between the end of one step's own "
            "code and the start of the next: logging, checkpoints, evaluation.",
        )


def _on_scaling(doubled: model.NextDoublingInfo | None) -> Iterator[model.KeyNumber]:
    if doubled is None:
        return
    most = format_share(doubled.high_efficiency)
    yield model.KeyNumber(
        id="next-doubling",
        label=f"Efficiency on {2 * doubled.ranks:,} ranks",
        value=doubled.low_efficiency,
        unit="share",
        of="",
        share=None,
        notes=[f"to {most}, modeled"],
        definition="Throughput per device on twice the devices, as a share of today's: a range by a"
        f" model of latency and bandwidth. {' '.join(doubled.assumptions)}",
    )


def _on_memory(overview: model.Overview, *, on_device: bool) -> Iterator[model.KeyNumber]:
    host, memory = overview.host_memory, overview.memory
    if host is not None:
        yield model.KeyNumber(
            id="peak-host-memory",
            label="Peak host memory",
            value=host.peak_allocated_bytes,
            unit="bytes",
            of="",
            share=None,
            notes=["since the recording began"] if host.is_relative else [],
            definition="The most host memory allocated to tensors at any time in the trace."
            + (
                " What was allocated before the recording is not counted."
                if host.is_relative
                else ""
            ),
        )
        return
    peak = above_start = capacity = None
    if memory is not None:
        peak = memory.peak_allocated_bytes
        peak = memory.peak_reserved_bytes if peak is None else peak
        above_start, capacity = memory.peak_above_start_bytes, memory.capacity_bytes
    if peak is None and not on_device:
        return
    yield model.KeyNumber(
        id="peak-memory",
        label="Peak memory",
        value=above_start if peak is None else peak,
        unit="bytes",
        of="",
        notes=[f"of {format_bytes(capacity)}"]
        if peak is not None and capacity
        else ["above the start of the recording"]
        if above_start is not None
        else ["not recorded"]
        if peak is None
        else [],
        share=min(peak / capacity, 1.0) if peak is not None and capacity else None,
        definition="The most device memory allocated to tensors at any time in the trace. The "
        "framework's allocator may reserve more.",
    )


def _on_program_memory(memory: model.ProgramMemoryInfo | None) -> Iterator[model.KeyNumber]:
    if memory is None:
        return
    yield model.KeyNumber(
        id="program-memory",
        label="Program memory",
        value=memory.total_bytes,
        unit="bytes",
        of="",
        share=None,
        notes=[f"{part.label} {format_bytes(part.bytes)}" for part in memory.parts],
        definition=f"What the largest program, {plain(memory.module)}, keeps in the memory of a "
        "device while it runs, as XLA planned it. Arguments are told apart by their names. "
        "Temporaries include the activations that the backward pass needs; those that are not "
        "needed at the same time share their memory. Results that take the place of an argument do "
        "not count. Other programs and arrays come on top.",
    )


def _share(
    id: str,
    label: str,
    value: float | None,
    *,
    of: str,
    definition: str,
    notes: list[str] | None = None,
) -> model.KeyNumber:
    return model.KeyNumber(
        id=id,
        label=label,
        value=value,
        unit="share",
        of=of if value is not None else "",
        notes=notes or [],
        share=value,
        definition=definition,
    )


COMPILE_LOG_CAPTION = "PyTorch · log of torch.compile"
"""In place of a caption: the log says nothing of the device or the steps."""
_FRAMEWORKS = {
    "pytorch": "PyTorch",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "none": "no framework",
    "unknown": "unknown framework",
}


def framework_name(framework: str) -> str:
    """`PyTorch`, as its users write it."""
    return _FRAMEWORKS.get(framework, framework)


def make_caption(
    framework: str,
    workload: model.WorkloadInfo,
    workers: Sequence[model.Worker],
    reference_worker: int,
    world_size: int | None,
    steps: model.StepsInfo,
) -> str:
    """Say what was profiled: `PyTorch, training · DDP · NVIDIA A100 · rank 1 of 2 · 3 steps`.

    `world_size` is None when unknown.
    """
    worker = workers[reference_worker]
    parts = [
        program_name(framework, workload),
        *([" + ".join(workload.parallelism)] if workload.parallelism else []),
        *([_device(worker.device)] if worker.events else []),
    ]
    count = world_size or len(workers)
    if count > 1:
        parts.append(
            f"{count:,} hosts" if worker.rank is None else f"rank {worker.rank} of {count:,}"
        )
    return " · ".join([*parts, _steps(steps)])


def program_name(framework: str, workload: model.WorkloadInfo) -> str:
    """What was run, such as `Lightning (PyTorch), training`."""
    name = framework_name(framework)
    if workload.framework != "unknown":
        name = f"{workload.framework} ({name})"
    return name if workload.mode == "unknown" else f"{name}, {workload.mode}"


def _device(device: model.DeviceInfo | None) -> str:
    if device is None:
        return "CPU"
    if device.used is None:
        return f"no events of the {device.name or 'device'}"
    name = device.name or "unknown device"
    return f"{device.used} × {name}" if device.used > 1 else name


def _steps(steps: model.StepsInfo) -> str:
    if not steps.used:
        return "no repeating steps"
    count = f"{steps.used:,} step{'' if steps.used == 1 else 's'}"
    return f"{count} ({'inferred from ' if steps.is_inferred else ''}{steps.source})"


def compile_log_numbers(log: CompileLog) -> list[model.KeyNumber]:
    """How long the compiler worked, how often it broke off or began again, and its caches."""
    hits = sum(cache.hits for cache in log.caches)
    misses = sum(cache.misses for cache in log.caches)
    unused = sum(cache.bypasses for cache in log.caches)
    count = len(log.compilations)
    return [
        _number(
            "compile-time",
            "Compile time",
            log.known_ns,
            "ns",
            [f"{count:,} compilation{'' if count == 1 else 's'}"],
            "What PyTorch states for all compilations, with backward graphs.",
        ),
        _number(
            "graph-breaks",
            "Graph breaks",
            len(log.breaks),
            "count",
            [],
            "How often the compiler broke off, because it could not trace a line.",
        ),
        _number(
            "recompilations",
            "Recompilations",
            sum(each.is_recompilation for each in log.compilations),
            "count",
            [],
            "How often a function was compiled again, because what an earlier version relies on "
            "no longer held.",
        ),
        _number(
            "cache-hits",
            "Cache hits",
            hits if log.caches else None,
            "count",
            [f"{misses:,} {'miss' if misses == 1 else 'misses'}, {unused:,} not used"]
            if log.caches
            else ["no use of a cache logged"],
            "How often a cache had the compiled code of a graph. Not used: the graph could not be "
            "cached.",
        ),
    ]


def _number(
    id: str, label: str, value: int | None, unit: str, notes: list[str], definition: str
) -> model.KeyNumber:
    return model.KeyNumber(
        id=id,
        label=label,
        value=value,
        unit=unit,
        of="",
        notes=notes,
        share=None,
        definition=definition,
    )


def snapshot_numbers(signals: Signals) -> list[model.KeyNumber]:
    """Peaks, what is held in the end, and what failed."""
    course = memory_course(signals)
    if course is None:
        return []
    capacity, held, failed = snapshot_capacity_bytes(signals), reserved(course), exhaustion(course)
    unused = held.in_pieces_bytes + held.in_free_segments_bytes
    numbers = [
        _bytes(
            "peak-memory",
            "Peak allocated",
            course.peak_allocated_bytes,
            capacity,
            "The most memory that the program asked for at any time in the history. The allocator "
            "rounds requests up.",
        ),
        _bytes(
            "peak-reserved-memory",
            "Peak reserved",
            course.peak_reserved_bytes,
            capacity,
            "The most memory that the allocator had from the driver.",
        ),
        _bytes(
            "unused-memory",
            "Unused at the end",
            unused,
            None,
            "What the allocator held, but nothing used, when the snapshot was taken. In pieces: in "
            "segments that are in use.",
            [f"{format_bytes(held.in_pieces_bytes)} in pieces"],
        ),
    ]
    if failed is not None:
        numbers.append(
            _bytes(
                "failed-allocation",
                "Failed allocation",
                failed.requested_bytes,
                None,
                "The size of the last allocation that failed.",
                [f"{failed.count:,} failed"],
            )
        )
    return numbers


def snapshot_caption(program: str, signals: Signals) -> str:
    """`PyTorch, training · memory snapshot · 5,163 events`."""
    snapshot = signals.trace.snapshot
    events = len(snapshot.events) if snapshot is not None else 0
    history = f"{events:,} event{'' if events == 1 else 's'}" if events else "no history"
    ranks = [f"{len(signals.run.sources):,} ranks"] if len(signals.run.sources) > 1 else []
    return " · ".join([program, "memory snapshot", *ranks, history])


def _bytes(
    id: str,
    label: str,
    value: int,
    capacity: int | None,
    definition: str,
    notes: list[str] | None = None,
) -> model.KeyNumber:
    return model.KeyNumber(
        id=id,
        label=label,
        value=value,
        unit="bytes",
        of="",
        share=min(value / capacity, 1.0) if capacity else None,
        notes=notes or ([f"of {format_bytes(capacity)}"] if capacity else []),
        definition=definition,
    )
