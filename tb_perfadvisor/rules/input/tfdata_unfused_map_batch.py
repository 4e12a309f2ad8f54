"""A batch of tf.data that copies, one after the other, what a map has made."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MINIMUM_SHARE,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Remedy, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.trace.intervals import total_ns

_MAPS = ("Map", "ParallelMap")
_REMEDIES = (
    Remedy(
        text="Put batch right behind map and leave their fusion on: elements are then written "
        "into the batch by the calls that make them.",
        snippet=(
            "options = tf.data.Options()\n"
            "options.experimental_optimization.map_and_batch_fusion = True\n"
            "dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE)\n"
            "dataset = dataset.batch(batch_size).with_options(options)"
        ),
        reference="https://www.tensorflow.org/api_docs/python/tf/data/experimental/"
        "OptimizationOptions",
    ),
    Remedy(
        text="Where something stands between them, make several batches at a time.",
        snippet="dataset = dataset.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE)",
        reference="https://www.tensorflow.org/api_docs/python/tf/data/Dataset#batch",
    ),
)


class TfdataUnfusedMapBatch(Rule):
    """A batch is copied together by one thread, element by element, behind a map.

    What it finds
    -------------
    `Batch` right behind a map with many elements, where the step waits for the copying.

    Why it matters
    --------------
    Copying a large batch takes one core's memory bandwidth, and the map stands still once its
    small buffer is full. Fused, each call of the map writes its element where the batch wants it.

    How it is measured
    ------------------
    Expected is the time that the step waits for the batch's own copying; high is that and the
    wait for the map behind it; low is 0.

    When to ignore
    --------------
    When the fusion was turned off for the sake of memory: it holds whole batches in work.

    How to verify
    -------------
    The chain has `MapAndBatch` in place of `Batch` and `Map`, and the wait falls.

    References:
    ----------
    TensorFlow API documentation, "tf.data.experimental.OptimizationOptions",
    map_and_batch_fusion.
    """

    id = "tfdata-unfused-map-batch"
    title = "Fuse the map with the batch behind it"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE
    minimum_batch = Limit(16, "count", "A batch of fewer elements is soon copied together.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each batch whose copying is waited for."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            maps = [n for n in pipelines.children(node) if pipelines.kind[n] in _MAPS]
            size = int(pipelines.batch_size[node])
            if pipelines.kind[node] != "Batch" or not maps or 0 <= size < self.minimum_batch:
                continue
            claims = stalls_of(pipelines, (node, *maps))
            copying_ns = pipelines.stall_ns(node)
            if self.is_minor(copying_ns, signals):
                continue
            yield Finding(
                summary=(
                    f"One thread copies batches of {size if size > 0 else 'many'} elements"
                    f" together behind {pipelines.kind[maps[0]]}; the step waits for it"
                    f" {per_step(copying_ns, signals)}."
                ),
                saving=Saving(0, copying_ns, total_ns(claims), claims, "modeled"),
                evidence=iterator_evidence(signals, (node, *maps), claims),
                remedies=_REMEDIES,
            )
