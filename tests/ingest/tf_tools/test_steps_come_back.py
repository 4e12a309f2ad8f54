"""Attribution gives the times of the files for each step and cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals import Cause, Signals, collectives_of
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import CopyDirection, Trace
from tests.support.tool_results import (
    chart_table,
    document,
    generic_step,
    input_pipeline,
    overview,
    read,
    tpu_step,
)


def steps_of(trace: Trace) -> dict[str, list[int]]:
    """Nanoseconds of each step by cause, without causes that take no time."""
    totals = Signals(run_of(trace)).attribution.step_total_ns
    return {cause.value: total.tolist() for cause, total in totals.items() if total.any()}


GPU = input_pipeline(
    # 1.5 + 0.25 + 0.5 + 0.125 + 3 + 2 + 1 + 0.5 + 0.25 + 0.375 = 9.5, and 0.5 unknown
    generic_step(
        7,
        step=10.0,
        unknown=0.5,
        wait_input=1.5,
        compile=0.25,
        prepare=0.5,
        host_compute=0.125,
        to_device=3.0,
        compute=2.0,
        collectives=1.0,
        device_to_device=0.5,
        output=0.625,
    ),
    generic_step(8, step=4.000001, compute=4.000001),
    knows_collectives=True,
)


def test_gpu_steps_come_back() -> None:
    trace = read({"h.input_pipeline.pb": GPU})
    signals = Signals(run_of(trace))
    assert signals.steps.number.tolist() == [7, 8]
    assert signals.steps.duration_ns.tolist() == [10_000_000, 4_000_001]
    assert steps_of(trace) == {
        "input": [1_500_000, 0],
        "compiling": [250_000, 0],
        "launching": [500_000, 0],
        "framework": [125_000, 0],
        "compute-unknown": [2_000_000, 4_000_001],
        "communication": [1_000_000, 0],
        "copies": [4_125_000, 0],  # 3 to the device, 0.5 within, 0.625 back
        "unexplained": [500_000, 0],
    }
    assert sorted(trace.copies.direction.tolist()) == [
        CopyDirection.HOST_TO_DEVICE,
        CopyDirection.DEVICE_TO_HOST,
        CopyDirection.DEVICE_TO_DEVICE,
    ]


def test_steps_of_a_cpu_program_come_back() -> None:
    step = generic_step(0, step=6.0, unknown=0.5, wait_input=1.0, prepare=0.5, host_compute=4.0)
    trace = read({"h.input_pipeline.pb": input_pipeline(step, hardware="CPU_ONLY")})
    assert steps_of(trace) == {
        "host-compute": [4_000_000],
        "input": [1_000_000],
        "launching": [500_000],
        "unexplained": [500_000],
    }
    assert Signals(run_of(trace)).device.is_host_only
    assert trace.devices == ()


def test_tpu_steps_come_back() -> None:
    step = tpu_step(
        3,
        compute=5.0,
        sparse_compute=0.5,
        infeed=2.0,
        sparse_infeed=0.25,
        outfeed=0.5,
        all_reduce=1.0,
        all_reduce_wait=0.75,
        idle=1.5,
        host_transfer=0.125,  # not part of the step, according to TensorFlow's sum
    )
    trace = read({"h.input_pipeline.pb": input_pipeline(step, hardware="TPU")})
    signals = Signals(run_of(trace))
    # 5.5 + 2.25 + 0.5 + 1.75 + 1.5
    assert signals.steps.duration_ns.tolist() == [11_500_000]
    assert steps_of(trace) == {
        "compute-unknown": [5_500_000],
        "input": [2_250_000],
        "copies": [500_000],
        "communication": [1_750_000],
        "unexplained": [1_500_000],
    }
    assert collectives_of(signals).transfer_ns.tolist() == [1_000_000]
    assert collectives_of(signals).operation == ("all-reduce",)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"stepnum": ["1"], "noninfeedTimeMs": [21.5], "infeedTimeMs": [145.75]},
            {"compute-unknown": [21_500_000], "input": [145_750_000]},
        ),
        (
            {
                "stepnum": ["1"],
                "computeTimeMs": [3.0],
                "inputTimeMs": [2.0],
                "idleTimeMs": [1.0],
                "tooltip": ["step 1"],
            },
            {
                "compute-unknown": [3_000_000],
                "input": [2_000_000],
                "unexplained": [1_000_000],
            },
        ),
        (
            {
                "stepnum": ["1"],
                "tcComputeTimeMs": [3.0],
                "scv0ComputeTimeMs": [0.5],
                "scv0InfeedTimeMs": [0.25],
                "tcInfeedTimeMs": [2.0],
                "tcOutfeedTimeMs": [0.75],
                "tcIdleTimeMs": [1.0],
                "hostTransferTimeMs": [0.5],
            },
            {
                "compute-unknown": [3_500_000],
                "input": [2_250_000],
                "copies": [750_000],
                "unexplained": [1_000_000],
            },
        ),
        (
            {
                "stepnum": ["1"],
                "deviceComputeTimeMs": [3.0],
                "deviceToDeviceTimeMs": [0.5],
                "deviceCollectivesTimeMs": [0.25],
                "hostComputeTimeMs": [1.0],
                "kernelLaunchTimeMs": [0.75],
                "infeedTimeMs": [2.0],
                "outfeedTimeMs": [0.125],
                "compileTimeMs": [4.0],
                "otherTimeMs": [5.0],
            },
            {
                "compute-unknown": [3_000_000],
                "copies": [625_000],
                "communication": [250_000],
                "framework": [1_000_000],
                "launching": [750_000],
                "input": [2_000_000],
                "compiling": [4_000_000],
                "unexplained": [5_000_000],
            },
        ),
    ],
    ids=["2018", "2020", "tensor core", "gpu"],
)
def test_steps_of_chart_tables_come_back(
    columns: dict[str, list[object]], expected: dict[str, list[int]]
) -> None:
    device = "GPU" if "deviceComputeTimeMs" in columns else "TPU"
    tables = [{}, chart_table(columns, {"hardware_type": device})]
    trace = read({"h.input_pipeline.json": document(tables)})
    assert steps_of(trace) == expected


def core(total: float, **values: float) -> dict[str, object]:
    return {"hostName": "h", "totalDurationUs": total, **values}


POD = {
    "podStatsSequence": {
        "podStatsMap": [
            {
                "stepNum": 221,
                "podStatsPerCore": {
                    "1": core(9_000, highFlopsComputeUs=8_000),
                    # the slowest core: 10 - 0.5 - 0.25 - 1 - 0.5 - 0.25 - 0.125 = 7.375 ms compute
                    "3": core(
                        10_000,
                        highFlopsComputeUs=5_000,
                        hostInfeedDurationUs=500,
                        hostOutfeedDurationUs=250,
                        allReduceComputeDurationUs=1_000,
                        allReduceSyncDurationUs=500,
                        sendDurationUs=250,
                        recvDurationUs=125,
                    ),
                },
            },
            {
                "stepNum": 222,
                "podStatsPerCore": {"1": core(4_000, crsDurationUs=1_500)},
            },
        ]
    },
    "runEnvironment": {"tpuType": "TPU v3"},
}


def test_steps_of_the_pod_viewer_come_back() -> None:
    trace = read({"h.pod_viewer.json": document(POD)})
    assert steps_of(trace) == {
        "compute-unknown": [7_375_000, 2_500_000],
        "communication": [1_875_000, 1_500_000],
        "copies": [250_000, 0],
        "input": [500_000, 0],
    }
    assert Signals(run_of(trace)).steps.number.tolist() == [221, 222]
    assert [device.name for device in trace.devices] == ["TPU v3", "TPU v3"]


def test_a_single_recorded_width_applies_to_every_kernel() -> None:
    files = {"h.input_pipeline.pb": GPU, "h.overview_page.pb": overview(percent={10: 100.0})}
    assert steps_of(read(files))["compute-32"] == [2_000_000, 4_000_001]


def test_with_two_recorded_widths_kernels_have_none() -> None:
    files = {
        "h.input_pipeline.pb": GPU,
        "h.overview_page.pb": overview(percent={9: 30.0, 10: 70.0}),
    }
    assert steps_of(read(files))["compute-unknown"] == [2_000_000, 4_000_001]


PARTS = {
    "wait_input": Cause.INPUT,
    "compile": Cause.COMPILING,
    "prepare": Cause.LAUNCHING,
    "host_compute": Cause.FRAMEWORK,
    "output": Cause.COPIES,
    "collectives": Cause.COMMUNICATION,
    "unknown": Cause.UNEXPLAINED,
}
DURATIONS = st.integers(0, 10**10)


@given(
    st.lists(
        st.fixed_dictionaries(
            {**dict.fromkeys(PARTS, DURATIONS), "compute": st.integers(1, 10**10)}
        ),
        min_size=1,
        max_size=6,
    )
)
def test_steps_sum_exactly(steps: list[dict[str, int]]) -> None:
    written = [
        generic_step(
            number,
            step=sum(parts.values()) / 1e6,
            **{name: value / 1e6 for name, value in parts.items()},
        )
        for number, parts in enumerate(steps)
    ]
    trace = read({"h.input_pipeline.pb": input_pipeline(*written, knows_collectives=True)})
    signals = Signals(run_of(trace))
    excluded = len(signals.steps.excluded)  # a first step that compiles is warm-up
    used = steps[excluded:]
    assert signals.steps.duration_ns.tolist() == [sum(parts.values()) for parts in used]
    for name, cause in {**PARTS, "compute": Cause.COMPUTE_UNKNOWN}.items():
        total = signals.attribution.step_total_ns[cause]
        assert total.tolist() == [parts[name] for parts in used]
