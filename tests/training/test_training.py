"""What a run says of its speed in all."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.training.metrics import (
    RunScalars,
    ScalarSeries,
    find_metrics,
    is_evaluation,
    known_metrics,
)
from tb_perfadvisor.training.training import Profile, describe_training, facts_of, headline_of

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
    assert (training.first_step, training.last_step) == (0, 200)
    (regime,) = training.regimes
    assert (regime.step_ns, regime.steps) == (S, 200)
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


def two_regimes() -> RunScalars:
    """1 s per step for 300 steps, then 2 s for 300."""
    seconds = np.concatenate((np.arange(31) * 10, 300 + np.arange(1, 31) * 20))
    step = np.arange(len(seconds), dtype=np.int64) * 10
    return RunScalars({"loss": ScalarSeries(step, seconds * S, np.ones(len(step)))})


def test_a_change_of_pace_is_the_story() -> None:
    training = describe_training(two_regimes())
    assert training is not None
    assert [(each.first_step, each.last_step, each.step_ns) for each in training.regimes] == [
        (0, 300, S),
        (300, 600, 2 * S),
    ]
    # 300 steps take 1 s more, of 900 s in all.
    assert headline_of(training) == (
        "After step 300, steps take 2.00 s instead of 1.00 s: 33.3 % of the run"
    )
    assert facts_of(training)[0] == (
        "Time per step without the profiler: 1.00 s from 0 to 300, 2.00 s from 300 to 600."
    )


def test_steps_that_become_faster_are_the_story_too() -> None:
    (loss,) = two_regimes().series.values()
    faster = ScalarSeries(loss.step, loss.unix_ns[-1] - loss.unix_ns[::-1], loss.value)
    training = describe_training(RunScalars({"loss": faster}))
    assert training is not None
    assert training.delays == ()
    assert headline_of(training) == "After step 300, steps take 1.00 s instead of 2.00 s"


def test_known_profiles_change_no_step_time() -> None:
    profiles = [Profile(f"{at}", at * S, (at + 15) * S, step_ns=S) for at in range(20, 800, 90)]
    plain, profiled = (describe_training(two_regimes(), known) for known in ((), profiles))
    assert plain is not None
    assert profiled is not None
    assert plain.regimes == profiled.regimes
    assert headline_of(plain) == headline_of(profiled)
    # Each is of the part that it was recorded in.
    assert [each.regime for each in profiled.recordings] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
