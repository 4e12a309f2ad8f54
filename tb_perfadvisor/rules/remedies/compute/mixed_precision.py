"""Remedies that compute in 16 bits, or in one pass of the matrix unit, in each framework."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.compute.precision import BFLOAT16, FLOAT16

MIXED_BFLOAT16 = (
    *BFLOAT16,
    Remedy(
        text="Set a mixed-precision policy: compute in 16 bits, variables in 32.",
        snippet='tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")',
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/mixed_precision",
    ),
    Remedy(
        text="Cast the parameters and inputs of the forward pass to bfloat16; keep the master copy "
        "and the loss in float32.",
        snippet=(
            "def loss_fn(params, batch):\n"
            "    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)\n"
            "    return model.apply(half, batch.astype(jnp.bfloat16)).astype(jnp.float32).mean()"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jep/9407-type-promotion.html",
    ),
)
# GPUs before Ampere have no bfloat16. The range of float16 is small, so the loss is scaled.
MIXED_FLOAT16 = (
    *FLOAT16,
    Remedy(
        text="Set a mixed-precision policy: compute in float16, variables in 32 bits. Keras scales "
        "the loss.",
        snippet='tf.keras.mixed_precision.set_global_policy("mixed_float16")',
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/mixed_precision",
    ),
    Remedy(
        text="Cast the forward pass to float16, scale the loss by a constant, and divide the "
        "gradients by it.",
        snippet="half = jax.tree.map(lambda x: x.astype(jnp.float16), params)",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jep/9407-type-promotion.html",
    ),
)
ONE_PASS = (
    Remedy(
        text="Use the default precision, and a higher one only for products that need it. `high` "
        "takes half the passes of `highest`.",
        snippet=(
            'jax.config.update("jax_default_matmul_precision", "default")\n'
            "y = jnp.dot(x, w)  # without precision=jax.lax.Precision.HIGHEST"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jax.lax.html#jax.lax.Precision",
    ),
    Remedy(
        text="Compute in bfloat16, with variables in 32 bits.",
        snippet='tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")',
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/mixed_precision",
    ),
    Remedy(
        text="Use the default precision of PyTorch/XLA.",
        snippet='torch_xla.backends.set_mat_mul_precision("default")',
        framework="pytorch",
        reference="https://docs.pytorch.org/xla/master/",
    ),
)
