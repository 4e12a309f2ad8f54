"""Remedies for Python code that runs in the step."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"

MOVE_HOST_WORK = variants(
    "host-work",
    Remedy(
        text="Move work that does not need the device out of the step: into the loader's workers, "
        "into a thread, or into every hundredth step.",
        snippet="class Samples(torch.utils.data.Dataset):\n"
        "    def __getitem__(self, index):\n"
        "        return prepare(self.raw[index])  # in the workers, while the step computes",
        needs=(Part.LOADER_WORKERS, Part.TRAINING),
        reference=_TUNING,
    ),
    Remedy(
        text="Prepare the inputs of the next call, and use the results of the last one, in another "
        "thread while the device computes.",
        snippet="background = concurrent.futures.ThreadPoolExecutor(1)\n"
        "upcoming = background.submit(prepare, next(inputs))\n"
        "output = model(current)\n"
        "current = upcoming.result()",
        needs=(Part.FORWARD_ONLY,),
        unless=SERVERS,
        reference=_TUNING,
    ),
    Remedy(
        text="If this work does not need the device, move it out of the step: into another thread "
        "or process, or into every hundredth step.",
        unless=SERVERS,
        reference=_TUNING,
    ),
)
"""Move Python code out of the step."""
