"""Profiles within the run that they were recorded of: true step times, real savings, costs."""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.comparison.whole_run.wording import sentences_of
from tb_perfadvisor.contract import model
from tb_perfadvisor.ingest.profile_tab import is_dated
from tb_perfadvisor.signals.workload.workload import SPLITS_THE_MODEL
from tb_perfadvisor.training.options import RunOptions
from tb_perfadvisor.training.regimes import Regime
from tb_perfadvisor.training.training import Profile, ProfileInRun, Training

_NS_PER_HOUR = 3_600_000_000_000
_HOURS_PER_DAY = 24


def profile_name(place: str, session: str, run: str) -> str:
    """What a profile is called among others of a run.

    Files named by rank have the same name in each directory: `iteration_10/rank0_trace`.

    Args:
        place: The run of its capture.
        session: Its session.
        run: The run that it belongs to.
    """
    is_clear = place == run or is_dated(session.partition(".")[0])
    return session if is_clear else f"{place.rpartition('/')[2]}/{session}"


def profile_of(report: model.Report, run: str) -> Profile | None:
    """When a profile was recorded, and its step time; None if it does not tell when.

    Args:
        report: Of the profile.
        run: The run that it belongs to.
    """
    if report.recorded is None:
        return None
    return Profile(
        session=profile_name(report.run, report.session, run),
        start_ns=report.recorded.start_unix_ns,
        end_ns=report.recorded.end_unix_ns,
        step_ns=report.steps.median_ns,
        capture_id=report.id,
    )


def span_of(recorded: model.RecordedInfo | None) -> tuple[int, int] | None:
    """Start and end of a recording in Unix time (ns); None if unknown."""
    return None if recorded is None else (recorded.start_unix_ns, recorded.end_unix_ns)


def devices_of(report: model.Report) -> int | None:
    """The devices of all ranks, or the ranks on the CPU; None if events of devices are missing."""
    ranks = report.world_size or len(report.workers)
    used = [worker.device.used for worker in report.workers if worker.device is not None]
    if not used:
        return ranks
    known = [count for count in used if count]
    return None if len(known) < len(used) else round(ranks * sum(known) / len(known))


def whole_run_of(
    report: model.Report, run: str, training: Training, options: RunOptions
) -> model.WholeRunInfo | None:
    """What a run says about the steps of one of its profiles; None if it logged nothing around it.

    Args:
        report: Of the profile.
        run: The run's name.
        training: What its scalars say, with its profiles.
        options: What the user said about it.
    """
    recording = next(
        (found for found in training.recordings if found.capture_id == report.id), None
    )
    if recording is None or recording.step_ns is None or recording.profiled_step_ns is None:
        return None
    regime, left = training.regimes[recording.regime], None
    # Steps to come are like the last ones.
    if options.total_steps is not None and regime is training.regimes[-1]:
        left = max(options.total_steps - training.last_step, 0)
    saving = _saving(report, recording, regime, left)
    info = model.WholeRunInfo(
        run=run,
        tag=training.tag,
        step_ns=recording.step_ns,
        profiled_step_ns=recording.profiled_step_ns,
        slowdown=recording.slowdown,
        varies_ns=recording.varies_ns,
        first_step=regime.first_step,
        last_step=regime.last_step,
        logged_steps=regime.steps,
        is_whole=len(training.regimes) == 1,
        elapsed_ns=training.elapsed_ns,
        steps_left=left,
        saving=saving,
        cost=_cost(report, recording.step_ns, training, saving, options),
        sentences=[],
    )
    return replace(info, sentences=sentences_of(info))


def _saving(
    report: model.Report, recording: ProfileInRun, regime: Regime, left: int | None
) -> model.RealSaving | None:
    """Savings in steps that are not profiled.

    What is saved of a step that recording made longer shrinks with the step. If recorded steps are
    shorter, for example without the pauses of others, what they save stays the same.
    """
    combined, mean_ns = report.combined_saving, report.overview.step_time_ns
    if combined is None or not combined.expected_ns or not mean_ns:
        return None
    if recording.slowdown is None or recording.step_ns is None:
        return None
    scale = min(recording.step_ns / mean_ns, 1.0)
    expected_ns = round(combined.expected_ns * scale)
    return model.RealSaving(
        low_ns=round(combined.low_ns * scale),
        expected_ns=expected_ns,
        high_ns=round(combined.high_ns * scale),
        logged_ns=expected_ns * regime.steps,
        rest_ns=None if left is None else expected_ns * left,
    )


def _cost(
    report: model.Report,
    step_ns: float,
    training: Training,
    saving: model.RealSaving | None,
    options: RunOptions,
) -> model.CostInfo | None:
    devices, price = devices_of(report), options.price_per_device_hour
    if price is None or devices is None:
        return None
    per_ns = price * devices / _NS_PER_HOUR
    per_day = price * devices * _HOURS_PER_DAY
    ranks = report.world_size or len(report.workers)
    per_step = per_ns * step_ns

    def per_million(count: float | None) -> float | None:
        # Known is what a rank processes. Ranks that split a model process the same samples.
        is_split = not SPLITS_THE_MODEL.isdisjoint(report.workload.parallelism)
        return None if not count or is_split else 1e6 * per_step / (count * ranks)

    return model.CostInfo(
        price_per_device_hour=price,
        devices=devices,
        per_day=per_day,
        logged=per_ns * training.elapsed_ns,
        saved_per_day=None if saving is None else per_day * saving.expected_ns / step_ns,
        per_million_tokens=per_million(report.overview.tokens_per_step),
        per_million_samples=per_million(report.overview.samples_per_step),
    )
