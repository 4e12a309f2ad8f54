"""Small PyTorch programs of memory-bound operators, run one by one and compiled by TorchInductor.

    python fusion_programs.py FOLDER

Writes a profile of each program in eager mode, `NAME.pt.trace.json`, and what TorchInductor makes
of it, `inductor.json`: the bytes that its kernels read and write by its own count, without products
and other library calls, and the number of these kernels.

What to fuse is decided by TorchInductor's back end for Triton, the one that it uses on GPUs. It
decides without a GPU, and without Triton; nothing that it generates is run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812, PyTorch's own abbreviation
from torch import Tensor, nn
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import compile_fx, config
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch.profiler import ProfilerActivity, profile

TOKENS, WIDTH, HEADS = 640, 512, 8


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype)


# --- programs whose model was tuned on them ----------------------------------------------------


def _layer_norm_residual() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    norm = nn.LayerNorm(WIDTH)
    return (lambda x, y: norm(x + y)), (_x(TOKENS, WIDTH), _x(TOKENS, WIDTH))


def _rms_norm() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    weight, matrix = _x(WIDTH, dtype=torch.bfloat16), _x(WIDTH, WIDTH, dtype=torch.bfloat16)

    def run(x: Tensor, y: Tensor) -> Tensor:
        x = x + y
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x + (weight * wide.to(torch.bfloat16)) @ matrix

    rows = [_x(4, TOKENS, WIDTH, dtype=torch.bfloat16) for _ in range(2)]
    return run, tuple(rows)


def _rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _rotary() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k = q * cos + _rotate(q) * sin, k * cos + _rotate(k) * sin
        return q @ k.transpose(-1, -2)

    heads = (4, HEADS, TOKENS, 64)
    return run, (_x(*heads), _x(*heads), _x(TOKENS, 64), _x(TOKENS, 64))


def _gated_mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    gate, up, down = (_x(WIDTH, 1376), _x(WIDTH, 1376), _x(1376, WIDTH))
    return (lambda x: (F.silu(x @ gate) * (x @ up)) @ down), (_x(TOKENS, WIDTH),)


def _masked_softmax() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(scores: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(scores / 8.0 + mask, dim=-1)

    return run, (_x(HEADS, TOKENS, TOKENS), _x(TOKENS, TOKENS))


def _bias_gelu() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    bias = _x(2048)
    return (lambda x: F.gelu(x + bias, approximate="tanh")), (_x(TOKENS, 2048),)


def _dropout_add_norm() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    norm = nn.LayerNorm(WIDTH)
    run = lambda x, y: norm(y + F.dropout(x, 0.1, training=True))  # noqa: E731
    return run, (_x(TOKENS, WIDTH), _x(TOKENS, WIDTH))


def _cast_chain() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(x: Tensor, y: Tensor) -> Tensor:
        return (x.float() * 2.0 + y.float()).clamp(-1.0, 1.0).to(torch.bfloat16)

    return run, (_x(2048, 2048, dtype=torch.bfloat16), _x(2048, 2048, dtype=torch.bfloat16))


def _cross_entropy() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float() / 0.7, labels)

    return run, (_x(TOKENS, 8000, dtype=torch.bfloat16), torch.randint(0, 8000, (TOKENS,)))


def _gelu_by_hand() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))

    return run, (_x(TOKENS, 2048),)


def _geglu() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    weight, out = _x(WIDTH, 4096), _x(2048, WIDTH)

    def run(x: Tensor) -> Tensor:
        value, gate = (x @ weight).chunk(2, dim=-1)
        return (value * F.gelu(gate)) @ out

    return run, (_x(TOKENS, WIDTH),)


def _batch_norm_residual() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    norm = nn.BatchNorm2d(64).eval()
    return (lambda x, y: F.relu(norm(x) + y)), (_x(8, 64, 56, 56), _x(8, 64, 56, 56))


def _adaptive_norm() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
        normed = F.layer_norm(x, (WIDTH,)) * (1 + scale) + shift
        return x + gate * normed

    rows = [_x(4, 1, WIDTH) for _ in range(3)]
    return run, (_x(4, TOKENS, WIDTH), *rows)


def _transformer_layer() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    first, second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
    qkv, out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
    up, down = nn.Linear(WIDTH, 2048), nn.Linear(2048, WIDTH)

    def run(x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in qkv(first(x)).chunk(3, dim=-1))
        q, k, v = (part.transpose(1, 2).contiguous() for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + out(mixed)
        return x + down(F.gelu(up(second(x))))

    return run, (_x(2, TOKENS, WIDTH),)


def _logits_with_temperature() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(logits: Tensor, penalty: Tensor) -> Tensor:
        logits = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.softmax(logits.float() / 0.8, dim=-1)

    return run, (_x(16, 30_000), _x(16, 30_000).abs() + 1)


def _group_norm_swish() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    norm = nn.GroupNorm(8, 64)
    return (lambda x, y: F.silu(norm(x)) + y), (_x(4, 64, 64, 64), _x(4, 64, 64, 64))


# --- programs held out, written after the model was final ---------------------------------------


def _squared_relu_mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    up, down = _x(WIDTH, 2048), _x(2048, WIDTH)
    return (lambda x: F.relu(x @ up).square() @ down), (_x(TOKENS, WIDTH),)


def _normed_keys() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    gain = _x(64)

    def run(q: Tensor, k: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1) * gain, F.normalize(k, dim=-1) * gain
        return q @ k.transpose(-1, -2)

    return run, (_x(4, HEADS, TOKENS, 64), _x(4, HEADS, TOKENS, 64))


def _parallel_residual() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    norm, matrix = nn.LayerNorm(WIDTH), _x(WIDTH, WIDTH)

    def run(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x = x + y + z
        return x + norm(x) @ matrix

    return run, tuple(_x(TOKENS, WIDTH) for _ in range(3))


def _capped_logits() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(logits: Tensor) -> Tensor:
        return torch.softmax((30.0 * torch.tanh(logits / 30.0)).float(), dim=-1)

    return run, (_x(TOKENS, 4000, dtype=torch.bfloat16),)


def _layer_scale() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    norm, gamma = nn.LayerNorm(WIDTH), _x(WIDTH)
    return (lambda x, y: norm(x + gamma * y)), (_x(TOKENS, WIDTH), _x(TOKENS, WIDTH))


def _gated_rms_norm() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    weight = _x(WIDTH)

    def run(x: Tensor, gate: Tensor) -> Tensor:
        x = x * F.silu(gate)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    return run, (_x(4, TOKENS, WIDTH), _x(4, TOKENS, WIDTH))


def _token_shift() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    mix, matrix = _x(WIDTH), _x(WIDTH, WIDTH)

    def run(x: Tensor) -> Tensor:
        before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
        return (x + (before - x) * mix) @ matrix

    return run, (_x(4, TOKENS, WIDTH),)


def _masked_loss() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def run(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        loss = F.smooth_l1_loss(predicted, target, reduction="none")
        return (loss * mask).sum() / mask.sum()

    return run, (_x(TOKENS, 1024), _x(TOKENS, 1024), (_x(TOKENS, 1024) > 0).float())


TUNED = (
    _layer_norm_residual,
    _rms_norm,
    _rotary,
    _gated_mlp,
    _masked_softmax,
    _bias_gelu,
    _dropout_add_norm,
    _cast_chain,
    _cross_entropy,
    _gelu_by_hand,
    _geglu,
    _batch_norm_residual,
    _adaptive_norm,
    _transformer_layer,
    _logits_with_temperature,
    _group_norm_swish,
)
HELD_OUT = (
    _squared_relu_mlp,
    _normed_keys,
    _parallel_residual,
    _capped_logits,
    _layer_scale,
    _gated_rms_norm,
    _token_shift,
    _masked_loss,
)


# --- recording ---------------------------------------------------------------------------------


def _used(run: Callable[..., Any]) -> Callable[..., Any]:
    """A product reads the result of a program, as in a model."""

    def embedded(*inputs: Any) -> Tensor:
        result = run(*inputs)
        if result.ndim < 2:
            return result
        return result.flatten(0, -2) @ torch.ones(result.shape[-1], 4, dtype=result.dtype)

    return embedded


def _trained(run: Callable[..., Any]) -> Callable[..., Any]:
    """Forward and backward pass with respect to all inputs."""

    def step(*inputs: Any) -> None:
        result = run(*inputs)
        result.backward(torch.ones_like(result))

    return step


def _leaves(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.clone().requires_grad_(x.is_floating_point()) for x in inputs)


class _Counter:
    """A compiler that fuses as on a GPU, counts, and runs the graph as it was."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, module: Any, inputs: Any) -> Any:
        return compile_fx.compile_fx(module, inputs, inner_compile=self._count)

    def _count(self, module: Any, inputs: Any, **options: Any) -> Any:
        fake = compile_fx.fake_tensor_prop(module, inputs)
        is_inference = options.get("is_inference", False)
        with V.set_fake_mode(fake):
            compile_fx.record_original_output_strides(module)
            view_to_reshape(module)
            compile_fx._recursive_post_grad_passes(module, is_inference=is_inference)
            graph = GraphLowering(
                module,
                example_inputs=inputs,
                shape_env=fake.shape_env,
                is_inference=is_inference,
                is_backward=options.get("is_backward", False),
            )
            with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]), DebugContext():
                graph.run(*inputs)
                graph._update_scheduler()
                self.sizes += [
                    node.get_read_write_buffers_sizes()
                    for node in graph.scheduler.nodes
                    if not node.is_extern() and not isinstance(node, NopKernelSchedulerNode)
                ]
        return make_boxed_func(module.forward)


