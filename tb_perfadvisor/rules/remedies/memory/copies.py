"""Remedies for copies between host and device."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import OWN_THE_LOOP, SERVERS, Part

_PINNED = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"

PINNED_MEMORY = variants(
    "pinned-memory",
    Remedy(
        text="Let the Trainer's loader pin batches, which is its default; it then copies them "
        "without waiting.",
        snippet='args = TrainingArguments("out", dataloader_pin_memory=True)',
        needs=(Part.GPU, Part.LOADER, Part.HF_TRAINER),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Let the loader pin batches. Lightning then copies them without waiting.",
        snippet="def train_dataloader(self):  # in the LightningDataModule\n"
        "    return DataLoader(self.dataset, batch_size=self.batch_size, pin_memory=True)",
        needs=(Part.GPU, Part.LOADER, Part.LIGHTNING),
        reference="https://lightning.ai/docs/pytorch/stable/advanced/speed.html",
    ),
    Remedy(
        text="Let the loader pin batches, and let Accelerate copy them without waiting.",
        snippet="from accelerate import DataLoaderConfiguration\n"
        "loader = DataLoader(dataset, batch_size=batch_size, pin_memory=True)\n"
        "accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))",
        needs=(Part.GPU, Part.LOADER, Part.ACCELERATE),
        reference="https://huggingface.co/docs/accelerate/package_reference/utilities",
    ),
    Remedy(
        text="Let the loader pin batches.",
        snippet="./run_train.sh --dataloader.pin_memory",
        language="bash",
        needs=(Part.GPU, Part.LOADER, Part.TORCHTITAN),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/components/"
        "dataloader.py",
    ),
    Remedy(
        text="Pin batches before the train pipeline gets them: only then does its copy stream "
        "run beside the computation.",
        snippet="batches = (batch.pin_memory() for batch in source)\npipeline.progress(batches)",
        needs=(Part.GPU, Part.TORCHREC),
        reference="https://docs.pytorch.org/torchrec/",
    ),
    Remedy(
        text="Let the loader put batches into pinned memory, and copy them without waiting.",
        snippet="loader = DataLoader(dataset, batch_size=batch_size, pin_memory=True)\n"
        "for inputs, targets in loader:\n"
        "    inputs = inputs.to(device, non_blocking=True)\n"
        "    targets = targets.to(device, non_blocking=True)",
        needs=(Part.GPU, Part.LOADER),
        unless=OWN_THE_LOOP,
        reference=_PINNED,
    ),
    Remedy(
        text="If a tensor is copied to the device again and again, pin it on the host, and copy it "
        "without waiting.",
        snippet="on_host = on_host.pin_memory()  # once, where it is made\n"
        "on_device = on_host.to(device, non_blocking=True)",
        needs=(Part.GPU,),
        reference=_PINNED,
    ),
)
"""Copy from pinned memory."""

COPY_TO_PINNED = variants(
    "results-to-pinned-memory",
    Remedy(
        text="Copy results to pinned memory without waiting, and read them a step later.",
        snippet="result = torch.empty_like(output, device='cpu', pin_memory=True)  # once\n"
        "result.copy_(output, non_blocking=True)\n"
        "copied = torch.cuda.Event()\n"
        "copied.record()  # a step later: copied.synchronize(), then read",
        needs=(Part.GPU,),
        unless=SERVERS,
        reference=_PINNED,
    ),
    Remedy(
        text="If results are copied to the host in each step, copy those of several steps at once.",
        unless=SERVERS,
        reference=_PINNED,
    ),
)
"""Copy results to the host without waiting."""

COPY_AHEAD = variants(
    "copy-ahead",
    Remedy(
        text="If the next input is known, copy it on a separate stream while the current one is "
        "computed.",
        snippet="copying = torch.cuda.Stream()\n"
        "with torch.cuda.stream(copying):\n"
        "    upcoming = upcoming.to(device, non_blocking=True)  # from pinned memory\n"
        "# … compute the current input, then:\n"
        "torch.cuda.current_stream().wait_stream(copying)",
        needs=(Part.GPU,),
        unless=OWN_THE_LOOP,
        reference=_PINNED,
    ),
    Remedy(
        text="If the next input is known, copy it while the current one is computed.",
        reference=_PINNED,
    ),
)
"""Copy the next input while the current one is computed."""
