"""Results of TensorFlow's profiler tools, as older versions stored them."""

from __future__ import annotations

from functools import cache
from random import Random

from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import SESSION
from tests.fuzz.json_changes import change_json
from tests.fuzz.message_changes import change_message
from tests.support.tool_results import (
    chart_table,
    document,
    generic_step,
    input_pipeline,
    kernel_stats,
    overview,
    stage,
    tensorflow_stats,
    tpu_step,
)


def some_results(random: Random) -> Files:
    """The results of one or more tools for the same session."""
    files = list(_results())
    random.shuffle(files)
    return tuple(files[: random.randint(1, len(files))])


@cache
def _results() -> Files:
    steps = [
        generic_step(number, step=10.0, wait_input=4.0, compute=5.0, to_device=1.0, compile=0.2)
        for number in range(5)
    ]
    stages = [stage("Iterator::Batch", 5, 20.0, 10.0, "Preprocessing")]
    pipeline = input_pipeline(*steps, stages=stages, mean=10.0)
    on_tpu = input_pipeline(
        *(tpu_step(number, infeed=1.0, compute=8.0, idle=0.5) for number in range(5)),
        hardware="TPU",
        knows_collectives=True,
    )
    stats = tensorflow_stats(
        ("Device", "MatMul", "a", 6, 90.0, 60.0), ("Host", "Cast", "b", 2, 9, 9)
    )
    files = {
        "h.input_pipeline.pb": pipeline,
        "t.input_pipeline.pb": on_tpu,
        "h.overview_page.pb": overview(
            pipeline, percent={1: 5.0, 2: 40.0, 10: 100.0}, device="GPU", cores=2
        ),
        "h.tensorflow_stats.pb": stats,
        "h.kernel_stats.pb": kernel_stats(("volta_sgemm", 700, 3)),
        "h.input_pipeline.json": document(
            [chart_table({"stepnum": ["1", "2"], "infeedPercentAverage": [40.0, 50.0]})]
        ),
        "h.pod_viewer.json": document(
            {
                "podStatsSequence": {
                    "podStatsMap": [
                        {
                            "stepNum": number,
                            "podStatsPerCore": {
                                "0": {"totalDurationUs": 900.0, "stepBreakdownUs": {"1": 300.0}}
                            },
                        }
                        for number in range(3)
                    ]
                }
            }
        ),
        "h.memory_profile.json": document(
            {"memoryProfilePerAllocator": {"GPU_0_bfc": {"profileSummary": {"peakStats": {}}}}}
        ),
        "h.memory_viewer.json": document(
            {"bufferAssignment": {"bufferAllocations": [{"size": "3"}]}}
        ),
        "h.op_profile.json": document({"byCategory": {"children": [{"metrics": {"time": 0.5}}]}}),
    }
    return tuple(
        SeedFile(
            f"run/{SESSION}/{name}", data, change_json if name.endswith(".json") else change_message
        )
        for name, data in files.items()
    )


# Some results hold no steps, which is an error for the user.
TF_TOOLS = Format("tf-tools", some_results, always_has_results=False)
