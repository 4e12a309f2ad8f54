from __future__ import annotations

from tb_perfadvisor.rules.launch.host_work import PipelineMadeInStep
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tb_perfadvisor.trace import Trace

FUNCTION = "EagerExecute: __inference_one_step_on_data_distributed_461"
DATASETS = ("TensorDataset", "MapDataset")


def requests(
    *, make_ms: int, pipelines: int = 4, datasets: tuple[str, ...] = DATASETS, steps: int = 4
) -> Trace:
    """Steps that may make a pipeline, and then run a function for 2 ms."""
    builder, at = TraceBuilder("tensorflow"), 0
    for number in range(steps):
        length = ms(make_ms + 2)
        builder.step(number, at, at + length, name="train")
        if make_ms and number < pipelines:
            part = ms(make_ms) // (len(datasets) + 1)
            for place, name in enumerate((*datasets, "MakeIterator")):
                start = at + place * part
                builder.annotation(f"EagerExecute: {name}", start, start + part)
        builder.annotation(FUNCTION, at + ms(make_ms), at + length)
        builder.operator("dense/MatMul:MatMul", at + ms(make_ms), at + length, launches=False)
        at += length
    return builder.build()


def test_saves_all_but_the_function() -> None:
    checked = check_rule(
        PipelineMadeInStep,
        slow=requests(make_ms=20),
        fixed=requests(make_ms=0),
        saves="20ms",  # of which nine tenths are expected
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (ms(40), ms(80))
    assert finding.instance == "1 pipeline per step"
    assert [remedy.text[:20] for remedy in finding.remedies]


def test_a_request_of_several_batches_makes_a_pipeline_every_few_steps() -> None:
    (finding,) = find(PipelineMadeInStep, requests(make_ms=20, pipelines=3, steps=12)) or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == ms(60)  # three times


def test_what_is_made_twice_is_not_made_in_a_loop() -> None:
    assert find(PipelineMadeInStep, requests(make_ms=20, pipelines=2)) == ()


def test_an_iterator_of_a_dataset_that_is_there_is_not_its_making() -> None:
    assert find(PipelineMadeInStep, requests(make_ms=20, datasets=())) == ()


def test_just_below_and_just_above_the_limit() -> None:
    slow = requests(make_ms=18)  # 90 % of the step
    assert find(PipelineMadeInStep, slow, settings={"minimum_share": 0.91}) == ()
    assert find(PipelineMadeInStep, slow, settings={"minimum_share": 0.89})
