"""Writes the schedule of a compiled program as a profile with several steps."""

from __future__ import annotations

import zlib
from enum import Enum
from typing import Any, Final

from demo_logs.record.compiled.schedule import CompiledOperation, CompiledSchedule
from demo_logs.record.compiled.timeline import Execution, Timeline, play
from demo_logs.record.synthetic_clock import ORIGIN_UNIX_NS
from tb_perfadvisor.hardware import find_device
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tb_perfadvisor.ingest.xspace.interpret.run_links import TPU_LAUNCH
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tests.support.writers.xplane.planes import Plane

STEPS: Final = 5
GAP_PS: Final = 2_000_000
"""Between two runs of a program that are queued."""
_PS_PER_US: Final = 1_000_000
_FIRST_RUN_PS: Final = 60 * _PS_PER_US
_LONGEST_DISPATCH_PS: Final = 50 * _PS_PER_US
_THREAD: Final = 1
_WAIT: Final = "$api.py:2551 block_until_ready"


class Dispatch(Enum):
    """How the host of a profile launches the steps. The device does the same in all of them."""

    AHEAD = "ahead"
    """All at once, with a marker around each call, as JAX does."""
    UNMARKED = "unmarked"
    """All at once, without markers."""
    SYNCHRONOUS = "synchronous"
    """One after the other, each with a marker and a wait for its end."""


def step_ps(schedule: CompiledSchedule) -> int:
    """How long a step of the profile takes."""
    return play(schedule.operations).duration_ps + GAP_PS


def write_compiled(
    schedule: CompiledSchedule,
    dispatch: Dispatch = Dispatch.AHEAD,
    *,
    has_step_line: bool = True,
) -> bytes:
    """The profile of some steps of a program as the bytes of a `*.xplane.pb`.

    Each chip runs the steps one after the other.

    Args:
        schedule: The program as it is compiled.
        dispatch: How the host launches them. If it runs ahead, it fetches the last result.
        has_step_line: Whether the profiler also wrote the markers' steps to a line of the device.
    """
    space = WRITING.XSpace()
    timeline = play(schedule.operations)
    # The same program has the same number.
    program = zlib.crc32(schedule.hlo_proto) + 2**32
    for chip in range(schedule.chips):
        has_steps = has_step_line and dispatch is not Dispatch.UNMARKED
        plane = space.planes.add()
        _device_plane(plane, schedule, timeline, chip, program, has_steps=has_steps)
    _host_plane(space.planes.add(), schedule, timeline, dispatch)
    _metadata_plane(space.planes.add(), schedule, program)
    _environment_plane(space.planes.add(), schedule)
    space.hostnames.append("host0")
    written: bytes = space.SerializeToString(deterministic=True)
    return written


def _device_plane(
    message: Any,
    schedule: CompiledSchedule,
    timeline: Timeline,
    chip: int,
    program: int,
    *,
    has_steps: bool,
) -> None:
    plane = Plane(message)
    message.name = f"/device:TPU:{chip}"
    plane.stat(message, "device_type_string", schedule.device)
    spec = find_device(schedule.device)
    if spec is not None:
        peak = spec.peaks.tensor.get("bf16")
        bandwidth = spec.peaks.memory_bandwidth_bytes_per_s
        if peak:
            plane.stat(message, "peak_teraflops_per_second", peak / 1e12)
        if bandwidth:
            plane.stat(message, "peak_hbm_bw_gigabytes_per_second", bandwidth / 1e9)
        if spec.memory_bytes:
            plane.stat(message, "memory_size", int(spec.memory_bytes))
    steps, modules, ops, transfers = (
        plane.line(number, name)
        for number, name in enumerate(("Steps", "XLA Modules", "XLA Ops", "Async XLA Ops"), 1)
    )
    module = plane.metadata(f"{schedule.module}({program})")
    for step in range(STEPS):
        start_ps = _FIRST_RUN_PS + step * (timeline.duration_ps + GAP_PS)
        if has_steps:
            event = _add(steps, plane.metadata(str(step)), start_ps, timeline.duration_ps)
            plane.stat(event, "step_num", step)
        event = _add(modules, module, start_ps, timeline.duration_ps)
        plane.stat(event, "run_id", step)
        plane.stat(event, "_ct", TPU_LAUNCH)
        plane.stat(event, "_c", 1 + step)
        for line, executions in ((ops, timeline.executions), (transfers, timeline.transfers)):
            for execution in executions:
                _add_execution(plane, line, execution, start_ps, program)


