"""Remedies for how TensorFlow runs the step, which Keras compiles by itself."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals.workload.parts import Part

STEPS_PER_CALL = variants(
    "steps-per-call",
    Remedy(
        text="Let fit run many steps in each call: TensorFlow then goes from one to the next by "
        "itself. Callbacks are called once per call.",
        snippet="model.compile(optimizer=optimizer, loss=loss, steps_per_execution=50)",
        needs=(Part.KERAS,),
        reference="https://keras.io/api/models/model_training_apis/#compile-method",
    ),
    Remedy(
        text="Run many steps per call.",
        snippet=(
            "@tf.function\n"
            "def train_steps(iterator):\n"
            "    for _ in tf.range(50):\n"
            "        strategy.run(train_step, args=(next(iterator),))"
        ),
        reference="https://www.tensorflow.org/guide/tpu",
    ),
    framework="tensorflow",
)
"""Run many steps in one call."""

LARGER_KERAS_BATCH = Remedy(
    text="Give each step more rows: as long as calling the step takes longer than computing it, a "
    "larger batch costs nothing. Scale the learning rate with it, and check that the model still "
    "converges.",
    snippet="model.fit(dataset.unbatch().batch(256), epochs=epochs)  # or batch_size=256",
    framework="tensorflow",
    needs=(Part.KERAS,),
    reference="https://keras.io/api/models/model_training_apis/#fit-method",
)

COMPILED_STEP = variants(
    "compiled-step",
    Remedy(
        text="Let Keras compile the step, as fit does unless it is told otherwise, and keep "
        "TensorFlow's operators out of callbacks.",
        snippet="model.compile(optimizer=optimizer, loss=loss, run_eagerly=False)",
        needs=(Part.KERAS,),
        reference="https://keras.io/api/models/model_training_apis/#compile-method",
    ),
    Remedy(
        text="Put the whole step under one tf.function; XLA then also fuses its operators.",
        snippet=(
            "@tf.function(jit_compile=True)\n"
            "def train_step(batch, labels):\n"
            "    with tf.GradientTape() as tape:\n"
            "        loss = loss_fn(labels, model(batch, training=True))\n"
            "    gradients = tape.gradient(loss, model.trainable_variables)\n"
            "    optimizer.apply_gradients(zip(gradients, model.trainable_variables))\n"
            "    return loss"
        ),
        reference="https://www.tensorflow.org/guide/function",
    ),
    framework="tensorflow",
)
"""Run the step as one graph."""
