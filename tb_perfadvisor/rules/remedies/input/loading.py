"""Remedies for how input is loaded."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

_MULTIPROCESS = "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading"
_TRAINER = "https://huggingface.co/docs/transformers/main_classes/trainer"
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/advanced/speed.html"
_PIPELINE = "https://huggingface.co/docs/transformers/pipeline_tutorial"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py"
_TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/components/dataloader.py"

_START = (
    "Load batches in worker processes, ahead of the step. Start with two to four for each device, "
    "and add more as long as the wait shrinks and cores are idle."
)
LOADER_WORKERS = variants(
    "loader-workers",
    Remedy(
        text="Prepare the pipeline's inputs in worker processes, ahead of the model, and run "
        "several inputs as one batch.",
        snippet="for result in pipe(dataset, num_workers=4, batch_size=16):\n    use(result)",
        needs=(Part.LOADER, Part.HF_PIPELINE),
        reference=_PIPELINE,
    ),
    Remedy(
        text=_START,
        snippet="args = TrainingArguments(\n"
        '    "out", dataloader_num_workers=4, dataloader_persistent_workers=True\n'
        ")",
        needs=(Part.LOADER, Part.HF_TRAINER),
        reference=_TRAINER,
    ),
    Remedy(
        text=_START,
        snippet="def train_dataloader(self):  # in the LightningDataModule\n"
        "    return DataLoader(\n"
        "        self.dataset, batch_size=self.batch_size,\n"
        "        num_workers=4, persistent_workers=True,\n"
        "    )",
        needs=(Part.LOADER, Part.LIGHTNING),
        reference=_LIGHTNING,
    ),
    Remedy(
        text=_START,
        snippet="torchrun pretrain_gpt.py --num-workers 4",
        language="bash",
        needs=(Part.LOADER, Part.MEGATRON),
        reference=_MEGATRON,
    ),
    Remedy(
        text=_START,
        snippet="./run_train.sh --dataloader.num_workers 4 --dataloader.persistent_workers",
        language="bash",
        needs=(Part.LOADER, Part.TORCHTITAN),
        reference=_TORCHTITAN,
    ),
    Remedy(
        text=_START,
        snippet="loader = torch.utils.data.DataLoader(\n"
        "    dataset,\n"
        "    batch_size=batch_size,\n"
        "    num_workers=4,\n"
        "    persistent_workers=True,  # keep them from one epoch to the next\n"
        ")",
        needs=(Part.LOADER,),
        reference=_MULTIPROCESS,
    ),
)
"""Give the loader worker processes. For rules that have seen none."""

_TOO_SLOW = (
    "The workers cannot keep up. Use more of them if cores are idle, let them prefetch more "
    "batches, or give them less to do: decode to a smaller size, or preprocess once and store the "
    "result."
)
MORE_WORKERS = variants(
    "loader-workers",
    Remedy(
        text=_TOO_SLOW,
        snippet="for result in pipe(dataset, num_workers=16, batch_size=16):\n    use(result)",
        needs=(Part.LOADER_WORKERS, Part.HF_PIPELINE),
        reference=_PIPELINE,
    ),
    Remedy(
        text=_TOO_SLOW,
        snippet="args = TrainingArguments(\n"
        '    "out", dataloader_num_workers=16, dataloader_prefetch_factor=8\n'
        ")",
        needs=(Part.LOADER_WORKERS, Part.HF_TRAINER),
        reference=_TRAINER,
    ),
    Remedy(
        text=_TOO_SLOW,
        snippet="torchrun pretrain_gpt.py --num-workers 16",
        language="bash",
        needs=(Part.LOADER_WORKERS, Part.MEGATRON),
        reference=_MEGATRON,
    ),
    Remedy(
        text=_TOO_SLOW,
        snippet="./run_train.sh --dataloader.num_workers 16 --dataloader.prefetch_factor 8",
        language="bash",
        needs=(Part.LOADER_WORKERS, Part.TORCHTITAN),
        reference=_TORCHTITAN,
    ),
    Remedy(
        text=_TOO_SLOW,
        snippet="loader = torch.utils.data.DataLoader(\n"
        "    dataset,\n"
        "    batch_size=batch_size,\n"
        "    num_workers=2 * num_workers,  # if cores are idle\n"
        "    prefetch_factor=8,\n"
        "    persistent_workers=True,\n"
        ")",
        needs=(Part.LOADER_WORKERS,),
        reference=_MULTIPROCESS,
    ),
)
"""Make the loader's workers faster. Before `LOADER_WORKERS`, it takes that one's place."""

SHARDS = Remedy(
    text="If the samples lie in many small files, pack them into shards of a few hundred "
    "megabytes, and read those sequentially.",
    snippet=(
        "import webdataset\n\n"
        "with webdataset.ShardWriter('shards/train-%06d.tar', maxsize=500e6) as shards:\n"
        "    for index, (image, label) in enumerate(files):\n"
        "        shards.write({'__key__': f'{index:09d}', 'jpg': image, 'cls': label})\n\n"
        "dataset = webdataset.WebDataset('shards/train-{000000..000127}.tar')\n"
        "dataset = dataset.decode('torchrgb').to_tuple('jpg', 'cls')"
    ),
    framework="pytorch",
    needs=(Part.LOADER,),
    unless=(Part.HF_PIPELINE,),
    change="shards",
    reference="https://github.com/webdataset/webdataset",
)
"""Read few large files instead of many small ones."""

LOAD_AHEAD = Remedy(
    text="If the step's own thread loads the input, load the next batch in another thread or "
    "process while the device computes the current one.",
    framework="pytorch",
    unless=(Part.LOADER,),
)
"""For input that no known loader loads."""

FASTER_PROCESSOR = variants(
    "processor-backend",
    Remedy(
        text="If the processor resizes and normalizes with PIL and NumPy, use its torchvision "
        "backend, which is several times as fast. Before Transformers 5, pass use_fast=True.",
        snippet='processor = AutoImageProcessor.from_pretrained(name, backend="torchvision")\n'
        "pipe = pipeline(task, model=name, image_processor=processor)",
        needs=(Part.HF_PIPELINE,),
        reference="https://huggingface.co/docs/transformers/image_processors",
    ),
    Remedy(
        text="If the processor resizes and normalizes with PIL and NumPy, use its torchvision "
        "backend, which is several times as fast. Before Transformers 5, pass use_fast=True.",
        snippet='processor = AutoImageProcessor.from_pretrained(name, backend="torchvision")',
        needs=(Part.TRANSFORMERS,),
        unless=(Part.DIFFUSERS,),
        reference="https://huggingface.co/docs/transformers/image_processors",
    ),
)
"""Use the fast image processors of Transformers."""

EVEN_INPUT = Remedy(
    text="Give all ranks the same number of samples of similar cost, equally near storage, and "
    "the same number of loader processes.",
    snippet=(
        "sampler = DistributedSampler(dataset, drop_last=True)\n"
        "loader = DataLoader(dataset, sampler=sampler, num_workers=8, prefetch_factor=4)"
    ),
    framework="pytorch",
    needs=(Part.LOADER,),
    reference="https://docs.pytorch.org/docs/stable/data.html",
)
EVEN_INPUT_ANYWHERE = Remedy(
    text="Give all ranks the same number of samples of similar cost, equally near storage.",
    framework="pytorch",
    unless=(Part.LOADER,),
)
"""Spread the input evenly over the ranks."""
