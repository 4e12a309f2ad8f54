"""Figures, images, checkpoints and summaries that the training loop waits for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tb_perfadvisor.advice import advise
from tb_perfadvisor.machine.facts import Line, SideWork
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
}
_SURE = 2.0
"""Standard errors: the low end."""


class SideWorkInLoop(Rule):
    """The training loop draws, saves or logs, and waits for it.

    What it finds
    -------------
    Lines of the program that draw figures, encode images, save checkpoints or write summaries
    between the first and the last step, and take more of the time than the limit. They may be
    outside of all recorded steps.

    Why it matters
    --------------
    A figure takes as long as hundreds of small steps. The model learns nothing from it.

    How it is measured
    ------------------
    `perfadvisor run` looks 25 times a second where the main thread is, over the whole run but for
    its recordings. The share of the looks that find it in such a function is the share of the time,
    with the standard error of a proportion. Done a tenth as often, nine tenths of it are saved,
    which is expected. Low is 70 % of it minus two standard errors. The share is of the run's time,
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
    minimum_looks = Limit(20, "count", "With fewer, a line in several of them may be chance.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when such work takes a good part of the run."""
        lines = signals.trace.facts.lines
        if lines is None or lines.looks < self.minimum_looks:
            return
        found = [line for line in lines.lines if line.side_work is not None]
        share = min(sum(line.share for line in found), 1.0)
        error = math.sqrt(share * (1 - share) / lines.looks)
        if share < self.minimum_share or share - _SURE * error < self.minimum_share / 2:
            return
        low, expected, high = 0.7 * share - _SURE * error, share * (1 - 1 / _RARER), share + error
        window_ns = signals.attribution.window_ns
        yield Finding(
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
            remedies=advise("side-work-rarely"),
        )


def _doing(lines: Sequence[Line]) -> str:
    kinds = dict.fromkeys(line.side_work for line in lines if line.side_work is not None)
    return " and ".join(_DOES[kind] for kind in list(kinds)[:2])
