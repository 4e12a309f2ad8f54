"""Remedies that several rules give."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy

EVEN_INPUT = Remedy(
    text="Give all ranks the same number of samples of similar cost, equally near storage, and "
    "the same number of loader processes.",
    snippet=(
        "sampler = DistributedSampler(dataset, drop_last=True)\n"
        "loader = DataLoader(dataset, sampler=sampler, num_workers=8, prefetch_factor=4)"
    ),
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/data.html",
)
ONE_JIT = (
    "@jax.jit\n"
    "def train_step(state, batch):\n"
    "    loss, gradients = jax.value_and_grad(loss_fn)(state.params, batch)\n"
    "    return state.apply_gradients(grads=gradients), loss"
)
"""A JAX training step that is compiled as one program."""
