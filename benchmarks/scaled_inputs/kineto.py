"""Kineto traces that are large in one dimension."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from scaled_inputs.dimension import KERNEL, STEPS, Write

_MAIN = {"pid": 100, "tid": 100}
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


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


def _steps(length_us: float, count: int = STEPS) -> Iterator[dict[str, Any]]:
    each = length_us / count
    for step in range(count):
        yield _host(f"ProfilerStep#{step}", step * each, each, cat="user_annotation")


def _work(
    count: int,
    *,
    name: Callable[[int], str] = lambda at: "aten::mm",
    kernel: Callable[[int], str] = lambda at: KERNEL,
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


def kineto_work_in_deep_frames(count: int, folder: Path) -> None:
    """Operators, launches and kernels inside a thousand nested Python functions."""
    frames = (
        _host(
            f"train.py({level}): f{level}",
            level / 1_000,
            10 * count + 2_000 - level,
            cat="python_function",
            args={"Python id": level, "Python parent id": level - 1},
        )
        for level in range(1_000)
    )
    work = ({**event, "ts": event["ts"] + 10} for event in _work(count // 3))
    _kineto([*frames, *work], folder)


def kineto_crossing(count: int, folder: Path) -> None:
    """Nested operators, then as many that begin inside all of them and end outside."""
    half = count // 2
    around = _host("aten::linear", 0, 20 * count)
    nested = (_host("aten::add", 1 + at, 4 * count - 2 * at) for at in range(half))
    crossing = (_host("aten::mul", 1 + half + at, 10 * count) for at in range(half))
    _kineto([*_work(100), around, *nested, *crossing], folder)


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
    _kineto([*_steps(10 * count, count), *list(_work(count))[STEPS:]], folder)


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


def kineto_roles(count: int, folder: Path) -> None:
    """All-reduces, each in an annotation and a process group that say what it is for."""

    def events() -> Iterator[dict[str, Any]]:
        for number, event in enumerate(_work(count)):
            if event["cat"] == "kernel":
                event["name"] = _ALL_REDUCE
                event["args"] |= {
                    "Collective name": "allreduce",
                    "In msg nelems": 1024,
                    "dtype": "Float",
                    "Group size": 2,
                    "Process Group Name": str(number),
                    "Process Group Description": f"tp:{number}",
                }
            elif event["cat"] == "cpu_op":
                event["name"] = f"FSDP::part_{number}"
            yield event

    _kineto(events(), folder, world=8)


def kineto_backward_threads(count: int, folder: Path) -> None:
    """Forward operators of as many threads, and backward operators that refer to as many."""

    def events() -> Iterator[dict[str, Any]]:
        for number, event in enumerate(_work(count, thread=lambda at: 100 + at)):
            if event["cat"] == "cpu_op":
                event["args"] |= {"Sequence number": number, "Fwd thread id": number % 2 * number}
            yield event

    _kineto(events(), folder)


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
    _kineto(list(_work(count // 3))[STEPS:], folder)


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


LARGEST: dict[Write, int] = {
    kineto_events: 10**6,
    kineto_nested: 10**6,
    kineto_nested_frames: 10**6,
    kineto_work_in_deep_frames: 10**5,
    kineto_crossing: 10**6,
    kineto_overlapping: 10**6,
    kineto_names: 10**6,
    kineto_annotations: 10**6,
    kineto_shapes: 10**5,
    kineto_links: 10**6,
    kineto_streams: 10**5,
    kineto_devices: 10**5,
    kineto_threads: 10**5,
    kineto_processes: 10**5,
    kineto_waits: 10**5,
    kineto_synchronizations: 10**5,
    kineto_copies: 10**5,
    kineto_steps: 10**5,
    kineto_collectives: 10**5,
    kineto_roles: 10**5,
    kineto_backward_threads: 10**5,
    kineto_memory: 10**6,
    kineto_fetches: 10**5,
    kineto_unmarked: 10**6,
    kineto_open_events: 10**6,
    kineto_ranks: 4096,
}
