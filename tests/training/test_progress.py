"""Intervals between logged points."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.training.metrics import ScalarSeries
from tb_perfadvisor.training.progress import find_progress

S = 1_000_000_000


def series(*points: tuple[int, float]) -> ScalarSeries:
    """Points of (step, second)."""
    steps, seconds = zip(*points, strict=True)
    return ScalarSeries(
        np.array(steps, np.int64),
        np.array([int(second * S) for second in seconds], np.int64),
        np.ones(len(points)),
    )


def test_time_per_step_is_time_between_points_over_steps_between_them() -> None:
    progress = find_progress({"train/loss": series((0, 10), (10, 15), (30, 21))})
    assert progress is not None
    assert progress.tag == "train/loss"
    assert progress.first_step.tolist() == [0, 10]
    # 5 s for 10 steps, 6 s for 20 steps.
    assert progress.per_step_ns.tolist() == [0.5 * S, 0.3 * S]


def test_tag_that_is_logged_most_often_wins() -> None:
    rare, frequent = series((0, 0), (100, 50)), series((0, 0), (50, 25), (100, 50))
    progress = find_progress({"a/rare": rare, "b/frequent": frequent})
    assert progress is not None
    assert progress.tag == "b/frequent"


def test_tags_numbered_by_samples_are_not_steps() -> None:
    often = series((0, 0), (512, 1), (1024, 2))
    deepspeed, megatron = "Train/Samples/train_loss", "lm loss vs samples"
    assert find_progress({deepspeed: often, megatron: often}) is None
    progress = find_progress({megatron: often, "lm loss": series((0, 0), (2, 2))})
    assert progress is not None
    assert progress.tag == "lm loss"


def test_of_tags_logged_equally_often_the_loss_serves() -> None:
    points = series((0, 0), (10, 5), (20, 10))
    progress = find_progress({"a": points, "train/loss": points, "b": points})
    assert progress is not None
    assert progress.tag == "train/loss"


def test_evaluation_and_epochs_are_not_steps() -> None:
    often = series((0, 0), (1, 1), (2, 2), (3, 3))
    steps = series((0, 0), (100, 50), (200, 100))
    progress = find_progress({"val_loss": often, "epoch_loss": often, "loss": steps})
    assert progress is not None
    assert progress.tag == "loss"
    assert not progress.is_per_epoch


def test_epochs_serve_if_nothing_else_was_logged() -> None:
    once = series((5, 1))
    progress = find_progress({"train/epoch_loss": series((0, 0), (1, 60)), "graph": once})
    assert progress is not None
    assert progress.is_per_epoch
    assert progress.per_step_ns.tolist() == [60 * S]


def test_step_that_is_logged_twice_counts_once() -> None:
    progress = find_progress({"loss": series((0, 0), (10, 5), (10, 9), (20, 14))})
    assert progress is not None
    # The second interval begins at the first point of step 10.
    assert progress.elapsed_ns.tolist() == [5 * S, 9 * S]


def test_going_back_is_a_restart_and_no_interval() -> None:
    progress = find_progress({"loss": series((0, 0), (10, 5), (20, 10), (10, 40), (20, 45))})
    assert progress is not None
    assert progress.first_step.tolist() == [0, 10, 10]
    (restart,) = progress.restarts
    assert (restart.from_step, restart.to_step) == (20, 10)
    assert (restart.start_ns, restart.end_ns) == (10 * S, 40 * S)


def test_one_point_says_nothing() -> None:
    assert find_progress({"loss": series((3, 1))}) is None
    assert find_progress({}) is None
