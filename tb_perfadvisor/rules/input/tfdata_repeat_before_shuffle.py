"""A tf.data pipeline mixes the records of different epochs."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import REPEATS, iterator_table
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import tfdata


class TfdataRepeatBeforeShuffle(Rule):
    """The pipeline repeats the records before it shuffles them.

    What it finds
    -------------
    `Shuffle` after `Repeat` in the chain of iterators.

    Why it matters
    --------------
    Epochs are mixed where they meet: some records come twice before others come at all. The other
    order refills the buffer at the start of each epoch, which a prefetch hides unless epochs are
    short.

    How it is measured
    ------------------
    From the order of the iterators. There is no saving in time, so the severity is low.

    When to ignore
    --------------
    When epochs have no meaning for the training, or are so short that refilling the buffer takes
    noticeable time.

    How to verify
    -------------
    The chain has `ShuffleAndRepeat`, or `Repeat` after `Shuffle`.

    References:
    ----------
    TensorFlow guide, "tf.data: Build TensorFlow input pipelines", section on training workflows.
    """

    id = "tfdata-repeat-before-shuffle"
    title = "Shuffle before repeating"
    category = "input"
    needs = (Need.ITERATORS,)
    is_preview = False

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each pipeline with that order."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] != "Shuffle":
                continue
            repeats = [
                iterator
                for iterator in pipelines.below(node)
                if pipelines.kind[iterator] in REPEATS
            ]
            if not repeats:
                continue
            path = pipelines.path[repeats[0]]
            yield Finding(
                summary=(
                    "The pipeline shuffles records across epochs, because it repeats them first:"
                    f" {path}."
                ),
                evidence=(iterator_table(signals),),
                remedies=advise("shuffle-before-repeat"),
                severity="low",
            )
