"""Figures, images, checkpoints and summaries that the training loop waits for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.machine.facts import Line, Lines, SideWork
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.equal_part import equal_part
from tb_perfadvisor.rules.evidence.source_lines import described, lines_tables
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.units import format_duration, format_share

_RARER = 10
"""What is done a tenth as often still shows where a training is going."""
_DOES: dict[SideWork, str] = {
    "figures": "drawing figures",
    "images": "encoding images",
    "checkpoints": "saving checkpoints",
    "summaries": "writing summaries",
    "texts": "making texts of tensors",
    "every few steps": "what the loop does every few steps",
    "between epochs": "what runs between epochs",
}
_OF_TRAINING: tuple[SideWork, ...] = ("every few steps", "between epochs")
"""Evaluations, mostly."""
_REMEDIES: dict[SideWork | None, str] = {
    **dict.fromkeys(_OF_TRAINING, "evaluate-rarely"),
    "texts": "texts-when-written",
}
_SAVED_PER_EPOCH = 0.5
"""What runs once per epoch can seldom run a tenth as often."""
_LEAST_SAVED = 0.7
_EVALUATE = "Evaluate less often, or on fewer samples"
_SURE = 2.0
"""Standard errors: the low end."""


class SideWorkInLoop(Rule):
    """The training loop draws, saves or logs, and waits for it.

    What it finds
    -------------
    Lines of the program that draw figures, encode images, save checkpoints, write summaries or make
    texts of tensors between the first and the last step, and take more of the time than the limit.
    They may be outside of all recorded steps. In programs on the CPU, also what the loop does every
    few steps under a condition with a remainder (`if step % 10 == 0`), and what it does between
    epochs, such as evaluating the model, but for epochs of a few steps, which learn from what is
    made between.

    Why it matters
    --------------
    A figure takes as long as hundreds of small steps. The model learns nothing from it.

    How it is measured
    ------------------
    `perfadvisor run` looks 25 times a second where the main thread is, over the whole run but for
    its recordings. The share of the looks that find it in such a function is the share of the time,
    with the standard error of a proportion. Done a tenth as often, nine tenths of it are saved,
    which is expected; of what runs between epochs, half. Low is 70 % of it minus two standard
    errors. The share is of the run's time,
    not of the recorded steps' only.

    When to ignore
    --------------
    When the run that was recorded is much shorter than usual, and the work does not grow with it.

    How to verify
    -------------
    Record again: the lines are gone from the looks, and the run makes more steps in the same time.

    References:
    ----------
    Python documentation, `sys._current_frames`; Lee et al., "Profiling by sampling" in the manual
    of gprof, on statistical error.
    """

    id = "side-work-in-loop"
    title = "Draw, save and log less often"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.RUN_LINES)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "A checkpoint now and then takes less, and somebody wants it."
    )
    minimum_share_between_epochs = Limit(
        0.2, "share", "Evaluating a part of the data once per epoch is usual."
    )
    minimum_looks = Limit(20, "count", "With fewer, a line in several of them may be chance.")
    fewest_steps_of_an_epoch = Limit(
        20, "count", "Reinforcement learning gathers new samples after as few steps."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when such work takes a good part of the run."""
        lines = signals.trace.facts.lines
        if lines is None or lines.looks < self.minimum_looks:
            return
        sides = [line for line in lines.lines if line.side_work is not None]
        written = [line for line in sides if line.side_work not in _OF_TRAINING]
        yield from self._of(signals, lines, written, self.minimum_share)
        if signals.device.is_host_only:
            # With a device, such a place may only wait for what the steps launched.
            for kind, least in zip(_OF_TRAINING, self._least, strict=True):
                done = [line for line in sides if line.side_work == kind]
                done = [line for line in done if not self._feeds_steps(signals, lines, line)]
                yield from self._of(signals, lines, done, least)

    def _feeds_steps(self, signals: Signals, lines: Lines, line: Line) -> bool:
        """Whether so few steps follow that what runs between them makes what they learn from."""
        if line.side_work != "between epochs" or not line.spells or not len(signals.steps):
            return False
        seconds = lines.seconds * (1 - line.share)
        step_s = float(np.median(signals.steps.duration_ns)) / 1e9
        return seconds / step_s / line.spells < self.fewest_steps_of_an_epoch

    @property
    def _least(self) -> tuple[float, float]:
        return self.minimum_share, self.minimum_share_between_epochs

    def _of(
        self, signals: Signals, lines: Lines, found: Sequence[Line], least: float
    ) -> Iterable[Finding]:
        share = min(sum(line.share for line in found), 1.0)
        error = math.sqrt(share * (1 - share) / lines.looks)
        if share < least or share - _SURE * error < least / 2:
            return
        kind = found[0].side_work
        is_training = kind in _OF_TRAINING
        saved = _SAVED_PER_EPOCH if kind == "between epochs" else 1 - 1 / _RARER
        low = min(_LEAST_SAVED, 0.8 * saved) * share - _SURE * error
        expected, high = share * saved, share + error
        window_ns = signals.attribution.window_ns
        yield Finding(
            title=_EVALUATE if is_training else "",
            instance=f"{_doing(found)} takes {format_share(share)} of the run",
            summary=(
                f"{format_share(share)} of the {format_duration(lines.seconds * 1e9)} between the"
                f" first and the last step went into {_doing(found)}, and the steps wait for it."
                f" The program was {described(found[0])}."
            ),
            saving=Saving(
                int(low * window_ns),
                int(expected * window_ns),
                int(min(high, 1.0) * window_ns),
                equal_part(signals, min(high, 1.0)),
                "measured",
            ),
            evidence=lines_tables(lines),
            remedies=advise(_REMEDIES.get(kind, "side-work-rarely")),
        )


def _doing(lines: Sequence[Line]) -> str:
    kinds = dict.fromkeys(line.side_work for line in lines if line.side_work is not None)
    return " and ".join(_DOES[kind] for kind in list(kinds)[:2])
