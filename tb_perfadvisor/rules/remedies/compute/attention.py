"""Remedies for attention."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

_TRANSFORMERS = "https://huggingface.co/docs/transformers/attention_interface"

FUSED_ATTENTION = variants(
    "fused-attention",
    Remedy(
        text="Let the pipeline's model use fused attention, if it has it. In other models, replace "
        "softmax(q @ k.transpose(-2, -1)) @ v by F.scaled_dot_product_attention(q, k, v).",
        snippet="pipe = pipeline(\n"
        '    task, model=name, model_kwargs={"attn_implementation": "sdpa"}\n'
        ")",
        needs=(Part.HF_PIPELINE,),
        reference=_TRANSFORMERS,
    ),
    Remedy(
        text="Let Megatron use fused attention.",
        snippet="torchrun pretrain_gpt.py --attention-backend flash",
        language="bash",
        needs=(Part.MEGATRON,),
        reference="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py",
    ),
    Remedy(
        text="Let the model use PyTorch's fused attention.",
        snippet='pipe.transformer.set_attention_backend("native")',
        needs=(Part.DIFFUSERS,),
        reference="https://huggingface.co/docs/diffusers/optimization/attention_backends",
    ),
    Remedy(
        text="Let the model use fused attention, if it has it. In other models, replace "
        "softmax(q @ k.transpose(-2, -1)) @ v by F.scaled_dot_product_attention(q, k, v).",
        snippet='model = AutoModel.from_pretrained(name, attn_implementation="sdpa")',
        needs=(Part.TRANSFORMERS,),
        reference=_TRANSFORMERS,
    ),
    Remedy(
        text="Use the fused attention operator; additive biases and masks go into attn_mask.",
        snippet="y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)\n"
        "# instead of: softmax(q @ k.transpose(-2, -1) * scale + mask, -1) @ v",
        reference="https://docs.pytorch.org/docs/stable/generated/"
        "torch.nn.functional.scaled_dot_product_attention.html",
    ),
)
"""Compute attention in one kernel. For rules that have seen attention in several."""
