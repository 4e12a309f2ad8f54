"""Remedies for reading results back: logging, checks of values, checkpoints."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import SERVERS, Part

_TRAINER = "https://huggingface.co/docs/transformers/main_classes/trainer"
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/extensions/logging.html"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py"
_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"

READ_RARELY = variants(
    "read-results",
    Remedy(
        text="Let the Trainer log every hundredth step, and don't let it read each loss back to "
        "look for NaN.",
        snippet='args = TrainingArguments("out", logging_steps=100, logging_nan_inf_filter=False)',
        needs=(Part.HF_TRAINER,),
        reference=_TRAINER,
    ),
    Remedy(
        text="Log every hundredth step, and keep values off the progress bar, which reads them "
        "back in each step.",
        snippet="trainer = L.Trainer(log_every_n_steps=100)  # of the package lightning\n"
        'self.log("loss", loss, prog_bar=False)',
        needs=(Part.LIGHTNING, Part.TRAINING),
        reference=_LIGHTNING,
    ),
    Remedy(
        text="Log every hundredth step, and leave out the check for NaN, which reads the loss back "
        "in each step.",
        snippet="torchrun pretrain_gpt.py --log-interval 100 --no-check-for-nan-in-loss-and-grad",
        language="bash",
        needs=(Part.MEGATRON, Part.TRAINING),
        reference=_MEGATRON,
    ),
    Remedy(
        text="Log every hundredth step.",
        snippet="./run_train.sh --metrics.log_freq 100",
        language="bash",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/torchtitan/components/"
        "metrics.py",
    ),
    Remedy(
        text="Log, save and evaluate every few hundred steps, and accumulate metrics on the "
        "device in between.",
        snippet="running_loss += loss.detach()          # stays on the device\n"
        "if step % 100 == 0:\n"
        "    log(step, (running_loss / 100).item())  # one wait per hundred steps\n"
        "    running_loss.zero_()",
        needs=(Part.TRAINING,),
        reference=_TUNING,
    ),
    Remedy(
        text="If results are read back in each call, keep them on the device, and read those of "
        "several calls at once.",
        snippet="outputs.append(output)\n"
        "if len(outputs) == 16:\n"
        "    use(torch.stack(outputs).cpu())  # one wait for sixteen calls",
        needs=(Part.FORWARD_ONLY,),
        unless=SERVERS,
        reference=_TUNING,
    ),
    Remedy(
        text="If values are read back in each step, keep them on the device, and read them every "
        "hundredth step.",
        unless=SERVERS,
        reference=_TUNING,
    ),
)
"""Read values back rarely."""

SAVE_RARELY = variants(
    "save-results",
    Remedy(
        text="Save every few hundred steps only.",
        snippet='args = TrainingArguments("out", save_strategy="steps", save_steps=500)',
        needs=(Part.HF_TRAINER,),
        reference=_TRAINER,
    ),
    Remedy(
        text="Save every few hundred steps only, in a thread.",
        snippet="from lightning.pytorch.callbacks import ModelCheckpoint\n"
        "from lightning.pytorch.plugins.io import AsyncCheckpointIO\n"
        "trainer = L.Trainer(\n"
        "    callbacks=[ModelCheckpoint(every_n_train_steps=500)], plugins=[AsyncCheckpointIO()]\n"
        ")",
        needs=(Part.LIGHTNING, Part.TRAINING),
        reference="https://lightning.ai/docs/pytorch/stable/common/checkpointing_intermediate.html",
    ),
    Remedy(
        text="Save every few hundred steps only, in the background.",
        snippet="torchrun pretrain_gpt.py --save-interval 500 --async-save",
        language="bash",
        needs=(Part.MEGATRON, Part.TRAINING),
        reference=_MEGATRON,
    ),
    Remedy(
        text="Save every few hundred steps only, in the background.",
        snippet="./run_train.sh --checkpoint.interval 500 --checkpoint.async_mode async",
        language="bash",
        needs=(Part.TORCHTITAN,),
        reference="https://github.com/pytorch/torchtitan/blob/main/docs/checkpoint.md",
    ),
    Remedy(
        text="Do this work less often or in parallel: log and save every few hundred steps, and "
        "write files from a thread.",
        snippet="if step % 500 == 0:\n"
        '    state = {name: value.to("cpu", copy=True)\n'
        "             for name, value in model.state_dict().items()}\n"
        "    saver.submit(torch.save, state, path)   # concurrent.futures.ThreadPoolExecutor",
        needs=(Part.TRAINING,),
        reference="https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",
    ),
    Remedy(
        text="If the program does this work on purpose, do it less often, or in another thread.",
    ),
)
"""Save and log rarely, and in the background."""

KEEP_NUMBERS = variants(
    "keep-numbers",
    Remedy(
        text="Keep numbers, not tensors: a loss that is kept from step to step keeps the whole "
        "graph from which it was computed.",
        snippet="losses.append(loss.detach())       # not losses.append(loss)\n"
        "total += loss.detach()             # not total += loss",
        needs=(Part.TRAINING,),
        reference="https://docs.pytorch.org/docs/stable/notes/faq.html",
    ),
    Remedy(
        text="If results, caches or logs are kept from call to call, keep numbers or copies on the "
        "host instead of tensors on the device.",
        reference="https://docs.pytorch.org/docs/stable/notes/faq.html",
    ),
)
"""Keep no tensors, and what they hold, from step to step."""

READ_ARRAYS_RARELY = (
    Remedy(
        text="Keep results on the device, and read them every hundredth step: float() and "
        "jax.device_get() wait until they are computed.",
        snippet="if step % 100 == 0:\n    print(float(loss))  # other steps don't wait",
        framework="jax",
        change="read-results",
        reference="https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
)
"""Read values of JAX programs back rarely."""
