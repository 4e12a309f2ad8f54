"""Makes the view of a whole run from its scalars and the reports of its profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.comparison.whole_run.profiled import (
    devices_of,
    profile_name,
    profile_of,
    whole_run_of,
)
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
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.training.metrics import Kind, find_metrics
from tb_perfadvisor.training.options import RunOptions
from tb_perfadvisor.training.pauses import find_long_intervals
from tb_perfadvisor.training.progress import Progress, find_progress
from tb_perfadvisor.training.scalars import RunScalars, ScalarSeries
from tb_perfadvisor.training.training import describe_training
from tb_perfadvisor.training.wording import (
    delay_label,
    facts_of,
    headline_of,
    recording_sentence,
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

    Args:
        run: Its name.
        scalars: All that it logged.
        reports: Of its profiles.
        unknown: Profiles without a report, and why.
        options: What the user said about the run.
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

    Args:
        values: The curve.
        most: The most rows to keep.
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
