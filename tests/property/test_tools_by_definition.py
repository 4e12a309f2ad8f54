"""Results of TensorFlow's tools: each field present or absent, in both of their forms."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.tf_tools import ToolFile
from tb_perfadvisor.ingest.tf_tools.contents import Contents, Figure, StepPart, StepSums
from tb_perfadvisor.ingest.tf_tools.documents import read_document
from tb_perfadvisor.ingest.tf_tools.protos import read_proto
from tb_perfadvisor.ingest.tf_tools.reader import Result, merge
from tb_perfadvisor.trace import Aspect, OperatorTotal, Precision
from tests.support import tool_results
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)
TIMES = (0.0, 0.5, 1.25, 3.0)
GENERIC: dict[str, StepPart | None] = {
    "unknown": None, "output": StepPart.OUTPUT, "compute": StepPart.COMPUTE,
    "device_to_device": StepPart.DEVICE_TO_DEVICE, "host_compute": StepPart.HOST_COMPUTE,
    "prepare": StepPart.LAUNCH, "compile": StepPart.COMPILE, "wait_input": StepPart.INPUT,
    "to_device": StepPart.TO_DEVICE, "collectives": StepPart.COLLECTIVES,
}  # fmt: skip
TPU: dict[str, StepPart | None] = {
    "infeed": StepPart.INPUT, "sparse_infeed": StepPart.INPUT, "compute": StepPart.COMPUTE,
    "sparse_compute": StepPart.COMPUTE, "all_reduce": StepPart.COLLECTIVES,
    "all_reduce_wait": StepPart.WAITING, "outfeed": StepPart.OUTPUT, "idle": None,
}  # fmt: skip
TABLE: dict[str, StepPart | None] = {
    "noninfeedTimeMs": StepPart.COMPUTE, "computeTimeMs": StepPart.COMPUTE,
    "tcComputeTimeMs": StepPart.COMPUTE, "scv0ComputeTimeMs": StepPart.COMPUTE,
    "deviceComputeTimeMs": StepPart.COMPUTE, "infeedTimeMs": StepPart.INPUT,
    "inputTimeMs": StepPart.INPUT, "tcInfeedTimeMs": StepPart.INPUT,
    "scv0InfeedTimeMs": StepPart.INPUT, "tcOutfeedTimeMs": StepPart.OUTPUT,
    "outfeedTimeMs": StepPart.OUTPUT, "hostToDeviceTimeMs": StepPart.TO_DEVICE,
    "deviceToDeviceTimeMs": StepPart.DEVICE_TO_DEVICE, "idleTimeMs": None, "tcIdleTimeMs": None,
    "deviceCollectivesTimeMs": StepPart.COLLECTIVES, "hostComputeTimeMs": StepPart.HOST_COMPUTE,
    "kernelLaunchTimeMs": StepPart.LAUNCH, "compileTimeMs": StepPart.COMPILE, "otherTimeMs": None,
}  # fmt: skip
Step = tuple[int, float, dict[StepPart, float]]


def summed(
    number: int, values: dict[str, float], parts: dict[str, StepPart | None], whole: float = 0.0
) -> Step | None:
    """A step of the times of its parts; None if it takes no time."""
    sums: dict[StepPart, float] = {}
    for name, value in values.items():
        if (part := parts[name]) is not None and value:
            sums[part] = sums.get(part, 0.0) + value
    length = whole or sum(values.values())
    return (number, length, sums) if length else None


def steps_of(contents: Contents) -> list[Step]:
    return [(step.number, step.duration_ms, dict(step.parts_ms)) for step in contents.steps]


def times(random: Random, names: dict[str, StepPart | None]) -> dict[str, float]:
    return {name: random.choice(TIMES) for name in names if random.random() < 0.5}


def stages_of(random: Random) -> tuple[list[tuple[str, int, float, float, str]], Any]:
    """Operators of an input pipeline, and how they are read: the costliest first."""
    rows = [
        (f"s{place}", random.randrange(3), random.choice(TIMES), random.choice(TIMES), "Map")
        for place in range(random.choice((0, 0, 3)))
    ]
    read = [
        OperatorTotal(name, kind, False, count, int(total * 1e6), int(own * 1e6))
        for name, count, total, own, kind in rows
    ]
    return rows, tuple(sorted(read, key=lambda stage: -stage.self_ns))


PERCENT = (0.0, 12.5, 100.0, 100.5, -1.0)
LABELS = {
    2: "device idle", 3: "host idle", 7: "of the roofline's FLOP rate",
    8: "of the memory's bandwidth",
    12: "of operators on the device, including those of the input pipeline",
}  # fmt: skip


def share(percent: float | None) -> float | None:
    return percent / 100 if percent is not None and 0 <= percent <= 100 else None


def assert_percentages(found: Contents, percent: dict[int, float]) -> None:
    shares = {number: share(value) for number, value in percent.items()}
    assert [(figure.label, figure.share) for figure in found.figures] == [
        (label, shares[number]) for number, label in LABELS.items() if shares.get(number)
    ]
    assert found.matrix_unit_share == (shares.get(1) or None)
    widths = shares.get(9) or 0.0, shares.get(10) or 0.0
    expected = {Precision.BITS_16: widths[0], Precision.BITS_32: widths[1]}
    assert found.precision == (expected if any(widths) else None)


@examples(60)
@given(randoms)
def test_messages(random: Random) -> None:
    is_tpu, knows_collectives = random.random() < 0.4, random.random() < 0.5
    names = TPU if is_tpu else GENERIC
    written, expected = [], []
    for number in range(random.randint(1, 3)):
        values = times(random, names)
        whole = 0.0 if is_tpu else random.choice((0.0, 9.0))
        write = tool_results.tpu_step if is_tpu else tool_results.generic_step
        given_whole = {"step": whole} if whole else {}
        written.append(write(number, **values, **given_whole))
        step = summed(number, values, names, whole)
        expected += [step] if step is not None else []
    rows, stages = stages_of(random)
    mean = random.choice((None, 0.0, 7.5))
    pipeline = tool_results.input_pipeline(
        *written, hardware="H", mean=mean, stages=[tool_results.stage(*row) for row in rows],
        knows_collectives=knows_collectives, errors=["e"],
    )  # fmt: skip
    shows = {Aspect.INPUT, Aspect.COMMUNICATION}
    if not is_tpu:
        has_input = bool(rows) or any(StepPart.INPUT in parts for *_, parts in expected)
        shows = {Aspect.COPIES, Aspect.HOST} | ({Aspect.INPUT} if has_input else set())
        shows |= {Aspect.COMMUNICATION} if knows_collectives else set()
    alone = read_proto("input_pipeline", pipeline, where="f")
    percent = {
        at: random.choice(PERCENT) for at in (1, 2, 3, 7, 8, 9, 10, 12) if random.random() < 0.7
    }
    cores, hosts = random.choice((0, 1, 8, 65_536, 65_537)), random.choice((1, 2))
    device = random.choice(("", "TPU v5e"))
    page = tool_results.overview(pipeline, percent=percent, device=device, cores=cores, hosts=hosts)
    # OverviewPage: 8 diagnostics, of these 2 warnings and 3 errors, which come first.
    page += tool_results.message((8, tool_results.message((2, "w"), (3, "e"), (2, "v"))))
    whole_page = read_proto("overview_page", page, where="f")
    assert whole_page.messages == ("e", "w", "v")
    for found in (alone, whole_page):
        assert steps_of(found) == expected
        assert found.stated_mean_ms == (mean or None)
        assert found.input_stages == stages
    assert (alone.device_type, alone.messages, set(alone.shows)) == ("H", ("e",), shows)
    assert whole_page.device_type == (device or "H")
    assert whole_page.device_count == (cores if 1 <= cores <= 65_536 else None)
    is_alone = (cores, hosts) == (1, 1)
    assert set(whole_page.shows) == shows | ({Aspect.COMMUNICATION} if is_alone else set())
    assert_percentages(whole_page, percent)


@examples(60)
@given(randoms)
def test_tables_in_json(random: Random) -> None:
    columns = [name for name in TABLE if random.random() < 0.4]
    rows, expected = [], []
    for number in range(random.randint(1, 3)):
        values = {name: random.choice(TIMES) for name in columns}
        is_text = random.random() < 0.3
        rows.append([str(at) if is_text else at for at in (number, *values.values())])
        step = summed(number, values, TABLE)
        expected += [step] if step is not None else []
    by_column = dict(zip(["stepnum", *columns], zip(*rows, strict=True), strict=True))
    stage_rows, stages = stages_of(random)
    keys = ("opName", "count", "timeInMs", "selfTimeInMs", "category")
    tables = [tool_results.chart_table(by_column)]
    if stage_rows:
        stage_columns = dict(zip(keys, zip(*stage_rows, strict=True), strict=True))
        tables.append(tool_results.chart_table(stage_columns))
        # A table without the times of its operators is not that of the stages.
        tables.insert(0, tool_results.chart_table({"opName": ["x"], "count": [1]}))
    fields = {
        1: "mxu_utilization_percent", 2: "device_idle_time_percent", 3: "host_idle_time_percent",
        7: "flop_rate_utilization_relative_to_roofline",
        8: "memory_bw_utilization_relative_to_hw_limit", 9: "device_compute_16bit_percent",
        10: "device_compute_32bit_percent", 12: "device_tf_op_percent",
    }  # fmt: skip
    percent = {number: random.choice((0.0, 12.5, 100.0, 100.5)) for number in fields}
    properties = {fields[number]: f"{value}%" for number, value in percent.items()}
    cores = random.choice((None, "1 (one)", "8 (Replica count = 8)", "65537"))
    if cores is not None:
        properties["device_core_count"] = cores
    mean = random.choice(("0", "7.5"))
    properties |= {"steptime_ms_average": mean, "hardware_type": "H"}
    tables.append({"p": properties})
    found = read_document("overview_page", tool_results.document(tables), where="f")
    assert steps_of(found) == expected
    assert found.stated_mean_ms == (float(mean) or None)
    assert (found.input_stages, found.device_type) == (stages, "H")
    counts = {None: None, "1 (one)": 1, "8 (Replica count = 8)": 8, "65537": None}
    assert found.device_count == counts[cores]
    assert_percentages(found, percent)
    parts = {TABLE[name] for name in columns}
    shows = set()
    has_input = any(StepPart.INPUT in of_step for *_, of_step in expected)
    if StepPart.INPUT in parts and (StepPart.HOST_COMPUTE not in parts or stages or has_input):
        shows.add(Aspect.INPUT)
    if StepPart.COLLECTIVES in parts or cores == "1 (one)":
        shows.add(Aspect.COMMUNICATION)
    if StepPart.DEVICE_TO_DEVICE in parts:
        shows.add(Aspect.COPIES)
    if StepPart.HOST_COMPUTE in parts:
        shows.add(Aspect.HOST)
    assert set(found.shows) == shows


POD = {
    "hostInfeedDurationUs": StepPart.INPUT, "hostOutfeedDurationUs": StepPart.OUTPUT,
    "allReduceComputeDurationUs": StepPart.COLLECTIVES, "crsDurationUs": StepPart.COLLECTIVES,
    "allReduceSyncDurationUs": StepPart.WAITING, "sendDurationUs": StepPart.BETWEEN_CORES,
    "recvDurationUs": StepPart.BETWEEN_CORES,
}  # fmt: skip


@examples(40)
@given(randoms)
def test_cores_of_a_pod(random: Random) -> None:
    steps, expected, most = [], [], 0
    for number in range(random.randint(1, 3)):
        cores: dict[str, dict[str, float]] = {}
        for core in range(random.randint(0, 3)):
            values = {name: 1000.0 * random.randrange(3) for name in POD if random.random() < 0.5}
            cores[str(core)] = {"totalDurationUs": 1000.0 * random.randint(1, 9), **values}
        most = max(most, len(cores))
        is_numbered = random.random() < 0.7
        steps.append({"podStatsPerCore": cores} | ({"stepNum": number} if is_numbered else {}))
        if not cores:
            continue
        slowest = max(cores.values(), key=lambda core: core["totalDurationUs"])
        whole = slowest["totalDurationUs"] / 1000
        sums: dict[StepPart, float] = {}
        for name, part in POD.items():
            sums[part] = sums.get(part, 0.0) + slowest.get(name, 0.0) / 1000
        sums[StepPart.COMPUTE] = max(whole - sum(sums.values()), 0.0)
        used = {part: value for part, value in sums.items() if value}
        expected.append((number if is_numbered else -1, whole, used))
    document = {"podStatsSequence": {"podStatsMap": steps}, "runEnvironment": {"tpuType": "T"}}
    found = read_document("pod_viewer", tool_results.document(document), where="f")
    assert steps_of(found) == expected
    assert (found.device_count, found.device_type) == (most or None, "T")
    assert set(found.shows) == {Aspect.INPUT, Aspect.COMMUNICATION}


@examples(40)
@given(randoms)
def test_memory_and_categories(random: Random) -> None:
    allocators: dict[str, dict[str, Any]] = {
        name: {
            "profileSummary": {
                "peakStats": {"peakBytesInUse": random.choice(("0", 10, "20", 30, "1e19"))},
                "memoryCapacity": random.choice((0, 5, "20", "100")),
            }
        }
        for name in ("GPU_0_bfc", "GPU_1_bfc", "gpu_host_bfc", "mklcpu")
        if random.random() < 0.7
    }
    read = {"0": 0, 10: 10, "20": 20, 30: 30, "1e19": 0, 0: 0, 5: 5, "100": 100}  # 2^62 is 4.6e18
    peaks = [
        (read[each["peakStats"]["peakBytesInUse"]], read[each["memoryCapacity"]])
        for name, allocator in allocators.items()
        for each in allocator.values()
        if name.startswith("GPU")
    ]
    document = {"memoryProfilePerAllocator": allocators}
    found = read_document("memory_profile", tool_results.document(document), where="f")
    peak, limit = max((pair for pair in peaks if pair[0]), default=(0, 0))
    assert found.peak_allocated_bytes == (peak or None)
    assert found.memory_bytes == (limit if peak and limit >= peak else None)
    sizes = [random.choice((0, 7, "9")) for _ in range(random.randrange(4))]
    document = {"bufferAssignment": {"bufferAllocations": [{"size": size} for size in sizes]}}
    found = read_document("memory_viewer", tool_results.document(document), where="f")
    assert found.peak_allocated_bytes == (sum(map(int, sizes)) or None)
    parts = [random.choice((0, 0.1, 0.25, 1, 1.5)) for _ in range(random.randrange(6))]
    children = [{"name": str(at), "metrics": {"time": part}} for at, part in enumerate(parts)]
    document = {"byCategory": {"name": "root", "children": children}}
    found = read_document("op_profile", tool_results.document(document), where="f")
    usable = sorted((part for part in parts if 0 < part <= 1), reverse=True)
    assert [figure.share for figure in found.figures] == usable[:3]


@examples(40)
@given(randoms)
def test_operators_and_kernels(random: Random) -> None:
    records = [
        (
            random.choice(("Device", "Host")), random.choice(("MatMul", "Dataset", "IDLE", "Add")),
            f"op{place}", random.choice((0, 1, 5)), random.choice(TIMES), random.choice(TIMES),
        )
        for place in range(random.randint(1, 6))
    ]  # fmt: skip
    found = read_proto("tensorflow_stats", tool_results.tensorflow_stats(*records), where="f")
    totals = [
        OperatorTotal(name, kind, place == "Device", count, int(total * 1e3), int(own * 1e3))
        for place, kind, name, count, total, own in records
        if kind != "IDLE"
    ]
    assert found.operators == tuple(each for each in totals if each.type != "Dataset")
    stages = [each for each in totals if each.type == "Dataset" and not each.is_on_device]
    assert list(found.input_stages) == sorted(stages, key=lambda stage: -stage.self_ns)
    on_device = sum(each.count for each in totals if each.is_on_device)
    count = sum(each.count for each in totals)
    shares = [figure.share for figure in found.figures]
    assert shares == ([on_device / count] if on_device else [])
    by_type: dict[str, list[int]] = {}
    for each in totals:
        if each.is_on_device:
            sums = by_type.setdefault(each.type, [0, 0])
            sums[0] += each.count
            sums[1] += each.self_ns
    kernels = [(kernel.name, kernel.count, kernel.total_ns) for kernel in found.kernels]
    assert kernels == sorted(
        ((name, *sums) for name, sums in by_type.items()), key=lambda kernel: -kernel[2]
    )
    reports = [
        (random.choice("ab"), random.choice((0, 5, 7)), random.randrange(3)) for _ in range(4)
    ]
    found = read_proto("kernel_stats", tool_results.kernel_stats(*reports), where="f")
    by_name: dict[str, list[int]] = {}
    for name, time_ns, number in reports:
        sums = by_name.setdefault(name, [0, 0])
        sums[0] += number
        sums[1] += time_ns
    kernels = [(kernel.name, kernel.count, kernel.total_ns) for kernel in found.kernels]
    assert kernels == sorted(
        ((name, *sums) for name, sums in by_name.items()), key=lambda kernel: -kernel[2]
    )


TOOLS = ("overview_page", "pod_viewer", "input_pipeline", "kernel_stats", "memory_profile")


def drawn_result(random: Random, tool: str) -> Result:
    """A file with some steps, and with some of what files can say."""
    steps = []
    if tool in TOOLS[:3]:
        for number in range(random.choice((0, 2, 2))):
            # A hundredth more or less is rounding; more is another recording.
            length = random.choice((100.0, 100.0, 100.5, 101.0, 101.1, 150.0))
            parts = {StepPart.COMPUTE: random.choice((5.0, 90.0))}
            if tool == "pod_viewer":
                parts |= {StepPart.COLLECTIVES: 10.0, StepPart.WAITING: 5.0}
            steps.append(StepSums(random.choice((number, number, 9)), length, parts))
    aspects = [aspect for aspect in (Aspect.INPUT, Aspect.HOST) if random.random() < 0.5]
    if tool == "pod_viewer":
        aspects = [Aspect.INPUT, Aspect.COMMUNICATION]
    contents = Contents(
        steps=tuple(steps),
        shows=frozenset(aspects),
        device_type=random.choice(("", f"type of {tool}")),
        device_count=random.choice((None, len(tool))),
        peak_allocated_bytes=random.choice((None, 7 * len(tool))),
        messages=random.choice(((), ("a",), ("b", "a"))),
        figures=(Figure(random.choice("xy"), len(tool) / 100),),
        stated_mean_ms=random.choice((None, 100.0, 101.0, 102.1)),
    )
    form: Any = random.choice(("pb", "json"))
    return Result(f"run/h.{tool}.{form}", ToolFile("h", tool, form), contents)


def is_near(left: float, right: float) -> bool:
    return abs(left - right) <= 0.01 * max(left, right)


@examples(80)
@given(randoms)
def test_files_of_one_host(random: Random) -> None:
    results = [drawn_result(random, tool) for tool in TOOLS if random.random() < 0.7]
    random.shuffle(results)
    with_steps = [result for result in results if result.contents.steps]
    if not with_steps:
        return

    def order(result: Result) -> tuple[bool, bool, bool]:
        tool = result.file.tool
        return tool == "pod_viewer", result.file.form != "pb", tool != "input_pipeline"

    chosen = min(with_steps, key=order)

    def mean(result: Result) -> float:
        lengths = [step.duration_ms for step in result.contents.steps]
        return sum(lengths) / len(lengths)

    excluded = [
        result
        for result in sorted(with_steps, key=order)
        if result is not chosen and not is_near(mean(result), mean(chosen))
    ]
    agreeing = sorted(
        (result for result in results if result not in excluded),
        key=lambda result: TOOLS.index(result.file.tool),
    )
    shows = {
        aspect
        for result in agreeing
        if result.file.tool != "pod_viewer" or result is chosen
        for aspect in result.contents.shows
    }
    steps = [(step.number, dict(step.parts_ms)) for step in chosen.contents.steps]
    pods = [result for result in agreeing if result.file.tool == "pod_viewer"]
    if pods and chosen not in pods:
        split = []
        for step in chosen.contents.steps:
            same = [other for other in pods[0].contents.steps if other.number == step.number]
            # Fifteen milliseconds of compute were communication.
            if same and is_near(step.duration_ms, same[0].duration_ms):
                compute = step.parts_ms[StepPart.COMPUTE] - 15.0
                parts = {StepPart.COMPUTE: compute, StepPart.COLLECTIVES: 10.0}
                parts |= {StepPart.WAITING: 5.0, StepPart.BETWEEN_CORES: 0.0}
                split += [(step.number, parts)] if compute >= 0 else []
        if len(split) == len(steps):
            steps = split
            shows.add(Aspect.COMMUNICATION)
    found = merge(results, where="run")
    assert [(step.number, dict(step.parts_ms)) for step in found.contents.steps] == steps
    assert (found.path, set(found.contents.shows)) == (chosen.path, shows)
    for field in ("device_type", "device_count", "peak_allocated_bytes"):
        stated = [getattr(result.contents, field) for result in agreeing]
        first = next((value for value in stated if value), None)
        assert getattr(found.contents, field) == (first or ("" if field == "device_type" else None))
    messages = [text for result in agreeing for text in result.contents.messages]
    assert list(found.contents.messages) == sorted(set(messages), key=messages.index)
    figures = [figure for result in agreeing for figure in result.contents.figures]
    labels = [figure.label for figure in figures]
    assert list(found.contents.figures) == [
        figures[labels.index(label)] for label in sorted(set(labels), key=labels.index)
    ]
    stated = chosen.contents.stated_mean_ms
    problems = bool(excluded) + (stated is not None and not is_near(stated, mean(chosen)))
    problems += any(
        sum(step.parts_ms.values()) > 1.01 * step.duration_ms for step in chosen.contents.steps
    )
    assert [note.id for note in found.notes] == ["results-disagree"] * problems
