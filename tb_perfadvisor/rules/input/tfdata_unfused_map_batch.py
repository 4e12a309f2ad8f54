"""One thread copies the results of a tf.data map into a batch."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MINIMUM_SHARE,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.trace.intervals import total_ns

_MAPS = ("Map", "ParallelMap")


class TfdataUnfusedMapBatch(Rule):
    """A single thread copies the elements of each batch together, after a map.

    What it finds
    -------------
    `Batch` directly after a map, with many elements per batch, where the step waits for the
    copying.

    Why it matters
    --------------
    Copying a large batch takes the memory bandwidth of one core, and the map stops once its small
    buffer is full. When the two are fused, each call of the map writes its element directly into
    the batch.

    How it is measured
    ------------------
    Expected is the time that the step waits for the copying itself. High adds the wait for the
    map. Low is 0.

    When to ignore
    --------------
    When the fusion was turned off to save memory: it holds several whole batches.

    How to verify
    -------------
    The chain has `MapAndBatch` in place of `Batch` and `Map`, and the wait falls.

    References:
    ----------
    TensorFlow API documentation, "tf.data.experimental.OptimizationOptions", map_and_batch_fusion.
    """

    id = "tfdata-unfused-map-batch"
    title = "Fuse the map with the batch that follows it"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE
    minimum_batch = Limit(16, "count", "Copying fewer elements takes little time.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each batch whose copying the step waits for."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            maps = [child for child in pipelines.children(node) if pipelines.kind[child] in _MAPS]
            size = int(pipelines.batch_size[node])
            if pipelines.kind[node] != "Batch" or not maps or 0 <= size < self.minimum_batch:
                continue
            claims = stalls_of(pipelines, (node, *maps))
            copying_ns = pipelines.stall_ns(node)
            if self.is_minor(copying_ns, signals):
                continue
            yield Finding(
                instance=pipelines.kind[maps[0]],
                summary=(
                    f"{per_step(copying_ns, signals)} is spent waiting while one thread copies"
                    f" batches of {size if size > 0 else 'many'} elements together after"
                    f" {pipelines.kind[maps[0]]}."
                ),
                saving=Saving(0, copying_ns, total_ns(claims), claims, "modeled"),
                evidence=iterator_evidence(signals, (node, *maps), claims),
                remedies=advise("fused-map-batch", "parallel-batch"),
            )
