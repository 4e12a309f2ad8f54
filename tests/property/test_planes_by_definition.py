"""Planes of GPUs, TPUs and allocators with each stat present or absent, at the limits."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.xspace.interpret.devices import PlaneDevice, place_devices
from tb_perfadvisor.trace import CopyDirection, EventKind, TrackKind
from tests.support.night import examples
from tests.support.xspaces import Drawing

randoms = st.integers(0, 2**32).map(Random)
T = TypeVar("T")
ABSENT = object()


def drawn(random: Random, values: list[tuple[Any, T]], absent: T) -> tuple[Any, T]:
    """A written value and how it reads; often none."""
    return (ABSENT, absent) if random.random() < 0.3 else random.choice(values)


def present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ABSENT}


MEMORY: list[tuple[Any, int | None]] = [
    (0, None), (1, 1), (2**40, 2**40), (2**62 - 1, 2**62 - 1), (2**62, None), ("x", None)
]  # fmt: skip
RATES: list[tuple[Any, float | None]] = [
    (0, None), (1, 1.0), (197.5, 197.5), (9e29, 9e29), (1e30, None), (-1.0, None), ("x", None)
]  # fmt: skip
NUMBERS: list[tuple[Any, int | None]] = [(0, 0), (1, 1), (9, 9), ("x", None)]


@examples(40)
@given(randoms)
def test_what_a_plane_says_of_its_tpu(random: Random) -> None:
    memory_text, memory = drawn(random, MEMORY, None)
    flop_text, flop = drawn(random, RATES, None)
    bandwidth_text, bandwidth = drawn(random, RATES, None)
    name_text, name = drawn(random, [("TPU v5e", "TPU v5e")], "TPU")
    stats = present(
        memory_size=memory_text, peak_teraflops_per_second=flop_text,
        peak_hbm_bw_gigabytes_per_second=bandwidth_text, device_type_string=name_text,
    )  # fmt: skip
    drawing = Drawing()
    plane = drawing.plane("/device:TPU:0", **stats)
    operations = drawing.line(plane, "XLA Ops")
    drawing.event(plane, operations, "%dot.1 = f32[8] dot()", 0, 100)
    counters = drawing.line(plane, "_counters_")
    uses = [
        (random.choice((0.0, 50.0, 100.0, 100.5, -1.0)), random.choice((0, 1, 3))) for _ in "ab"
    ]
    for at, (percent, length) in enumerate(uses):
        drawing.event(plane, counters, "MXU", at, length, **{"% util": percent})
        drawing.event(plane, counters, "other", at, length, **{"% util": 77.0})
    (device,) = drawing.read().devices
    assert (device.index, device.kind, device.name) == (0, "tpu", name)
    assert device.memory_bytes == memory
    assert device.reported_flop_per_s == (None if flop is None else flop * 1e12)
    assert device.reported_bandwidth_bytes_per_s == (None if bandwidth is None else bandwidth * 1e9)
    valid = [(percent, max(length, 1)) for percent, length in uses if 0 <= percent <= 100]
    weight = sum(length for _, length in valid)
    mean = sum(percent * length for percent, length in valid) / weight / 100 if valid else None
    assert device.matrix_unit_use == mean


@examples(40)
@given(randoms)
def test_what_a_plane_says_of_its_gpu(random: Random) -> None:
    memory_text, memory = drawn(random, MEMORY, None)
    units_text, units = drawn(random, MEMORY, None)
    clock_text, clock = drawn(random, RATES, None)
    bandwidth_text, bandwidth = drawn(random, RATES, None)
    major_text, major = drawn(random, [(0, None), (9, 9), ("x", None)], None)
    minor_text, minor = drawn(random, NUMBERS, None)
    vendors = [("Nvidia", "NVIDIA"), ("AMD ROCm", "AMD"), ("Intel", "INTEL")]
    vendor_text, vendor = drawn(random, vendors, "NVIDIA")
    stats = present(
        memory_size=memory_text, core_count=units_text, clock_rate=clock_text,
        memory_bandwidth=bandwidth_text, compute_cap_major=major_text,
        compute_cap_minor=minor_text, device_vendor=vendor_text,
    )  # fmt: skip
    drawing = Drawing()
    plane = drawing.plane("/device:GPU:0", **stats)
    drawing.event(plane, drawing.line(plane, "Stream #7(Compute)"), "kernel", 0, 100)
    (device,) = drawing.read().devices
    capability = "" if None in (major, minor) else f"{major}.{minor}"
    generic = "GPU" if vendor_text is ABSENT else f"{vendor} GPU"
    assert (device.kind, device.name) == ("gpu", "" if capability else generic)
    assert (device.memory_bytes, device.multiprocessors) == (memory, units)
    assert device.clock_hz == (None if clock is None else clock * 1e3)
    assert device.compute_capability == capability
    is_known = bool(capability) and vendor in ("AMD", "NVIDIA")
    assert device.vendor == (vendor.lower() if is_known else "")
    assert device.reported_bandwidth_bytes_per_s == (bandwidth if vendor == "NVIDIA" else None)


@examples(40)
@given(randoms)
def test_places_of_devices(random: Random) -> None:
    names = random.sample(
        [
            "/device:GPU:0", "/device:GPU:1", "/device:TPU:0", "/device:TPU:1 SparseCore 0",
            "/device:XYZ:0", "/device:XYZ:3", "/device:CUSTOM:Megascale Trace", "/device:CPU:0",
            "/host:CPU", "/device:ABC",
        ],
        random.randint(0, 6),
    )  # fmt: skip
    found = place_devices(names)
    numbered: dict[str, tuple[str, int, str]] = {}
    others: dict[str, tuple[str, str]] = {}
    for name in names:
        kind, _, label = name.removeprefix("/device:").partition(":")
        if not name.startswith("/device:") or kind == "CPU":
            continue
        number, _, part = label.partition(" ")
        if number.isdigit():
            numbered[name] = kind, int(number), part
        else:
            others[name] = kind, label or kind
    # GPUs and TPUs keep their numbers, because allocators refer to them.
    index: dict[tuple[str, int], int] = {}
    keys = {(kind, number) for kind, number, _ in numbered.values()}
    for key in sorted(keys, key=lambda key: (key[0] not in ("GPU", "TPU"), *key)):
        taken = set(index.values())
        index[key] = max(taken) + 1 if key[1] in taken else key[1]
    expected = {
        name: PlaneDevice(kind, index[kind, number], part)
        for name, (kind, number, part) in numbered.items()
    }
    for place, (name, (kind, label)) in enumerate(others.items()):
        expected[name] = (
            PlaneDevice(kind, min(index.values()), label) if index else PlaneDevice(kind, place, "")
        )
    assert found == expected


# --- streams ------------------------------------------------------------------------------

# The name of an event on a stream, its kind, and the direction that the name tells.
WORK: list[tuple[str, EventKind, CopyDirection]] = [
    ("ampere_sgemm_128x64_nn", EventKind.KERNEL, CopyDirection.UNKNOWN),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", EventKind.COLLECTIVE, CopyDirection.UNKNOWN),
    ("MemcpyH2D", EventKind.COPY, CopyDirection.HOST_TO_DEVICE),
    ("MemcpyD2H", EventKind.COPY, CopyDirection.DEVICE_TO_HOST),
    ("Memset", EventKind.MEMSET, CopyDirection.UNKNOWN),
    ("volta_sgemm_64x64_nn", EventKind.KERNEL, CopyDirection.UNKNOWN),
]
CALLS = [("cuMemcpyHtoDAsync", CopyDirection.HOST_TO_DEVICE), ("cuLaunchKernel", None)]
LINES = [
    ("Stream #7(Compute)", CopyDirection.UNKNOWN),
    ("Stream #8(MemcpyD2H)", CopyDirection.DEVICE_TO_HOST),
]


@examples(40)
@given(randoms)
def test_work_on_streams(random: Random) -> None:
    drawing = Drawing()
    host, gpu = drawing.plane("/host:CPU"), drawing.plane("/device:GPU:1")
    thread = drawing.line(host, "python")
    lines = [(drawing.line(gpu, name), direction) for name, direction in LINES]
    expected: list[dict[str, Any]] = []
    for number in range(random.randint(1, 8)):
        at = 100 * number
        call, of_call = random.choice(CALLS)
        is_linked = random.random() < 0.7
        drawing.event(host, thread, call, at, 10, correlation_id=number + 1)
        name, kind, of_name = random.choice(WORK)
        line, of_line = random.choice(lines)
        size = random.choice((1, 4096))
        details_text, of_details = drawn(
            random,
            [
                (f"kind_src:pinned kind_dst:device size:{size}", CopyDirection.HOST_TO_DEVICE),
                (f"size:{size}", CopyDirection.UNKNOWN),
            ],
            CopyDirection.UNKNOWN,
        )
        is_described = details_text is not ABSENT and random.random() < 0.6
        launch_text, blocks = drawn(random, [("grid:4,2,1 block:8,1,1", 8)], -1)
        occupancy_text, occupancy = drawn(
            random, [(50.0, 0.5), (100.0, 1.0), (0.0, None), (100.5, None)], None
        )
        stats = present(
            correlation_id=number + 1 if is_linked else ABSENT,
            memcpy_details=details_text if is_described else ABSENT,
            kernel_details=launch_text,
            occupancy_pct=occupancy_text,
        )
        drawing.event(gpu, line, name, at + 20, 50, **stats)
        if is_described and kind != EventKind.MEMSET:
            kind = EventKind.COPY
        direction = of_details if is_described else CopyDirection.UNKNOWN
        for source in (of_name, of_call if is_linked else None, of_line):
            if direction == CopyDirection.UNKNOWN and source is not None:
                direction = source
        expected.append(
            {
                "kind": kind, "name": name, "direction": direction, "is_linked": is_linked,
                "size": size if is_described else -1, "blocks": blocks,
                "pageable": 0 if of_details and is_described else -1, "occupancy": occupancy,
            }
        )  # fmt: skip
    trace = drawing.read()
    events = trace.events
    rows = [
        row
        for row in range(len(events))
        if trace.tracks.kind[events.track[row]] == TrackKind.DEVICE_STREAM
    ]
    assert len(rows) == len(expected)
    kernels = {row: place for place, row in enumerate(trace.kernels.row.tolist())}
    copies = {row: place for place, row in enumerate(trace.copies.row.tolist())}
    for row, work in zip(rows, expected, strict=True):
        assert (events.kind[row], trace.name(row)) == (work["kind"], work["name"])
        assert trace.tracks.device[events.track[row]] == 1
        assert (events.launched_by[row] >= 0) == work["is_linked"]
        assert (row in copies) == (work["kind"] == EventKind.COPY)
        assert (row in kernels) == (work["kind"] in (EventKind.KERNEL, EventKind.COLLECTIVE))
        if row in copies:
            at = copies[row]
            assert trace.copies.direction[at] == work["direction"]
            assert (trace.copies.size_bytes[at], trace.copies.pageable[at]) == (
                work["size"], work["pageable"]
            )  # fmt: skip
        elif row in kernels:
            at = kernels[row]
            assert trace.kernels.grid_blocks[at] == work["blocks"]
            share = float(trace.kernels.occupancy_share[at])
            assert share == work["occupancy"] if work["occupancy"] else np.isnan(share)
    assert len(trace.collectives.row) == sum(
        work["kind"] == EventKind.COLLECTIVE for work in expected
    )


ALLOCATORS: list[tuple[Any, int]] = [
    ("GPU_0_bfc", 0), ("gpu_12_bfc", 12), ("TPU_3_x", 3), ("gpu_host_bfc", -1), ("mklcpu", -1)
]  # fmt: skip
AMOUNTS: list[tuple[Any, int]] = [(0, 0), (1, 1), (1000, 1000), (-1, -1)]


@examples(40)
@given(randoms)
def test_allocations(random: Random) -> None:
    drawing = Drawing()
    host, gpu = drawing.plane("/host:CPU"), drawing.plane("/device:GPU:0")
    thread = drawing.line(host, "python")
    drawing.event(gpu, drawing.line(gpu, "Stream #7(Compute)"), "kernel", 0, 100)
    expected, limits = [], [0]
    for number in range(random.randint(1, 6)):
        allocated_text, allocated = drawn(random, AMOUNTS, -1)
        reserved_text, reserved = drawn(random, AMOUNTS, -1)
        available_text, available = drawn(random, AMOUNTS, -1)
        size_text, size = drawn(random, AMOUNTS, -1)
        address_text, address = drawn(random, [(16, 16)], -1)
        allocator, device = drawn(random, ALLOCATORS, 0)
        is_free = random.random() < 0.4
        name = "MemoryDeallocation" if is_free else "MemoryAllocation"
        index_text, index = drawn(random, [(0, 0), (5, 5), (2**31, None)], None)
        if allocator is ABSENT and index is not None:
            device = index
        stats = present(
            bytes_allocated=allocated_text, bytes_reserved=reserved_text,
            bytes_available=available_text, allocation_bytes=size_text, addr=address_text,
            allocator_name=allocator, index_on_host=index_text,
        )  # fmt: skip
        drawing.event(host, thread, name, 10 * number, 0, **stats)
        in_use = allocated + max(reserved, 0) if allocated >= 0 else -1
        change = -max(size, 0) if is_free else max(size, 0)
        expected.append((10 * number, device, in_use, change, address))
        if allocated >= 0 and available >= 0 and device == 0:
            limits.append(in_use + available)
    trace = drawing.read()
    table = trace.memory
    columns = (table.at_ns, table.device, table.allocated_bytes, table.bytes, table.address)
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    assert found == expected
    assert {trace.text(int(trace.tracks.label[track])) for track in table.track} == {"python"}
    (device,) = [device for device in trace.devices if device.index == 0]
    assert device.memory_bytes == (max(limits) or None)


@examples(40)
@given(randoms)
def test_the_numbers_of_steps(random: Random) -> None:
    drawing = Drawing()
    plane = drawing.plane("/device:TPU:0")
    steps, operations = drawing.line(plane, "Steps"), drawing.line(plane, "XLA Ops")
    expected = []
    for at in range(random.randint(1, 4)):
        name, number = random.choice((("7", 7), ("step 12", 12), ("a", -1), ("9" * 10, -1)))
        stats = {}
        for stat in ("group_id", "step_num"):  # the second one counts more
            value_text, value = drawn(
                random, [(0, 0), (3, 3), (2**31 - 1, 2**31 - 1), (2**31, -1)], -1
            )
            stats |= present(**{stat: value_text})
            number = value if value >= 0 else number
        drawing.event(plane, steps, name, 100 * at, 90, **stats)
        drawing.event(plane, operations, "%dot.1 = f32[8] dot()", 100 * at, 50)
        expected.append(number)
    trace = drawing.read()
    rows = trace.rows(EventKind.DEVICE_STEP)
    assert trace.events.step[rows].tolist() == expected


COUNTS: list[tuple[Any, int]] = [
    (0, 0), (1, 1), (8, 8), (2**31 - 1, 2**31 - 1), (2**31, -1), (-1, -1)
]  # fmt: skip
BYTES_PER_MB = 10**6


@examples(40)
@given(randoms)
def test_iterators_of_a_pipeline(random: Random) -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    thread = drawing.line(host, "tf_data_private")
    # Only tf.data states which iterator another one belongs to.
    drawing.event(host, thread, "Iterator::Root", 0, 1, id=3, parent_id=1)
    expected: list[tuple[Any, ...]] = [(3, 1, -1, "", *[-1] * 8)]
    for number in range(random.randint(1, 4)):
        counts = {
            stat: drawn(random, COUNTS, -1)
            for stat in (
                "parallelism", "batch_size", "buffer_limit", "buffer_size", "buffered_elements",
                "buffered_bytes_MB", "cpu_budget", "threadpool_size", "ram_budget_megabytes",
            )
        }  # fmt: skip
        id_text, id_ = drawn(random, [(5, 5), (2**40, 2**40)], 0)
        parent_text, parent = drawn(random, [(7, 7)], 0)
        auto_text, auto = drawn(random, [("true", 1), ("false", 0), ("x", -1)], -1)
        shapes_text, shapes = drawn(random, [("[[2]]", "[[2]]")], "")
        stats = present(
            id=id_text, parent_id=parent_text, autotune=auto_text, shapes=shapes_text,
            **{stat: text for stat, (text, _) in counts.items()},
        )  # fmt: skip
        drawing.event(host, thread, "Iterator::Root::Map", 10 * number + 10, 5, **stats)
        read = {stat: value for stat, (_, value) in counts.items()}
        sizes = {
            stat: read[stat] * BYTES_PER_MB if read[stat] >= 0 else -1
            for stat in ("buffered_bytes_MB", "ram_budget_megabytes")
        }
        expected.append(
            (
                id_, parent, auto, shapes, read["parallelism"], read["batch_size"],
                max(read["buffer_limit"], read["buffer_size"]), read["buffered_elements"],
                sizes["buffered_bytes_MB"], read["cpu_budget"] if read["cpu_budget"] else -1,
                read["threadpool_size"], sizes["ram_budget_megabytes"],
            )
        )  # fmt: skip
    trace = drawing.read()
    table = trace.iterators
    columns = (
        table.iterator, table.parent, table.is_autotuned, None, table.parallelism,
        table.batch_size, table.buffer_size, table.buffered, table.buffered_bytes, table.cores,
        table.threads, table.memory_bytes,
    )  # fmt: skip
    texts = trace.texts(table.shapes)
    found = zip(*(texts if each is None else each.tolist() for each in columns), strict=True)
    assert list(found) == expected


NAMES: dict[str, EventKind] = {
    "PjitFunction(step)": EventKind.ANNOTATION,
    "PjitFunction(_where)": EventKind.ANNOTATION,
    "backend_compile": EventKind.COMPILE,
    "named range": EventKind.ANNOTATION,
    "$train.py:3 get_batch": EventKind.PYTHON,
    "$builtins next": EventKind.PYTHON,
    "$train.py:9 other": EventKind.PYTHON,
    "np.asarray(jax.Array)": EventKind.SYNCHRONIZE,
    "$dataloader.py:7 __next__": EventKind.INPUT_WAIT,
}


@examples(40)
@given(randoms)
def test_calls_that_compile_and_frames_that_make_batches(random: Random) -> None:
    drawing = Drawing()
    host = drawing.plane("/host:CPU")
    thread = drawing.line(host, "python")
    spans: list[tuple[str, int, int]] = []
    for _ in range(random.randint(1, 9)):
        begin = 1_000 * random.randrange(60)
        length = random.choice((1_000, 9_000, 10_000, 11_000, 30_000))
        spans.append((random.choice(list(NAMES)), begin, begin + length))
    spans = sorted(set(spans), key=lambda span: (span[1], -span[2], span[0]))
    for name, begin, end in spans:
        drawing.event(host, thread, name, begin, end - begin)
    calls = [span for span in spans if span[0].startswith("PjitFunction")]

    def begins_in(begin: int, end: int, *kinds: EventKind) -> bool:
        return any(NAMES[name] in kinds and begin <= at < end for name, at, _ in spans)

    def does_step(begin: int, end: int) -> bool:
        return begins_in(begin, end, EventKind.SYNCHRONIZE) or any(
            call[0] == "PjitFunction(step)" and begin <= call[1] < end for call in calls
        )

    expected = []
    for place, (name, begin, end) in enumerate(spans):
        kind = NAMES[name]
        if name.startswith("PjitFunction"):
            # Functions called while another one is traced belong to it.
            is_outermost = all(begin >= other[2] for other in spans[:place] if other in calls)
            if is_outermost and begins_in(begin, end, EventKind.COMPILE):
                kind = EventKind.COMPILE
        elif name in ("$train.py:3 get_batch", "$builtins next") and calls:
            is_called = any(call[1] <= begin < call[2] for call in calls)
            wrappers = [
                other
                for other in spans
                if other[0].startswith("$") and other[1] < begin < other[2]
                and not does_step(other[1], other[2])
            ]  # fmt: skip
            holds_fetch = name == "$builtins next" and begins_in(begin, end, EventKind.INPUT_WAIT)
            is_step = does_step(begin, end) or is_called or holds_fetch or len(wrappers) > 3
            if not is_step and end - begin >= 10_000:
                kind = EventKind.INPUT_WAIT
        expected.append((name, begin - spans[0][1], end - begin, kind))
    trace = drawing.read()
    events = trace.events
    found = [
        (trace.name(row), int(events.start_ns[row]), int(events.duration_ns[row]),
         EventKind(int(events.kind[row])))
        for row in range(len(events))
    ]  # fmt: skip
    assert sorted(found) == sorted(expected)
