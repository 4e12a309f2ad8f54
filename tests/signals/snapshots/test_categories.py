"""What a snapshot's memory is for, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.report.views.snapshot import SnapshotView, make_snapshot_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.snapshots.categories import snapshot_categories
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

MIB = 1 << 20
CALL: Frame = ("/v/torch/nn/modules/module.py", 1751, "_call_impl")
MAIN: Frame = ("/p/train.py", 20, "main")
WEIGHTS = (("/v/torch/nn/modules/module.py", 900, "_apply"), MAIN)
BUILT = (("/v/torch/nn/modules/linear.py", 100, "__init__"), ("/p/model.py", 9, "__init__"), MAIN)
BATCH = (("??", 0, "at::_ops::to_dtype_layout::call(at::Tensor const&)"), MAIN)
FORWARD = (("/p/model.py", 30, "forward"), CALL, MAIN)
BACKWARD = (("??", 0, "torch::autograd::generated::MmBackward0::apply(std::vector)"),)
OPTIMIZER = (("/v/torch/optim/adam.py", 400, "_init_group"), MAIN)
STEP = "Optimizer.step#AdamW.step"


class Training(Heap):
    """A program of which each step is drawn.

    Args:
        backward: The stack in the backward pass: none, where only Python's are recorded.
        earlier: Sizes of what was allocated before the history.
    """

    def __init__(self, *earlier: int, backward: tuple[Frame, ...] = BACKWARD) -> None:
        super().__init__(*(size * MIB for size in earlier))
        self.backward = backward

    def forward(self) -> list[int]:
        """A batch of 1, activations of 4 and 2, and a temporary of 8."""
        held = [self.make(MIB, *BATCH), self.make(4 * MIB, *FORWARD)]
        self.drop(self.make(8 * MIB, *FORWARD))
        return [*held, self.make(2 * MIB, *FORWARD)]

    def step(self, *, state: int = 0, is_annotated: bool = True) -> None:
        """Gradients of 3 and 5, and a temporary of 16 before the activations are freed."""
        batch, *activations = self.forward()
        gradients = [self.make(3 * MIB, *self.backward)]
        self.drop(self.make(16 * MIB, *self.backward), *activations)
        gradients.append(self.make(5 * MIB, *self.backward))
        if is_annotated:
            self.snapshot.annotate(STEP, duration_us=20)
        self.drop(self.make(MIB, *OPTIMIZER))
        if state:
            self.make(state * MIB, *OPTIMIZER)
        self.snapshot.wait(20)
        self.drop(batch, *gradients)


def view_of(trace: Trace) -> SnapshotView:
    view = make_snapshot_view(Signals(run_of(trace)))
    assert view is not None
    return view


def held_at_peak(trace: Trace) -> dict[str, float]:
    """MiB by category."""
    view = view_of(trace)
    held = {part.category: part.bytes / MIB for part in view.categories}
    assert sum(held.values()) * MIB == (view.peak_allocated_bytes if held else 0)
    return held


def recorded_from_the_start(backward: tuple[Frame, ...] = BACKWARD) -> Trace:
    training = Training(backward=backward)
    training.make(6 * MIB, *WEIGHTS)
    training.make(2 * MIB, *BUILT)
    for number in range(3):
        training.step(state=10 if number == 0 else 0)
    return training.trace()


@pytest.mark.parametrize("backward", [BACKWARD, ()], ids=["C++ and Python", "Python alone"])
def test_stacks_and_lives_tell_what_memory_is_for(backward: tuple[Frame, ...]) -> None:
    # From the second step on: parameters of 6 and 2, state of 10, a batch of 1, activations of 4
    # and 2, a gradient of 3, and the temporary of 16 of the backward pass.
    assert held_at_peak(recorded_from_the_start(backward)) == {
        "temporary": 16, "optimizer-state": 10, "parameters": 8,
        "activations": 6, "gradients": 3, "input": 1,
    }  # fmt: skip


def test_categories_at_the_end_of_each_step_and_over_time() -> None:
    view = view_of(recorded_from_the_start())
    ends = {course.category: course.step_end_bytes for course in view.course}
    # A step of the optimizer ends before its gradients and its batch are freed.
    assert {category: [size // MIB for size in held] for category, held in ends.items()} == {
        "parameters": [8] * 3, "optimizer-state": [10] * 3, "gradients": [8] * 3,
        "input": [1] * 3, "activations": [0] * 3, "temporary": [0] * 3,
    }  # fmt: skip
    assert view.step_end_bytes == [27 * MIB] * 3
    total = np.sum([course.bytes for course in view.course], axis=0)
    assert total.tolist() == view.allocated_bytes
    names = [phase.phase for phase in view.phases]
    assert names == ["forward", "backward", "optimizer"] * 3


def test_without_annotations_stacks_tell_where_the_optimizer_works() -> None:
    training = Training(8)
    for _ in range(3):
        training.step(is_annotated=False)
    # 8 MiB from before are as much as there are gradients: 3 and 5.
    assert held_at_peak(training.trace()) == {
        "temporary": 16, "parameters": 8, "activations": 6, "gradients": 3, "input": 1,
    }  # fmt: skip


def test_what_was_there_before_is_named_as_far_as_gradients_tell() -> None:
    training = Training(8, 16)
    for _ in range(3):
        training.step()
    held = held_at_peak(training.trace())
    assert (held["parameters"], held["earlier"]) == (8, 16)


def test_state_from_before_the_history_follows_from_sets_of_equal_sizes() -> None:
    training = Training(*(3, 5) * 3)
    for _ in range(3):
        training.step()
    held = held_at_peak(training.trace())
    # Parameters and two averages of each: 24 in three sets.
    assert (held["parameters"], held["optimizer-state"]) == (8, 16)
    assert "earlier" not in held


def test_micro_batches_have_activations_of_their_own() -> None:
    training = Training()
    for _ in range(3):
        gradients = []
        for _ in range(2):
            batch, *activations = training.forward()
            gradients.append(training.make(32 * MIB, *BACKWARD))
            training.drop(batch, *activations)
        training.snapshot.annotate(STEP)
        training.drop(training.make(MIB, *OPTIMIZER))
        training.drop(*gradients)
    # In the second backward pass of a step.
    assert held_at_peak(training.trace()) == {"gradients": 64, "activations": 6, "input": 1}


def test_what_a_program_keeps_is_no_activation() -> None:
    training = Training()
    for _ in range(3):
        training.make(7 * MIB, *FORWARD)
        training.step()
    held = held_at_peak(training.trace())
    assert (held["unknown"], held["activations"]) == (21, 6)


def test_a_forward_pass_that_never_ends_holds_what_earlier_ones_did() -> None:
    training = Training()
    training.step()
    training.step()
    training.forward()
    signals = Signals(run_of(training.trace()))
    found, course = snapshot_categories(signals), memory_course(signals)
    assert found is not None
    assert course is not None
    held = {
        category.value: int(size[0])
        for category, size in found.at(np.array([len(course) - 1])).items()
    }
    # One line made activations and a temporary, so what it made last is unknown.
    assert held == {"input": MIB, "unknown": 6 * MIB}


def test_memory_runs_out_in_the_second_forward_pass() -> None:
    training = Training()
    for _ in range(2):
        kept = training.make(4 * MIB, *FORWARD)
        training.make(MIB, *BACKWARD)
        training.drop(kept)
    training.make(40 * MIB, *FORWARD)
    # Whatever this line made was needed for the backward pass.
    assert held_at_peak(training.trace())["activations"] == 40


def test_a_closure_runs_the_passes_inside_the_step() -> None:
    training = Training()
    for _ in range(3):
        training.snapshot.annotate(STEP, duration_us=50)
        activation = training.make(4 * MIB, *FORWARD)
        gradient = training.make(2 * MIB, *BACKWARD)
        training.drop(activation)
        training.drop(training.make(MIB, *OPTIMIZER))
        training.snapshot.wait(50)
        training.drop(gradient)
    assert held_at_peak(training.trace()) == {"activations": 4, "gradients": 2}


def test_without_a_backward_pass_nothing_is_told() -> None:
    training = Training(100)
    training.forward()
    assert held_at_peak(training.trace()) == {}
    assert view_of(training.trace()).course == []
