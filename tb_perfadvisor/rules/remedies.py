"""Remedies that more than one rule gives."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy

EVEN_INPUT = Remedy(
    text="Give each rank as many samples of the same cost, from storage that is equally near, "
    "and as many loader processes.",
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
"""A training step of JAX that is one program."""
