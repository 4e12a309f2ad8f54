"""What a run says of its speed in all."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.training.metrics import find_metrics, is_evaluation, known_metrics
from tb_perfadvisor.training.scalars import RunScalars, ScalarSeries
from tb_perfadvisor.training.training import Profile, describe_training

S = 1_000_000_000


def logged(value: float | list[float], *, steps: int = 21, every: int = 10) -> ScalarSeries:
    """Points each ten steps; a step takes a second."""
    step = np.arange(steps, dtype=np.int64) * every
    values = np.broadcast_to(np.asarray(value, dtype=np.float64), step.shape)
    return ScalarSeries(step, step * S, values)


@pytest.mark.parametrize(
    ("tag", "kind"),
    [
        ("perf/step_time_seconds", "step-time"),  # MaxText
        ("time_metrics/end_to_end(s)", "step-time"),  # torchtitan
        ("iteration-time", "step-time"),  # Megatron-LM
        ("train_step_timing in s", "step-time"),  # NeMo
        ("train/batch_steps_per_second", "steps-per-second"),  # Keras
        ("train/device/batches_per_sec", "steps-per-second"),  # Lightning
        ("throughput(tps)", "tokens-per-second"),  # torchtitan
        ("train/loss", "loss"),  # HF Trainer
        ("lm loss", "loss"),  # Megatron-LM
        ("reduced_train_loss", "loss"),  # NeMo
        ("train_loss_step", "loss"),  # Lightning
        ("train_loss", "loss"),  # Accelerate's examples
        ("learning/loss", "loss"),  # MaxText
        ("loss_metrics/global_avg_loss", "loss"),  # torchtitan
        ("train/train_samples_per_second", "samples-per-second"),  # HF Trainer
        ("perf/per_device_tokens_per_sec", "tokens-per-second"),  # MaxText
        ("lr-AdamW", "learning-rate"),  # Lightning
    ],
)
def test_tags_of_frameworks_are_known(tag: str, kind: str) -> None:
    assert {kind: name for kind, (name, _) in find_metrics([tag]).items()} == {kind: tag}


@pytest.mark.parametrize("tag", ["eval/samples_per_second", "val_loss", "validation/epoch_loss"])
def test_tags_of_evaluation_say_nothing_of_training(tag: str) -> None:
    assert is_evaluation(tag)
    assert find_metrics([tag]) == {}


def test_most_direct_measure_comes_first() -> None:
    tags = ["step_time", "perf/step_time_seconds"]
    assert find_metrics(tags)["step-time"][0] == "perf/step_time_seconds"


def test_every_metric_has_a_source() -> None:
    assert all(metric.source for metric in known_metrics())


def test_step_time_and_rates_are_medians() -> None:
    scalars = RunScalars(
        {
            "loss": logged(1.0),
            "step_time_ms": logged([900.0] * 20 + [5_000.0]),
            "throughput(tps)": logged(4_096.0),
            "samples_per_second": logged(float("nan")),
        }
    )
    training = describe_training(scalars)
    assert training is not None
    assert (training.first_step, training.last_step, training.step_ns) == (0, 200, S)
    assert training.elapsed_ns == 200 * S
    assert training.logged_step is not None
    assert training.logged_step.median_ns == pytest.approx(0.9 * S)
    assert training.tokens is not None
    assert (training.tokens.per_second, training.tokens.per_device) == (4_096.0, True)
    assert training.samples is None  # never a number


def test_recording_is_compared_with_the_steps_around_it() -> None:
    profile = Profile("session", 55 * S, 62 * S, step_ns=1.25 * S)
    training = describe_training(RunScalars({"loss": logged(1.0)}), [profile])
    assert training is not None
    (recording,) = training.recordings
    assert recording.first_step == 50
    assert recording.slowdown == pytest.approx(0.25)


def test_recorded_steps_within_the_usual_variation_are_said_to_be() -> None:
    # Intervals of ten steps take 8, 9, 10, 11, 12 s in turn: nine of ten lie between 8 and 12 s.
    length = np.tile([8, 9, 10, 11, 12], 8)
    seconds = np.concatenate(([0], np.cumsum(length)))
    step = np.arange(len(seconds), dtype=np.int64) * 10
    loss = ScalarSeries(step, seconds * S, np.ones(len(step)))
    for step_s, varies in ((1.1, (0.8 * S, 1.2 * S)), (1.3, None)):
        profile = Profile("session", 205 * S, 210 * S, step_ns=step_s * S)
        training = describe_training(RunScalars({"loss": loss}), [profile])
        assert training is not None
        (recording,) = training.recordings
        assert recording.step_ns == pytest.approx(1.0 * S)
        assert recording.varies_ns == (varies and pytest.approx(varies))


def test_steps_of_other_kinds_are_not_compared() -> None:
    # Four batches per logged step: a quarter of its time each.
    profile = Profile("session", 55 * S, 62 * S, step_ns=0.25 * S)
    training = describe_training(RunScalars({"loss": logged(1.0)}), [profile])
    assert training is not None
    assert training.recordings[0].step_ns == S
    assert training.recordings[0].slowdown is None


def test_steps_are_compared_with_those_of_the_same_time() -> None:
    # 1 s per step for 30 intervals, then 2 s; recorded in the second part with 2.2 s.
    seconds = np.concatenate((np.arange(31) * 10, 300 + np.arange(1, 31) * 20))
    step = np.arange(len(seconds), dtype=np.int64) * 10
    loss = ScalarSeries(step, seconds * S, np.ones(len(step)))
    profile = Profile("session", 601 * S, 612 * S, step_ns=2.2 * S)
    training = describe_training(RunScalars({"loss": loss}), [profile])
    assert training is not None
    (recording,) = training.recordings
    assert recording.step_ns == 2 * S
    assert recording.slowdown == pytest.approx(0.1)


def test_recording_outside_of_the_logged_time_has_no_step() -> None:
    profile = Profile("session", 900 * S, 901 * S, step_ns=None)
    training = describe_training(RunScalars({"loss": logged(1.0)}), [profile])
    assert training is not None
    (recording,) = training.recordings
    assert (recording.first_step, recording.slowdown) == (None, None)


def test_run_without_steps_has_no_speed() -> None:
    assert describe_training(RunScalars({"loss": logged(1.0, steps=1)})) is None
    assert describe_training(RunScalars({})) is None
