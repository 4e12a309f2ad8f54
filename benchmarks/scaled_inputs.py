"""Writes profiles that are large in one dimension: events, nesting, names, links, planes, ….

Each dimension is a function that writes a profile of some number of items into a directory. The
rest of such a profile is as plain as can be, so that its analysis costs what that dimension costs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tb_perfadvisor.ingest.xplane.decode.schema import WRITING

Write = Callable[[int, Path], None]

_MAIN = {"pid": 100, "tid": 100}
_KERNEL = "ampere_sgemm_128x64_nn"
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_STEPS = 5
MOST_PLANES = 4_000
"""More are refused."""


# --- Kineto -----------------------------------------------------------------------------------


def _kineto(events: Iterable[dict[str, Any]], folder: Path, rank: int = 0, world: int = 1) -> None:
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
    }
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with (folder / f"rank{rank}.pt.trace.json").open("w") as file:
        file.write(encode(header)[:-1] + ',"traceEvents":[')
        for number, event in enumerate(events):
            file.write(("," if number else "") + encode(event))
        file.write("]}")


def _host(name: str, start_us: float, length_us: float, **rest: Any) -> dict[str, Any]:
    cat = rest.pop("cat", "cpu_op")
    event = {"ph": "X", "cat": cat, "name": name, "ts": start_us, "dur": length_us}
    return event | _MAIN | rest


def _device(name: str, start_us: float, length_us: float, **rest: Any) -> dict[str, Any]:
    cat, stream, device = (
        rest.pop(*pair) for pair in (("cat", "kernel"), ("stream", 7), ("device", 0))
    )
    arguments = {"device": device, "stream": stream, **rest}
    event = {"ph": "X", "cat": cat, "name": name, "ts": start_us, "dur": length_us}
    return event | {"pid": device, "tid": stream, "args": arguments}


def _steps(length_us: float, count: int = _STEPS) -> Iterator[dict[str, Any]]:
    each = length_us / count
    for step in range(count):
        yield _host(f"ProfilerStep#{step}", step * each, each, cat="user_annotation")


def _work(
    count: int,
    *,
    name: Callable[[int], str] = lambda at: "aten::mm",
    kernel: Callable[[int], str] = lambda at: _KERNEL,
    stream: Callable[[int], int] = lambda at: 7,
    device: Callable[[int], int] = lambda at: 0,
    thread: Callable[[int], int] = lambda at: 100,
    process: Callable[[int], int] = lambda at: 100,
    arguments: Callable[[int], dict[str, Any]] = lambda at: {},
) -> Iterator[dict[str, Any]]:
    """Operators of 10 us, each with a launch and a kernel."""
    yield from _steps(10 * count)
    for at in range(count):
        place = {"pid": process(at), "tid": thread(at)}
        yield _host(name(at), 10 * at, 8, args=arguments(at), **place)
        yield _host(
            "cudaLaunchKernel",
            10 * at + 1,
            3,
            cat="cuda_runtime",
            args={"correlation": at + 1},
            **place,
        )
        yield _device(
            kernel(at), 10 * at + 5, 7, stream=stream(at), device=device(at), correlation=at + 1
        )


def kineto_events(count: int, folder: Path) -> None:
    """Operators, launches and kernels."""
    _kineto(_work(count // 3), folder)


def kineto_nested(count: int, folder: Path) -> None:
    """Operators, each inside the one before it."""
    nested = (_host("aten::add", at, 2 * count - 2 * at) for at in range(count))
    _kineto([*_work(100), *nested], folder)


def kineto_nested_frames(count: int, folder: Path) -> None:
    """Python functions, each inside the one before it, with operators on the inside."""
    frames = (
        _host(
            f"train.py({at % 1000}): f{at % 1000}",
            at / count,
            100_000 - 2 * at / count,
            cat="python_function",
            args={"Python id": at, "Python parent id": at - 1},
        )
        for at in range(count)
    )
    _kineto([*frames, *_work(1000)], folder)


def kineto_overlapping(count: int, folder: Path) -> None:
    """Operators of one thread that overlap and are not nested."""
    events = (_host("aten::add", 10 * at, 10 * count) for at in range(count))
    _kineto([*_work(100), *events], folder)


def kineto_names(count: int, folder: Path) -> None:
    """Operators and kernels with names of their own."""
    work = _work(
        count // 2,
        name=lambda at: f"my::op_{at}",
        kernel=lambda at: f"kernel_{at}_nn(float*)",
    )
    _kineto(work, folder)


def kineto_annotations(count: int, folder: Path) -> None:
    """Annotations with names of their own."""
    notes = (_host(f"part {at}", 10 * at, 9, cat="user_annotation") for at in range(count // 2))
    _kineto([*notes, *_work(count // 2)], folder)


def kineto_shapes(count: int, folder: Path) -> None:
    """Operators with shapes of their own."""

    def arguments(at: int) -> dict[str, Any]:
        return {"Input Dims": [[at + 1, 64], [64, at + 2]], "Input type": ["float", "float"]}

    _kineto(_work(count, arguments=arguments), folder)


def kineto_links(count: int, folder: Path) -> None:
    """Links from forward to backward operators, and from launches to kernels."""

    def events() -> Iterator[dict[str, Any]]:
        yield from _work(count)
        for at in range(count):
            link = {"cat": "fwdbwd", "name": "fwdbwd", "id": at, **_MAIN}
            yield {"ph": "s", "ts": 10 * at, **link}
            yield {"ph": "f", "bp": "e", "ts": 10 * (count - 1 - at), **link}

    _kineto(events(), folder)


def kineto_streams(count: int, folder: Path) -> None:
    """Streams with one kernel each."""
    _kineto(_work(count, stream=lambda at: at + 7), folder)


def kineto_devices(count: int, folder: Path) -> None:
    """Devices with one kernel each."""
    _kineto(_work(count, device=lambda at: at), folder)


def kineto_threads(count: int, folder: Path) -> None:
    """Threads with one operator each."""
    _kineto(_work(count, thread=lambda at: 100 + at), folder)


def kineto_processes(count: int, folder: Path) -> None:
    """Processes with one operator each, and a name."""
    names = (
        {"ph": "M", "name": "process_name", "pid": 100 + at, "tid": 0, "args": {"name": f"p{at}"}}
        for at in range(count)
    )
    _kineto([*names, *_work(count, process=lambda at: 100 + at)], folder)


def kineto_waits(count: int, folder: Path) -> None:
    """Waits of 200 streams for one another."""

    def events() -> Iterator[dict[str, Any]]:
        yield from _work(count, stream=lambda at: 7 + at % 200)
        for at in range(count):
            stream = 7 + at % 200
            yield _host(
                "cudaStreamWaitEvent",
                10 * at + 5,
                1,
                cat="cuda_runtime",
                args={"correlation": count + at + 1},
            )
            yield _device(
                "Stream Wait Event",
                10 * at + 4,
                0.5,
                cat="cuda_sync",
                stream=stream,
                correlation=count + at + 1,
                wait_on_stream=7 + (at + 1) % 200,
                wait_on_cuda_event_record_corr_id=at,
                wait_on_cuda_event_id=at % 50,
            )

    _kineto(events(), folder)


def kineto_synchronizations(count: int, folder: Path) -> None:
    """Synchronizations after each kernel, at call sites of their own."""

    def events() -> Iterator[dict[str, Any]]:
        yield from _work(count)
        for at in range(count):
            line = f"train.py({at}): step"
            yield _host(line, 10 * at, 9.9, cat="python_function", args={"Python id": at})
            yield _host("cudaStreamSynchronize", 10 * at + 8, 1, cat="cuda_runtime")

    _kineto(events(), folder)


def kineto_copies(count: int, folder: Path) -> None:
    """Copies from pageable memory."""

    def events() -> Iterator[dict[str, Any]]:
        for event in _work(count):
            if event["cat"] == "kernel":
                event["cat"] = "gpu_memcpy"
                event["name"] = "Memcpy HtoD (Pageable -> Device)"
                event["args"]["bytes"] = 1024
            yield event

    _kineto(events(), folder)


def kineto_steps(count: int, folder: Path) -> None:
    """Steps of one operator each."""
    _kineto([*_steps(10 * count, count), *list(_work(count))[_STEPS:]], folder)


def kineto_collectives(count: int, folder: Path) -> None:
    """All-reduces in groups of their own."""

    def events() -> Iterator[dict[str, Any]]:
        for number, event in enumerate(_work(count)):
            if event["cat"] == "kernel":
                event["name"] = _ALL_REDUCE
                event["args"] |= {
                    "Collective name": "allreduce",
                    "In msg nelems": 1024,
                    "Out msg nelems": 1024,
                    "dtype": "Float",
                    "Group size": 2,
                    "Process Group Name": str(number),
                    "Process Group Ranks": f"[0, {number + 1}]",
                }
            yield event

    _kineto(events(), folder, world=8)


def kineto_memory(count: int, folder: Path) -> None:
    """Allocations, each freed at the end."""

    def events() -> Iterator[dict[str, Any]]:
        yield from _work(1000)
        for at in range(count):
            is_free = at >= count // 2
            size = -512 if is_free else 512
            place = count - 1 - at if is_free else at
            yield {
                "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t",
                "ts": at * 10_000 / count, **_MAIN,
                "args": {"Bytes": size, "Addr": 4096 * (place + 1), "Device Type": 1,
                         "Device Id": 0, "Total Allocated": 512 * (place + 1),
                         "Total Reserved": 512 * count},
            }  # fmt: skip

    _kineto(events(), folder)


def kineto_fetches(count: int, folder: Path) -> None:
    """Fetches of a loader."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    fetches = (_host(name, 10 * at + 8, 2, cat="user_annotation") for at in range(count))
    _kineto([*_work(count), *fetches], folder)