def _add(line: Any, metadata: int, start_ps: int, duration_ps: int) -> Any:
    return line.events.add(metadata_id=metadata, offset_ps=start_ps, duration_ps=duration_ps)


def _add_execution(
    plane: Plane, line: Any, execution: Execution, start_ps: int, program: int
) -> None:
    metadata = _operation(plane, execution.operation, program)
    _add(line, metadata, start_ps + execution.start_ps, execution.duration_ps)


def _operation(plane: Plane, operation: CompiledOperation, program: int) -> int:
    """The kind of event of an operation, with the facts that profilers add to it."""
    metadata = plane.metadata(operation.text, operation.name)
    entry = plane.message.event_metadata[metadata]
    if entry.stats:
        return metadata
    plane.stat(entry, "hlo_category", operation.category)
    plane.stat(entry, "program_id", program)
    if operation.path:
        plane.stat(entry, "tf_op", operation.path)
    if operation.source:
        plane.stat(entry, "source", operation.source)
    if operation.flop:
        plane.stat(entry, "flops", operation.flop)
        plane.stat(entry, "model_flops", operation.flop)
    if operation.traffic_bytes:
        plane.stat(entry, "bytes_accessed", operation.traffic_bytes)
        plane.stat(entry, "raw_bytes_accessed", operation.traffic_bytes)
    parsed = parse_instruction(operation.text)
    if parsed is not None:
        _, _, body = operation.text.partition(" = ")
        plane.stat(entry, "shape_with_layout", body.partition(f" {parsed.opcode}(")[0])
    return metadata


def _host_plane(
    message: Any, schedule: CompiledSchedule, timeline: Timeline, dispatch: Dispatch
) -> None:
    plane = Plane(message)
    message.name = "/host:CPU"
    line = plane.line(_THREAD, "python")
    function = schedule.module.removeprefix("jit_")
    run_ps = timeline.duration_ps + GAP_PS
    is_synchronous = dispatch is Dispatch.SYNCHRONOUS
    # The host runs ahead of the device, however short a run is. If it waits, it has the gap between
    # two runs to learn of the end of one and to launch the next.
    dispatch_ps = GAP_PS * 3 // 4 if is_synchronous else min(_LONGEST_DISPATCH_PS, run_ps // 2)
    for step in range(STEPS):
        start_ps = step * dispatch_ps
        step_ends_ps = start_ps + dispatch_ps * 98 // 100
        if is_synchronous:
            run_starts_ps = _FIRST_RUN_PS + step * run_ps
            start_ps = run_starts_ps - dispatch_ps
            step_ends_ps = run_starts_ps + timeline.duration_ps + GAP_PS // 5
            wait_ps = step_ends_ps - run_starts_ps
            _add(line, plane.metadata(_WAIT), run_starts_ps, wait_ps)
        if dispatch is not Dispatch.UNMARKED:
            event = _add(line, plane.metadata("train"), start_ps, step_ends_ps - start_ps)
            plane.stat(event, "step_num", step)
        call = plane.metadata(f"PjitFunction({function})")
        _add(line, call, start_ps + dispatch_ps // 25, dispatch_ps * 9 // 10)
        launch = plane.metadata("DoEnqueueProgram")
        event = _add(line, launch, start_ps + dispatch_ps // 5, dispatch_ps * 3 // 5)
        plane.stat(event, "_pt", TPU_LAUNCH)
        plane.stat(event, "_p", 1 + step)
    if not is_synchronous:
        start_ps = STEPS * dispatch_ps
        end_ps = _FIRST_RUN_PS + STEPS * run_ps + 5 * _PS_PER_US
        _add(line, plane.metadata("np.asarray(jax.Array)"), start_ps, end_ps - start_ps)


def _metadata_plane(message: Any, schedule: CompiledSchedule, program: int) -> None:
    plane = Plane(message)
    message.name = "/host:metadata"
    plane.stat(message, "jax_version", "0")
    metadata = plane.metadata(f"{schedule.module}({program})")
    # An `HloProto` whose field 1 is the module.
    size, length = len(schedule.hlo_proto), bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    proto = b"\x0a" + bytes(length) + schedule.hlo_proto
    plane.stat(message.event_metadata[metadata], "Hlo Proto", proto)


def _environment_plane(message: Any, schedule: CompiledSchedule) -> None:
    plane = Plane(message)
    message.name = "Task Environment"
    plane.stat(message, "profile_start_time", ORIGIN_UNIX_NS)
    plane.stat(message, "perfadvisor_synthetic", 1)
    plane.stat(message, "perfadvisor_estimated_by", schedule.compiler)
