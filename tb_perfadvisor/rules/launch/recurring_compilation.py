"""Functions that are compiled again and again over the whole run."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.equal_part import equal_part
from tb_perfadvisor.rules.evidence.source_lines import lines_tables
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.recording.run_lines import FEWEST_SPELLS, recompiled
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration, format_share

_SURE = 2.0
"""Standard errors: the low end."""
_MODELS = ("keras.src.models", "keras.src.layers", "keras.src.trainers.trainer.compile")
_SURELY = 0.8
"""The first runs of a compiled program, and its first compilation, stay."""


class RecurringCompilation(Rule):
    """The program compiles the same function again and again during its run.

    What it finds
    -------------
    Lines of the program that were seen waiting for a function to be traced or compiled several
    times between the first and the last step, and take more of the run than the limit. They may be
    outside of all recorded steps, or all that was recorded.

    Why it matters
    --------------
    Compiled programs are cached by the shapes, types and static arguments of a call. A number that
    changes now and then, such as an annealed temperature or the length of the last batch, compiles
    everything anew, which takes hundreds of times as long as a step. A new model, such as one for
    each fold or client, is made and compiled anew as well.

    How it is measured
    ------------------
    `perfadvisor run` looks 25 times a second where the main thread is, over the whole run but for
    its recordings. The share of the looks that find JAX, TensorFlow or PyTorch tracing or
    compiling, or Keras making a model, is the share of the time, with the standard error of a
    proportion. Only lines count that were found so in several spells, apart from each other: what
    is compiled once was needed. Expected is the share, low is four fifths of it minus two standard
    errors. If the recorded steps themselves compile for so long, `recompilation` says it.

    When to ignore
    --------------
    When the run that was recorded is much shorter than usual, and new shapes cease to occur.

    How to verify
    -------------
    Record again: the lines are gone from the looks. `jax.config.update("jax_log_compiles", True)`
    and `TORCH_LOGS=recompiles` name each compilation.

    References:
    ----------
    JAX documentation, "Just-in-time compilation: JIT and caching"; TensorFlow guide, "Better
    performance with tf.function: Rules of tracing".
    """

    id = "recurring-compilation"
    title = "Compile once, not again and again"
    category = "launch"
    needs = (Need.RUN_LINES,)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Compiling a second shape, for evaluation, takes less of a run of minutes."
    )
    minimum_looks = Limit(20, "count", "With fewer, a line in several of them may be chance.")
    fewest_spells = Limit(
        FEWEST_SPELLS,
        "count",
        "A function is compiled for a batch, for the last batch of an epoch, and for evaluation.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when compiling recurs and takes a good part of the run."""
        lines = signals.trace.facts.lines
        if lines is None or lines.looks < self.minimum_looks:
            return
        found = recompiled(lines, self.fewest_spells)
        made = [line for line in lines.lines if line.calls.startswith(_MODELS)] if found else []
        # A model is made in several lines, each of them rarely seen.
        found = (*found, *(line for line in made if line.activity and line not in found))
        share = min(sum(line.share for line in found), 1.0)
        error = math.sqrt(share * (1 - share) / lines.looks)
        if share < self.minimum_share or share - _SURE * error < self.minimum_share / 2:
            return
        recorded_ns = total_ns(signals.attribution.intervals[Cause.COMPILING])
        if share_of_window(recorded_ns, signals) > share / 2 and len(signals.steps):
            return
        most, window_ns = found[0], signals.attribution.window_ns
        spells = sum(line.spells or 0 for line in found)
        why = (
            "A new model is made and compiled each time."
            if made
            else "An argument changes its shape, its type or its value as a static argument."
        )
        low, high = _SURELY * share - _SURE * error, min(share + _SURE * error, 1.0)
        yield Finding(
            instance=(
                f"{most.path}:{most.line} compiled at least {spells:,} times,"
                f" {format_share(share)} of the run"
            ),
            summary=(
                f"{format_share(share)} of the {format_duration(lines.seconds * 1e9)} between the"
                f" first and the last step went into tracing and compiling, in {spells:,} separate"
                f" spells, mostly for the call in {most.path}:{most.line}. {why}"
            ),
            saving=Saving(
                int(max(low, 0.0) * window_ns),
                int(share * window_ns),
                int(high * window_ns),
                equal_part(signals, high),
                "measured",
            ),
            evidence=lines_tables(lines),
            remedies=advise(*(("one-model",) if made else ("changing-arguments", "fixed-shapes"))),
        )