def kineto_unmarked(count: int, folder: Path) -> None:
    """Work without steps."""
    _kineto(list(_work(count // 3))[_STEPS:], folder)


def kineto_open_events(count: int, folder: Path) -> None:
    """Begins and ends of nested events."""

    def events() -> Iterator[dict[str, Any]]:
        yield from _work(100)
        for at in range(count):
            yield {"ph": "B", "cat": "cpu_op", "name": "aten::add", "ts": at, **_MAIN}
        for at in range(count):
            yield {"ph": "E", "ts": count + at, **_MAIN}

    _kineto(events(), folder)


def kineto_ranks(count: int, folder: Path) -> None:
    """Ranks with a file each."""

    def events(rank: int) -> Iterator[dict[str, Any]]:
        for event in _work(20):
            if event["cat"] == "kernel" and event["args"]["correlation"] % 5 == 0:
                event["name"] = _ALL_REDUCE
            yield event | {"ts": event["ts"] + rank % 7}

    for rank in range(count):
        _kineto(events(rank), folder, rank, count)


# --- xplane -----------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _xspace(planes: Iterable[Any], folder: Path) -> None:
    """Write planes one by one, so that the whole space is never in memory."""
    session = folder / "plugins" / "profile" / "2026_01_01_00_00_00"
    session.mkdir(parents=True)
    with (session / "host.xplane.pb").open("wb") as file:
        for plane in planes:
            data = plane.SerializeToString()
            file.write(b"\x0a" + _varint(len(data)) + data)


_PS = 1_000_000  # per microsecond


def _name(plane: Any, key: int, name: str, display: str = "") -> None:
    kind = plane.event_metadata[key]
    kind.id, kind.name, kind.display_name = key, name, display


def _stat(plane: Any, key: int, name: str) -> None:
    plane.stat_metadata[key].id, plane.stat_metadata[key].name = key, name


def _tpu_plane(count: int, names: int = 1, *, number: int = 0) -> Any:
    """A core with steps, modules and operations of 10 us."""
    plane = WRITING.XPlane(id=number + 2, name=f"/device:TPU:{number}")
    _stat(plane, 1, "step_num")
    _stat(plane, 2, "run_id")
    for key in range(1, names + 1):
        text = f"%fusion.{key} = f32[{key},128]{{1,0}} fusion(f32[{key},128] %p.{key}), kind=kLoop"
        _name(plane, key, text, f"fusion.{key}")
    _name(plane, names + 1, "jit_step(7)")
    _name(plane, names + 2, "1")
    for place, title in enumerate(("Steps", "XLA Modules", "XLA Ops")):
        line = plane.lines.add(id=place + 1, name=title)
        whole = 10 * count * _PS
        if title == "XLA Ops":
            for at in range(count):
                line.events.add(
                    metadata_id=at % names + 1, offset_ps=10 * at * _PS, duration_ps=9 * _PS
                )
            continue
        for step in range(_STEPS):
            event = line.events.add(
                metadata_id=names + (1 if title == "XLA Modules" else 2),
                offset_ps=step * whole // _STEPS,
                duration_ps=whole // _STEPS - _PS,
            )
            event.stats.add(metadata_id=1 if title == "Steps" else 2, int64_value=step)
    return plane


def _host_plane(lines: int, events: int, *, nested: bool = False, names: int = 1) -> Any:
    plane = WRITING.XPlane(id=1, name="/host:CPU")
    for key in range(1, names + 1):
        _name(plane, key, f"op_{key}")
    for number in range(lines):
        line = plane.lines.add(id=number + 1, name=f"thread {number}")
        for at in range(events):
            length = 10 * events - 2 * at if nested else 9
            line.events.add(
                metadata_id=at % names + 1,
                offset_ps=(at if nested else 10 * at) * _PS,
                duration_ps=length * _PS,
            )
    return plane


def xplane_events(count: int, folder: Path) -> None:
    """Operations of a TPU core."""
    _xspace([_tpu_plane(count, 100), _host_plane(1, 100)], folder)


def xplane_names(count: int, folder: Path) -> None:
    """Operations with names and texts of their own."""
    _xspace([_tpu_plane(count, count), _host_plane(1, 100)], folder)


def xplane_host_events(count: int, folder: Path) -> None:
    """Events of a host thread."""
    _xspace([_host_plane(1, count, names=100)], folder)


def xplane_host_names(count: int, folder: Path) -> None:
    """Events of a host thread, with names of their own."""
    _xspace([_host_plane(1, count, names=count)], folder)


def xplane_nested(count: int, folder: Path) -> None:
    """Events of a host thread, each inside the one before it."""
    _xspace([_host_plane(1, count, nested=True), _tpu_plane(1000, 10)], folder)


def xplane_lines(count: int, folder: Path) -> None:
    """Threads with one event each."""
    _xspace([_host_plane(count, 1), _tpu_plane(1000, 10)], folder)


def xplane_planes(count: int, folder: Path) -> None:
    """Cores with a few operations each."""
    _xspace((_tpu_plane(5, 1, number=number) for number in range(count)), folder)


def xplane_host_planes(count: int, folder: Path) -> None:
    """Planes with one event each."""

    def planes() -> Iterator[Any]:
        yield _tpu_plane(1000, 10)
        for number in range(count):
            plane = _host_plane(1, 1)
            plane.id, plane.name = number + 2, f"/host:plane {number}"
            yield plane

    _xspace(planes(), folder)


def xplane_streams(count: int, folder: Path) -> None:
    """Streams of a GPU with one kernel each."""
    plane = WRITING.XPlane(id=2, name="/device:GPU:0")
    _name(plane, 1, _KERNEL)
    _stat(plane, 1, "correlation_id")
    for number in range(count):
        line = plane.lines.add(id=number + 1, name=f"Stream #{number}(Compute)")
        event = line.events.add(metadata_id=1, offset_ps=10 * number * _PS, duration_ps=9 * _PS)
        event.stats.add(metadata_id=1, int64_value=number + 1)
    _xspace([_host_plane(1, 100), plane], folder)


def xplane_gpus(count: int, folder: Path) -> None:
    """GPUs with one kernel each."""

    def planes() -> Iterator[Any]:
        yield _host_plane(1, 100)
        for number in range(count):
            plane = WRITING.XPlane(id=number + 2, name=f"/device:GPU:{number}")
            _name(plane, 1, _KERNEL)
            line = plane.lines.add(id=1, name="Stream #1(Compute)")
            line.events.add(metadata_id=1, offset_ps=number * _PS, duration_ps=9 * _PS)
            yield plane

    _xspace(planes(), folder)


def xplane_stats(count: int, folder: Path) -> None:
    """Stats of one event, with names of their own."""
    plane = _host_plane(1, 100)
    event = plane.lines[0].events[0]
    for key in range(1, count + 1):
        _stat(plane, key, f"stat_{key}")
        event.stats.add(metadata_id=key, str_value=f"value {key}")
    _xspace([plane], folder)


def xplane_iterators(count: int, folder: Path) -> None:
    """Iterators of tf.data, each inside the one before it."""
    plane = WRITING.XPlane(id=1, name="/host:CPU")
    for key, stat in enumerate(("id", "parent_id", "long_name", "step_num"), start=1):
        _stat(plane, key, stat)
    line = plane.lines.add(id=1, name="python")
    _name(plane, 1, "IteratorGetNextOp::DoCompute")
    for at in range(count):
        _name(plane, at + 2, f"Iterator::Map{at}::Batch")
        event = line.events.add(
            metadata_id=at + 2, offset_ps=at * _PS, duration_ps=(10 * count - 2 * at) * _PS
        )
        event.stats.add(metadata_id=1, int64_value=at + 1)
        event.stats.add(metadata_id=2, int64_value=at)
        event.stats.add(metadata_id=3, str_value=f"Iterator::Map{at}::Batch[{at}]::Batch")
    _xspace([plane], folder)


def xplane_links(count: int, folder: Path) -> None:
    """Links from launches to kernels."""
    host = _host_plane(1, 0)
    _name(host, 1, "cuLaunchKernel")
    _stat(host, 1, "correlation_id")
    device = WRITING.XPlane(id=2, name="/device:GPU:0")
    _name(device, 1, _KERNEL)
    _stat(device, 1, "correlation_id")
    stream = device.lines.add(id=1, name="Stream #1(Compute)")
    for plane, line in ((host, host.lines[0]), (device, stream)):
        for at in range(count):
            event = line.events.add(
                metadata_id=1, offset_ps=(10 * at + 5 * (line is stream)) * _PS, duration_ps=4 * _PS
            )
            event.stats.add(metadata_id=1, int64_value=at + 1)
        del plane
    _xspace([host, device], folder)


# --- Chrome exports ---------------------------------------------------------------------------


def _chrome(events: Iterable[dict[str, Any]], folder: Path) -> None:
    session = folder / "plugins" / "profile" / "2026_01_01_00_00_00"
    session.mkdir(parents=True)
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with (session / "host.trace.json").open("w") as file:
        file.write('{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[')
        for event in events:
            file.write(encode(event) + ",")
        file.write("{}]}")


def _chrome_event(name: str, at: int, pid: int = 701, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": 10 * at, "dur": 9, "name": name}


def _chrome_name(what: str, name: str, pid: int = 701, tid: int = 1) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_name", "args": {"name": name}}


_CHROME_HOST = [_chrome_name("process", "/host:CPU"), _chrome_name("thread", "python")]


def chrome_events(count: int, folder: Path) -> None:
    """Events of a host thread, with names of their own."""
    _chrome([*_CHROME_HOST, *(_chrome_event(f"op {at}", at) for at in range(count))], folder)


def chrome_threads(count: int, folder: Path) -> None:
    """Threads with one event each."""
    names = (_chrome_name("thread", f"t{at}", tid=at + 2) for at in range(count))
    events = (_chrome_event("op", at, tid=at + 2) for at in range(count))
    _chrome([*_CHROME_HOST, *names, *events], folder)


def chrome_processes(count: int, folder: Path) -> None:
    """Devices with one event each."""
    names = (_chrome_name("process", f"/device:GPU:{at}", pid=at + 1) for at in range(count))
    lines = (_chrome_name("thread", "Stream #1(Compute)", pid=at + 1) for at in range(count))
    events = (_chrome_event(_KERNEL, at, pid=at + 1) for at in range(count))
    _chrome([*names, *lines, *events], folder)


# --- logs of torch.compile --------------------------------------------------------------------


def _log(records: Iterable[tuple[dict[str, Any], str]], folder: Path) -> None:
    encode = json.JSONEncoder(separators=(", ", ": ")).encode
    with (folder / "dedicated_log_torch_trace_abcdefgh.log").open("w") as file:
        for header, payload in records:
            file.write(f"V0102 15:04:05.678000 700 torch/_dynamo/utils.py:1] {encode(header)}\n")
            file.writelines(f"\t{line}\n" for line in payload.split("\n") if payload)


def _phase(ph: str, name: str, at_us: int) -> tuple[dict[str, Any], str]:
    event = {"name": name, "ph": ph, "ts": 1e15 + at_us, "tid": 0, "pid": 0}
    return {"chromium_event": {}}, json.dumps(event, indent=0)


def compile_log_phases(count: int, folder: Path) -> None:
    """Phases of the compiler, ten inside each other."""

    def records() -> Iterator[tuple[dict[str, Any], str]]:
        for at in range(0, count, 10):
            for depth in range(10):
                yield _phase("B", f"phase {depth}", 100 * at + depth)
            for depth in reversed(range(10)):
                yield _phase("E", f"phase {depth}", 100 * at + 50 - depth)

    _log(records(), folder)


def compile_log_recompilations(count: int, folder: Path) -> None:
    """Recompilations of one function, each with a graph break and a guard that failed."""

    def records() -> Iterator[tuple[dict[str, Any], str]]:
        for version in range(count):
            of = {"frame_id": 0, "frame_compile_id": version}
            guard = {"artifact": {"name": "recompile_reasons"}, **of}
            yield guard, f"0/{version}: n == {version}"
            breaks = {"artifact": {"name": "dynamo_graph_break_reason"}, **of}
            yield breaks, f"Graph break in user code at /a/b.py:{version + 1}\nwhy"
            metrics = {"co_name": "f", "co_filename": "/a/b.py", "duration_us": 1000}
            yield {"compilation_metrics": {**metrics, "co_firstlineno": 3}, **of}, ""

    _log(records(), folder)


# --- directories ------------------------------------------------------------------------------


def captures(count: int, folder: Path) -> None:
    """Files that are no profiles, beside one."""
    kineto_events(300, folder)
    for number in range(count):
        (folder / f"{number}.txt").write_text("nothing\n")


DIMENSIONS: dict[str, tuple[Write, int]] = {
    name: (write, largest)
    for write, largest in (
        (kineto_events, 10**6),
        (kineto_nested, 10**6),
        (kineto_nested_frames, 10**6),
        (kineto_overlapping, 10**6),
        (kineto_names, 10**6),
        (kineto_annotations, 10**6),
        (kineto_shapes, 10**5),
        (kineto_links, 10**6),
        (kineto_streams, 10**5),
        (kineto_devices, 10**5),
        (kineto_threads, 10**5),
        (kineto_processes, 10**5),
        (kineto_waits, 10**5),
        (kineto_synchronizations, 10**5),
        (kineto_copies, 10**5),
        (kineto_steps, 10**5),
        (kineto_collectives, 10**5),
        (kineto_memory, 10**6),
        (kineto_fetches, 10**5),
        (kineto_unmarked, 10**6),
        (kineto_open_events, 10**6),
        (kineto_ranks, 4096),
        (xplane_events, 10**6),
        (xplane_names, 10**6),
        (xplane_host_events, 10**6),
        (xplane_host_names, 10**6),
        (xplane_nested, 10**6),
        (xplane_lines, 10**5),
        (xplane_planes, MOST_PLANES),
        (xplane_host_planes, MOST_PLANES),
        (xplane_streams, 10**5),
        (xplane_gpus, MOST_PLANES),
        (xplane_stats, 10**5),
        (xplane_iterators, 10**5),
        (xplane_links, 10**6),
        (chrome_events, 10**6),
        (chrome_threads, 10**5),
        (chrome_processes, 10**5),
        (compile_log_phases, 10**6),
        (compile_log_recompilations, 10**5),
        (captures, 10**5),
    )
    for name in (write.__name__.replace("_", "-"),)
}
"""What writes each dimension, and the largest number of items that is measured."""
