from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.comparison.differences import differences
from tb_perfadvisor.comparison.run_facts import RunFacts, ShapeUse
from tests.support.comparison_facts import facts, setup, times

STEPS = (100, 101, 102)


def warnings(base: RunFacts, target: RunFacts) -> dict[str, str]:
    return {warning.id: warning.message for warning in differences(base, target)}


def test_equal_runs() -> None:
    some = facts(
        *STEPS,
        setup=setup(batch=32, precision={"16": 1.0}, has_stacks=True, world_size=8, version="1"),
        operators=times(("aten::mm", 10)),
        shapes=[ShapeUse(name="aten::mm", shapes="[[8,4],[4,2]]", total_ns=10)],
    )
    assert warnings(some, some) == {}


@pytest.mark.parametrize(
    ("before", "after", "id", "message"),
    [
        (
            {"framework": "pytorch"},
            {"framework": "jax"},
            "framework-differs",
            "The framework differs: pytorch in the base, jax in the target.",
        ),
        (
            {"batch": 32},
            {"batch": 64},
            "batch-differs",
            "The batch differs: 32 in the base, 64 in the target. Compare samples per second "
            "instead of step times.",
        ),
        (
            {"device": "Tesla V100-SXM2-16GB"},
            {"device": "NVIDIA H100 80GB HBM3"},
            "device-differs",
            "The device differs: Tesla V100-SXM2-16GB in the base, NVIDIA H100 80GB HBM3 in the "
            "target.",
        ),
        ({"device": None}, {"device": ""}, "device-differs", "CPU in the base, unknown in the"),
        ({"devices_used": 1}, {"devices_used": 4}, "devices-differ", "devices used differs: 1"),
        ({"world_size": 8}, {"world_size": 16}, "ranks-differ", "The number of ranks differs: 8"),
        ({"workers": 1}, {"workers": 2}, "ranks-differ", "The number of ranks differs: 1"),
        (
            {"world_size": 8, "workers": 1},
            {"world_size": 8, "workers": 8},
            "ranks-differ",
            "The number of recorded ranks differs: 1 in the base, 8 in the target.",
        ),
        ({"version": "CUDA 11.8"}, {"version": "CUDA 12.4"}, "version-differs", "CUDA 11.8 in"),
        (
            {"has_stacks": True, "has_memory": False},
            {"has_stacks": False, "has_memory": True},
            "recording-differs",
            "The profiler recorded Python stacks only in the base; memory only in the target.",
        ),
        (
            {"precision": {"16": 0.0, "32": 1.0, "unknown": 0.0}},
            {"precision": {"16": 0.9, "32": 0.05, "unknown": 0.05}},
            "precision-differs",
            "in shares of compute time: 16-bit 0.0 % → 90.0 %, 32-bit 100.0 % → 5.0 %.",
        ),
    ],
)
def test_different_setups(
    before: dict[str, Any], after: dict[str, Any], id: str, message: str
) -> None:
    found = warnings(facts(*STEPS, setup=setup(**before)), facts(*STEPS, setup=setup(**after)))
    assert list(found) == [id]
    assert message in found[id]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # An unknown value is no difference.
        ({"batch": None}, {"batch": 64}),
        ({"version": ""}, {"version": "CUDA 12.4"}),
        ({"has_stacks": None}, {"has_stacks": True}),
        ({"precision": None}, {"precision": {"16": 1.0}}),
        ({"world_size": 1}, {"world_size": None}),
        # Less than a tenth of the compute time; an unknown share may be anything.
        ({"precision": {"16": 0.0, "32": 1.0}}, {"precision": {"16": 0.09, "32": 0.91}}),
        ({"precision": {"16": 1.0, "unknown": 0.0}}, {"precision": {"16": 0.95, "unknown": 0.5}}),
        # A different framework has a different recorder: one warning is enough.
    ],
)
def test_setups_without_a_warning(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert warnings(facts(*STEPS, setup=setup(**before)), facts(*STEPS, setup=setup(**after))) == {}


def test_a_different_framework_does_not_warn_about_its_recorder() -> None:
    base = facts(*STEPS, setup=setup(framework="pytorch", version="torch.profiler"))
    target = facts(*STEPS, setup=setup(framework="jax", version="jax 0.4"))
    assert list(warnings(base, target)) == ["framework-differs"]


def use(name: str, shapes: str, total_ns: int) -> ShapeUse:
    return ShapeUse(name=name, shapes=shapes, total_ns=total_ns)


def test_different_shapes() -> None:
    base = facts(*STEPS, shapes=[use("aten::mm", "[[8,128]]", 80), use("aten::add", "[[8]]", 20)])
    longer = facts(*STEPS, shapes=[use("aten::mm", "[[8,256]]", 80), use("aten::add", "[[8]]", 20)])
    found = warnings(base, longer)
    assert found["shapes-differ"] == (
        "The shapes of operators differ: only 20.0 % of their time is on shapes that both runs "
        "have. aten::mm has [[8,128]] in the base and [[8,256]] in the target."
    )
    # A different batch size explains it better.
    both = [
        facts(*STEPS, shapes=f.shapes, setup=setup(batch=b)) for f, b in ((base, 8), (longer, 9))
    ]
    assert list(warnings(*both)) == ["batch-differs"]


def test_shapes_that_only_one_run_has() -> None:
    # A smaller last batch: 9 % of the time.
    base = facts(*STEPS, shapes=[use("aten::mm", "[[8,4]]", 100)])
    last = facts(*STEPS, shapes=[use("aten::mm", "[[8,4]]", 91), use("aten::mm", "[[3,4]]", 9)])
    assert warnings(base, last) == {}
    more = facts(*STEPS, shapes=[use("aten::mm", "[[8,4]]", 80), use("aten::mm", "[[3,4]]", 20)])
    assert (
        "aten::mm has [[8,4]] in the base and [[3,4]] in the target"
        in (warnings(base, more)["shapes-differ"])
    )
    assert (
        "aten::mm has [[3,4]] in the base and [[8,4]] in the target"
        in (warnings(more, base)["shapes-differ"])
    )
    # Different operators are not compared by shape.
    assert warnings(base, facts(*STEPS, shapes=[use("aten::bmm", "[[9,9]]", 100)])) == {}
    assert warnings(base, facts(*STEPS)) == {}


def test_a_different_program() -> None:
    base = facts(*STEPS, operators=times(("aten::mm", 60), ("aten::add", 40)))
    compiled = facts(*STEPS, operators=times(("CompiledFunction", 60), ("aten::add", 40)))
    assert warnings(base, compiled)["program-differs"].startswith(
        "Only 40.0 % of the operators' time"
    )
    similar = facts(*STEPS, operators=times(("aten::mm", 55), ("aten::mul", 45)))
    assert warnings(base, similar) == {}


def test_steps_from_different_sources() -> None:
    target = facts(*STEPS, step_source="XLA modules")
    assert warnings(facts(*STEPS), target)["steps-differ"].startswith(
        "The steps come from ProfilerStep in the base and from XLA modules in the target"
    )


def test_few_steps() -> None:
    assert warnings(facts(*STEPS), facts(100)) == {
        "few-steps": "A single step of the target cannot show how much steps vary. Record ten."
    }
    assert warnings(facts(100, 101), facts(*STEPS))["few-steps"].startswith("2 steps of the base")


def test_causes_that_one_profile_does_not_show() -> None:
    base, target = facts(*STEPS, input_wait_share=0.4), facts(*STEPS)
    assert warnings(base, target) == {
        "unseen": "The target's profile does not show waiting for input. Any such "
        "time counts as something else there."
    }
    assert warnings(target, base)["unseen"].startswith("The base's profile does not show waiting")


def test_truncated_and_synthetic_profiles() -> None:
    assert warnings(facts(*STEPS), facts(*STEPS, is_truncated=True)) == {
        "truncated": "A file of the target is truncated, so its end is missing."
    }
    assert list(warnings(facts(*STEPS, is_synthetic=True), facts(*STEPS))) == ["synthetic"]
