"""How to record a profile, for agents that change the program."""

from __future__ import annotations

from types import MappingProxyType

_PYTORCH = """\
Record 5 steps after warm-up, with shapes and stacks:

with torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=5, warmup=2, active=5, repeat=1),
    on_trace_ready=torch.profiler.tensorboard_trace_handler("runs/baseline"),
    record_shapes=True,
    with_stack=True,
) as profiler:
    for batch in loader:
        train_step(batch)
        profiler.step()  # marks the end of a step
"""
_KERAS = """\
Record steps 10 to 15 with Keras's callback:

callback = keras.callbacks.TensorBoard("runs/baseline", profile_batch=(10, 15))
model.fit(dataset, callbacks=[callback])
"""
_TENSORFLOW = """\
Record 5 steps after warm-up, and mark each:

with tf.profiler.experimental.Profile("runs/baseline"):
    for number in range(5):
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            train_step(next(batches))
"""
_JAX = """\
Record 5 steps after warm-up, and mark each:

with jax.profiler.trace("runs/baseline"):
    for number in range(5):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            state = train_step(state, next(batches))
    jax.block_until_ready(state)
"""
_AGAIN = """
Record the changed program into another directory (runs/changed) in the same way, on the same
machine, and then call `compare`.
"""

HOW_TO_RECORD = MappingProxyType(
    {
        "pytorch": _PYTORCH + _AGAIN,
        "keras": _KERAS + _AGAIN,
        "tensorflow": _TENSORFLOW + _AGAIN,
        "jax": _JAX + _AGAIN,
    }
)
"""By framework."""
