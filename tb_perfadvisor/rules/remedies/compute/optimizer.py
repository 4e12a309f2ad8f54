"""Remedies for the optimizer's step."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

FUSED_OPTIMIZER = variants(
    "fused-optimizer",
    Remedy(
        text="Let the optimizer that is fused already update the other parameters, too.",
        needs=(Part.FUSED_OPTIMIZER,),
        reference="https://docs.pytorch.org/docs/stable/optim.html",
    ),
    Remedy(
        text="Let the Trainer update all parameters in one fused kernel.",
        snippet='args = TrainingArguments("out", optim="adamw_torch_fused")',
        needs=(Part.HF_TRAINER,),
        unless=(Part.FUSED_OPTIMIZER,),
        reference="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Remedy(
        text="Update all parameters in one fused kernel.",
        snippet="def configure_optimizers(self):\n"
        "    return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)",
        needs=(Part.LIGHTNING,),
        unless=(Part.FUSED_OPTIMIZER,),
        reference="https://docs.pytorch.org/docs/stable/optim.html",
    ),
    Remedy(
        text="Let DeepSpeed make the optimizer: its Adam updates all parameters in one fused "
        "kernel.",
        snippet='config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}',
        needs=(Part.DEEPSPEED,),
        unless=(Part.FUSED_OPTIMIZER,),
        reference="https://www.deepspeed.ai/docs/config-json/",
    ),
    Remedy(
        text="Let torchtitan update all parameters in one fused kernel.",
        snippet="./run_train.sh --optimizer.implementation fused",
        language="bash",
        needs=(Part.TORCHTITAN,),
        unless=(Part.FUSED_OPTIMIZER,),
        reference="https://github.com/pytorch/torchtitan",
    ),
    Remedy(
        text="Update all parameters in one fused operator. On the CPU, Adam, AdamW, SGD and "
        "Adagrad have one.",
        snippet="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
        needs=(Part.CPU_ONLY,),
        unless=(Part.FUSED_OPTIMIZER,),
        reference="https://docs.pytorch.org/docs/stable/optim.html",
    ),
    Remedy(
        text="Update all parameters in one fused kernel. If the optimizer has no fused form, use "
        "foreach=True to group its launches.",
        snippet="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
        unless=(Part.FUSED_OPTIMIZER,),
        reference="https://docs.pytorch.org/docs/stable/optim.html",
    ),
    unless=(Part.FORWARD_ONLY, Part.SERVER),
)
"""Use the optimizer's fused form. For rules that have seen an optimizer without it."""