def _counted(
    run: Callable[..., Any], inputs: tuple[Any, ...], wrap: Callable[..., Any]
) -> list[int]:
    """Bytes of each kernel that TorchInductor would generate for a GPU."""
    counter = _Counter()
    torch._dynamo.reset()
    as_on_gpus = {
        "cpu_backend": "triton",
        "force_pointwise_cat": True,
        "force_disable_caches": True,
    }
    with config.patch(as_on_gpus):
        wrap(torch.compile(run, backend=counter))(*inputs)
    return counter.sizes


def record(folder: Path) -> None:
    """Record all programs, forward only and in training."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for part, programs in (("tuned", TUNED), ("held out", HELD_OUT)):
        for program in programs:
            for mode, wrap in (("forward", torch.no_grad()), ("training", _trained)):
                torch.manual_seed(0)
                run, inputs = program()
                run = _used(run)
                name = f"{program.__name__[1:]}_{mode}"
                if mode == "training":
                    inputs = _leaves(inputs)
                eager = wrap(run)
                eager(*inputs)
                with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
                    eager(*inputs)
                recorded.export_chrome_trace(str(folder / f"{name}.pt.trace.json"))
                sizes = _counted(run, inputs, wrap)
                found[name] = {"part": part, "bytes": sum(sizes), "kernels": len(sizes)}
                print(name, found[name], flush=True)
    (folder / "inductor.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
