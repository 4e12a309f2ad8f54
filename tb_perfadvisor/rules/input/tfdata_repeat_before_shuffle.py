"""A tf.data pipeline that shuffles epochs into each other."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import REPEATS, iterator_table
from tb_perfadvisor.rules.finding import Finding, Remedy
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import tfdata

_REMEDIES = (
    Remedy(
        text="Shuffle each epoch, then repeat: every record then comes once in each. TensorFlow "
        "makes one transformation of the two.",
        snippet="dataset = dataset.shuffle(10_000).repeat()",
        reference="https://www.tensorflow.org/guide/data#training_workflows",
    ),
)


class TfdataRepeatBeforeShuffle(Rule):
    """The pipeline repeats the records first and shuffles them then.

    What it finds
    -------------
    `Shuffle` above a `Repeat` in the chain of iterators.

    Why it matters
    --------------
    Epochs are mixed at their ends: some records come twice before others come at all. The other
    order costs a refill of the buffer at the beginning of each epoch, which a prefetch hides for
    all but short ones.

    How it is measured
    ------------------
    By the order in the iterators' names. It claims no time: the severity is low.

    When to ignore
    --------------
    When epochs mean nothing to the training, or are so short that refilling the buffer shows.

    How to verify
    -------------
    The chain has `ShuffleAndRepeat`, or the repeat above the shuffle.

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
        """Yield a finding for each pipeline in that order."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] != "Shuffle":
                continue
            repeats = [one for one in pipelines.below(node) if pipelines.kind[one] in REPEATS]
            if not repeats:
                continue
            path = pipelines.path[repeats[0]]
            yield Finding(
                summary=f"The pipeline shuffles what it has repeated: {path}.",
                evidence=(iterator_table(signals),),
                remedies=_REMEDIES,
                severity="low",
            )
