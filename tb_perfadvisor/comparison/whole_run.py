"""The whole run, and what was profiled of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import (
    Curve,
    DelayInfo,
    RecordingInfo,
    RegimeInfo,
    StepTimes,
    TrainingView,
    UnknownProfile,
)
from tb_perfadvisor.ingest.profile_tab import is_dated
from tb_perfadvisor.signals.workload.workload import SPLITS_THE_MODEL
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.training.metrics import Kind, RunScalars, ScalarSeries, find_metrics
from tb_perfadvisor.training.pauses import Regime, find_long_intervals
from tb_perfadvisor.training.progress import Progress, find_progress
from tb_perfadvisor.training.training import (
    NO_SLOWER,
    Profile,
    ProfileInRun,
    RunOptions,
    Training,
    delay_label,
    describe_training,
    facts_of,
    headline_of,
    range_text,
    recording_sentence,
)
from tb_perfadvisor.units import format_duration, format_elapsed, format_share


def sentences_of(info: model.WholeRunInfo) -> list[str]:
    """The step without the profiler, what savings mean in it, and what it costs."""
    return [
        _true_step(info),
        *_real_saving(info),
        *([] if info.cost is None else _cost(info.cost)),
    ]


def _true_step(info: model.WholeRunInfo) -> str:
    step, profiled = format_duration(info.step_ns), format_duration(info.profiled_step_ns)
    if info.slowdown is None:
        return (
            f"The run logged {step} per step around this profile, whose steps take {profiled}: "
            "they are not the same steps, as with gradients accumulated over several batches."
        )
    if info.varies_ns is not None:
        return (
            f"{step} per step without the profiler. The recorded steps took {profiled}, within the "
            f"usual variation around them: {range_text(info.varies_ns)}."
        )
    if info.slowdown < -NO_SLOWER:
        return (
            f"{step} per step without the profiler, by the times at which the run logged. "
            f"The recorded steps were shorter: {profiled}."
        )
    if info.slowdown < NO_SLOWER:
        return f"{step} per step without the profiler, and as much with it."
    slower = format_share(info.slowdown)
    return f"{step} per step without the profiler; steps were {slower} slower while recorded."


def _real_saving(info: model.WholeRunInfo) -> Iterator[str]:
    saving = info.saving
    if saving is None or not saving.expected_ns:
        return
    rest = ""
    if saving.rest_ns:
        rest = f", and {format_elapsed(saving.rest_ns)} over the {info.steps_left:,} steps left"
    yield (
        f"All findings together save about {format_duration(saving.expected_ns)} of these "
        f"{format_duration(info.step_ns)}: {format_elapsed(saving.logged_ns)} over "
        f"{_which(info)}{rest}."
    )


def _which(info: model.WholeRunInfo) -> str:
    if info.is_whole:
        steps = info.logged_steps or info.last_step - info.first_step
        return f"the {steps:,} steps logged so far"
    return f"steps {info.first_step:,} to {info.last_step:,}, which are of this kind"


def _cost(cost: model.CostInfo) -> Iterator[str]:
    devices = f"{cost.devices:,} device{'s' if cost.devices > 1 else ''}"
    saved = f"; the findings save about {money(cost.saved_per_day)} of it"
    yield (
        f"{devices} at {money(cost.price_per_device_hour)} an hour: about {money(cost.per_day)} a "
        f"day{saved if cost.saved_per_day else ''}. The steps logged so far cost "
        f"{money(cost.logged)}."
    )
    if cost.per_million_tokens is not None:
        yield f"A million tokens cost {money(cost.per_million_tokens)}."
    elif cost.per_million_samples is not None:
        yield f"A million samples cost {money(cost.per_million_samples)}."


def money(amount: float | None) -> str:
    """An amount in the currency of the price: `$41`, `$2.50`, `$0.0031`."""
    if amount is None:
        return "unknown"
    if amount >= 99.5:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.995 or amount == 0 else f"${amount:.2g}"


_NS_PER_HOUR = 3_600_000_000_000
_HOURS_PER_DAY = 24


def profile_name(place: str, session: str, run: str) -> str:
    """What a profile is called among others of a run.

    Files named by rank have the same name in each directory: `iteration_10/rank0_trace`.
    """
    is_clear = place == run or is_dated(session.partition(".")[0])
    return session if is_clear else f"{place.rpartition('/')[2]}/{session}"


def profile_of(report: model.Report, run: str) -> Profile | None:
    """When a profile was recorded, and its step time; None if it does not tell when."""
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
    """What a run says of the steps of one of its profiles; None if it logged nothing around it."""
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
        cost=_profiled_cost(report, recording.step_ns, training, saving, options),
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


def _profiled_cost(
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


MOST_POINTS = 1_600
"""As many as a wide screen has pixels, which no chart can exceed."""
_OR_RECORDED = ", or the recording of a profile that is not analyzed yet"
_NO_CLOCK = "The profile does not tell when it was recorded."
_RATES: tuple[tuple[Kind, str, str], ...] = (
    ("samples-per-second", "Samples per second", "samples/s"),
    ("tokens-per-second", "Tokens per second", "tokens/s"),
)


def make_training_view(
    run: str,
    scalars: RunScalars,
    reports: Sequence[model.Report],
    unknown: Sequence[UnknownProfile] = (),
    options: RunOptions | None = None,
) -> TrainingView | None:
    """The view of a run; None if it logged nothing from which its speed follows.

    `reports` are those of its profiles, and `unknown` are profiles without one, and why.
    """
    options = options or RunOptions()
    profiles = {report.id: profile_of(report, run) for report in reports}
    known = [profile for profile in profiles.values() if profile is not None]
    progress, training = find_progress(scalars.series), describe_training(scalars, known)
    if progress is None or training is None:
        return None
    spans = [(profile.start_ns, profile.end_ns) for profile in known]
    by_id = {report.id: report for report in reports}
    recordings = sorted(training.recordings, key=lambda recording: recording.start_ns)
    devices = [count for report in reports if (count := devices_of(report)) is not None]
    return TrainingView(
        run=run,
        headline=headline_of(training),
        facts=facts_of(training),
        unit="epoch" if training.is_per_epoch else "step",
        regimes=[
            RegimeInfo(
                first_step=regime.first_step,
                last_step=regime.last_step,
                step_ns=round(regime.step_ns),
            )
            for regime in training.regimes
        ],
        elapsed_ns=training.elapsed_ns,
        delays=[
            DelayInfo(
                reason=delay.reason,
                label=delay_label(delay, is_per_epoch=training.is_per_epoch)
                + (_OR_RECORDED if delay.reason == "pause" and unknown else ""),
                count=delay.count,
                cost_ns=delay.cost_ns,
                share=delay.cost_ns / max(training.elapsed_ns, 1),
                first_step=delay.first_step,
                last_step=delay.last_step,
            )
            for delay in training.delays
        ],
        recordings=[
            RecordingInfo(
                capture_id=recording.capture_id,
                session=recording.session,
                first_step=recording.first_step,
                sentence=recording_sentence(recording, training),
                whole_run=whole_run_of(by_id[recording.capture_id], run, training, options),
            )
            for recording in recordings
        ],
        unknown_profiles=[
            *unknown,
            *(
                UnknownProfile(
                    capture_id=report.id,
                    session=profile_name(report.run, report.session, run),
                    reason=_NO_CLOCK,
                )
                for report in reports
                if profiles[report.id] is None
            ),
        ],
        times=_step_times(progress, scalars.series, spans),
        loss=_curve(scalars, "loss", "Loss", ""),
        rates=[
            curve
            for kind, label, unit in _RATES
            if (curve := _curve(scalars, kind, label, unit)) is not None
        ],
        devices=devices[0] if len(set(devices)) == 1 else None,
    )


def _step_times(
    progress: Progress, series: Mapping[str, ScalarSeries], spans: Sequence[tuple[int, int]]
) -> StepTimes:
    reasons = np.full(len(progress), "", dtype=object)
    for reason, rows in find_long_intervals(progress, series, spans).items():
        reasons[rows] = reason
    per_step_ns = progress.per_step_ns
    rows = thin(per_step_ns, MOST_POINTS)
    restarts = np.array([restart.end_ns for restart in progress.restarts], np.int64)
    return StepTimes(
        step=progress.first_step[rows].tolist(),
        last_step=(progress.first_step + progress.steps)[rows].tolist(),
        per_step_ns=np.round(per_step_ns[rows]).astype(np.int64).tolist(),
        reason=reasons[rows].tolist(),
        part=np.searchsorted(restarts, progress.start_ns[rows], side="right").tolist(),
    )


def _curve(scalars: RunScalars, kind: Kind, label: str, unit: str) -> Curve | None:
    """A logged value; None if the run logged none that is a number."""
    found = find_metrics(scalars.series).get(kind)
    if found is None:
        return None
    tag, metric = found
    series = scalars.series[tag]
    series = series.select(np.isfinite(series.value))
    if len(series) < 2:
        return None
    points = series.select(thin(series.value, MOST_POINTS))
    return Curve(
        label=label,
        tag=tag,
        unit=unit,
        per_device=None if metric.devices is None else metric.devices == "one",
        step=points.step.tolist(),
        value=points.value.tolist(),
    )


def thin(values: Float64, most: int) -> NDArray[np.intp]:
    """Rows that keep the shape of a long curve: the least and the greatest of each group of rows.

    At most `most` rows are kept.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    groups = most // 2
    starts = np.arange(groups) * count // groups
    size = -(-count // groups)
    # Rows of a group, the last one repeated where a group is shorter by one.
    ends = np.append(starts[1:], count) - 1
    grid = np.minimum(starts[:, None] + np.arange(size), ends[:, None])
    at = np.arange(groups)
    rows = np.stack((grid[at, values[grid].argmin(1)], grid[at, values[grid].argmax(1)]))
    return np.unique(rows)
