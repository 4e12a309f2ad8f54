"""One stage of the input pipeline makes the device wait."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Remedy, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.input_stages import WORK, InputStages, Stage, input_stages
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import intersect, total_ns
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import Remove

_LABELS = {
    Stage.WORKERS: "Waiting for the loader's workers",
    Stage.READING: "Reading",
    Stage.PREPROCESSING: "Preprocessing (decoding, transforming: the dataset's own code)",
    Stage.COLLATE: "Collating samples into batches",
    Stage.TRANSFER: "Pinning and enqueueing the batch",
}
_VERBS = {
    Stage.READING: "Reading files",
    Stage.PREPROCESSING: "Preprocessing (the dataset's own code)",
    Stage.COLLATE: "Collating samples into batches",
    Stage.TRANSFER: "Pinning the batch",
}
_WORKERS = Remedy(
    text="Let worker processes do it beside the steps, as many as there are idle cores.",
    snippet=(
        "loader = torch.utils.data.DataLoader(\n"
        "    dataset, batch_size=batch_size, num_workers=8, prefetch_factor=4,\n"
        "    persistent_workers=True, pin_memory=True,\n"
        ")"
    ),
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/data.html#multi-process-data-loading",
)
_REMEDIES = {
    Stage.READING: (
        Remedy(
            text="Read a few large shards sequentially in place of many files.",
            snippet=(
                "import webdataset\n"
                "dataset = webdataset.WebDataset('shards/train-{000..127}.tar').decode('torchrgb')"
            ),
            framework="pytorch",
        ),
        _WORKERS,
    ),
    Stage.PREPROCESSING: (
        Remedy(
            text="Do what is the same in every epoch (decoding, resizing, normalizing, "
            "tokenizing) once, ahead of training, and store its result.",
            snippet=(
                "for index, (image, label) in enumerate(raw):\n"
                "    torch.save((resize(decode(image)).to(torch.uint8), label), "
                "f'prepared/{index}.pt')"
            ),
            framework="pytorch",
        ),
        Remedy(
            text="Do what differs from epoch to epoch on the device, for the whole batch at once.",
            snippet=(
                "from torchvision.transforms import v2\n"
                "augment = v2.Compose([\n"
                "    v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),\n"
                "])\n"
                "for images, labels in loader:  # the loader hands over uint8\n"
                "    images = augment(images.to('cuda', non_blocking=True))"
            ),
            framework="pytorch",
            reference="https://pytorch.org/vision/stable/transforms.html",
        ),
        _WORKERS,
    ),
    Stage.COLLATE: (
        Remedy(
            text="Fetch the samples of a batch in one call and index them as one array: nothing "
            "is left to collate.",
            snippet=(
                "class Batched(torch.utils.data.Dataset):\n"
                "    def __getitems__(self, indices):\n"
                "        return self.images[indices], self.labels[indices]\n\n"
                "loader = torch.utils.data.DataLoader(\n"
                "    Batched(), batch_size=batch_size, collate_fn=lambda batch: batch\n"
                ")"
            ),
            framework="pytorch",
            reference="https://pytorch.org/docs/stable/data.html#working-with-collate-fn",
        ),
        _WORKERS,
    ),
    Stage.TRANSFER: (
        Remedy(
            text="Let the loader pin batches in a thread of its own.",
            snippet="loader = torch.utils.data.DataLoader(dataset, num_workers=4, pin_memory=True)",
            framework="pytorch",
            reference="https://pytorch.org/docs/stable/data.html#memory-pinning",
        ),
    ),
}


# tf.data is the same in every framework that reads through it.
_TFDATA = {
    Stage.READING: (
        Remedy(
            text="Read large TFRecord files, several at a time, ahead of what decodes them.",
            snippet=(
                "files = tf.data.Dataset.list_files('train-*.tfrecord')\n"
                "dataset = files.interleave(\n"
                "    tf.data.TFRecordDataset, cycle_length=16,\n"
                "    num_parallel_calls=tf.data.AUTOTUNE, deterministic=False,\n"
                ")"
            ),
            reference="https://www.tensorflow.org/guide/data_performance",
        ),
    ),
    Stage.PREPROCESSING: (
        Remedy(
            text="Do what is the same in every epoch once and store it, or cache it; run the rest "
            "in parallel, ahead of the step.",
            snippet=(
                "dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE).cache()\n"
                "dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)\n"
                "dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)"
            ),
            reference="https://www.tensorflow.org/guide/data_performance",
        ),
        Remedy(
            text="Let the device normalize and augment: layers in the model in place of maps.",
            snippet=(
                "model = keras.Sequential([\n"
                "    keras.layers.Rescaling(1 / 255), keras.layers.RandomFlip(), backbone,\n"
                "])"
            ),
            reference="https://www.tensorflow.org/guide/keras/preprocessing_layers",
        ),
    ),
    Stage.COLLATE: (
        Remedy(
            text="Put batch right behind map, so that the two are fused, or make several batches "
            "at a time.",
            snippet="dataset = dataset.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE)",
            reference="https://www.tensorflow.org/api_docs/python/tf/data/Dataset#batch",
        ),
    ),
}


class HostPreprocessing(Rule):
    """One stage of the host's input pipeline makes up most of the wait for input.

    What it finds
    -------------
    Which stage dominates the time that the device waits for input: reading, preprocessing
    (decoding, transforming), collating, or pinning the batch; and the calls in it that cost most.

    Why it matters
    --------------
    The remedy depends on the stage. Reading wants larger files and bandwidth; decoding wants
    cores, a device, or to be done once; collating wants one call in place of many.

    How it is measured
    ------------------
    The time of the cause *input*, split by the innermost Python frame that tells the stage, on
    the thread that runs the steps; with tf.data by the iterator that the step waits for.
    Expected is what the steps save when they are re-timed without the dominating stage, high
    all of its idle time, low what it could hide beside the rest of the step. Waiting for a
    loader's workers is no stage of its own: what they do is in no profile of this process.

    When to ignore
    --------------
    When the Python tracer itself makes up the time: it costs about a microsecond a call, so that
    code of many small calls looks slower than it is.

    How to verify
    -------------
    Time the dataset alone, without a model: the seconds for a hundred batches fall.

    References:
    ----------
    TensorFlow guide, "Analyze tf.data performance with the TF Profiler"; PyTorch documentation,
    "torch.utils.data".
    """

    id = "host-preprocessing"
    title = "Take work out of the input pipeline"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.INPUT_STAGES)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Below a twentieth the general rule says nothing of input either."
    )
    dominating_share = Limit(
        0.5,
        "share",
        "What is less than half of the wait is not where to begin: no stage dominates.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when one stage dominates the wait for input."""
        stages, window = input_stages(signals), signals.attribution
        stall = window.intervals[Cause.INPUT]
        idle = {stage: intersect(stall, stages.intervals[stage]) for stage in Stage}
        worst = max(WORK, key=lambda stage: total_ns(idle[stage]))
        claims = idle[worst]
        idle_ns, stall_ns = total_ns(claims), total_ns(stall)
        if self.is_minor(idle_ns, signals):
            return
        if idle_ns < self.dominating_share * stall_ns:
            return
        calls = _calls(signals.trace, stages, worst)
        most = f", the largest part in {calls.rows[0][0]}" if calls.rows else ""
        yield Finding(
            summary=(
                f"{_VERBS[worst]} takes {per_step(idle_ns, signals)}:"
                f" {format_share(idle_ns / stall_ns)} of the wait for input{most}."
            ),
            saving=Saving(
                min(idle_ns, window.window_ns - stall_ns),
                idle_ns,
                idle_ns,
                claims,
                "measured",
                (Remove(stages.intervals[worst]),),
            ),
            evidence=(
                Table(
                    "The wait for input, by stage",
                    (Column("stage", "Stage"), Column("idle_ns", "Idle meanwhile", "ns")),
                    (
                        *(
                            (_LABELS[stage], total_ns(idle[stage]))
                            for stage in Stage
                            if len(idle[stage])
                        ),
                        ("(not recorded)", stall_ns - sum(map(total_ns, idle.values()))),
                    ),
                ),
                calls,
            ),
            remedies=(_TFDATA if len(tfdata(signals)) else _REMEDIES)[worst],
        )


def _calls(trace: Trace, stages: InputStages, stage: Stage) -> Table:
    """What a stage calls, by name, by the time without what it calls in turn."""
    rows, own_ns = stages.rows_of(stage)
    names = trace.events.name[rows]
    found, first, inverse, count = np.unique(
        names, return_index=True, return_inverse=True, return_counts=True
    )
    own = np.bincount(inverse, weights=own_ns, minlength=len(found)).astype(np.int64)
    merged: dict[str, list[int]] = {}
    for place in np.argsort(-own, kind="stable").tolist():
        name = _short(trace.strings[found[place]])
        total = merged.setdefault(name, [0, 0, int(rows[first[place]])])
        total[0] += int(count[place])
        total[1] += int(own[place])
    ranked = sorted(merged.items(), key=lambda item: -item[1][1])
    return Table(
        "Calls of that stage, over the whole profile",
        (
            Column("name", "Call"),
            Column("caller", "Called in"),
            Column("count", "Times", "count"),
            Column("own_ns", "Own time", "ns"),
        ),
        tuple(_call(trace, name, *total) for name, total in ranked),
    )


def _call(trace: Trace, name: str, count: int, own_ns: int, row: int) -> tuple[Cell, ...]:
    parent = int(trace.events.parent[row])
    caller = trace.name(parent) if parent >= 0 else None
    return (name, caller, count, own_ns)


def _short(name: str) -> str:
    """`decode of ImagingDecoder`: objects of the same type differ by their addresses alone."""
    if not name.startswith("<built-in "):
        return name
    return name.split(" object at 0x")[0].split(" ", 2)[-1].removesuffix(">")
