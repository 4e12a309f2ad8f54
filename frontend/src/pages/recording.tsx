// How to record a profile that this tab can read.
import type { JSX } from "preact";
import { Code } from "../widgets/code";
import { Tabs } from "../widgets/tabs";

const PYTORCH = `import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(skip_first=10, wait=1, warmup=2, active=6, repeat=1),
    on_trace_ready=tensorboard_trace_handler("runs/my_run"),
    record_shapes=True,
    profile_memory=True,
) as profiler:
    for batch in loader:
        train_step(batch)
        profiler.step()  # marks the end of a step
`;

const TENSORFLOW = `import tensorflow as tf

callback = tf.keras.callbacks.TensorBoard("runs/my_run", profile_batch=(10, 20))
model.fit(dataset, epochs=1, callbacks=[callback])

# Or in a custom training loop:
tf.profiler.experimental.start("runs/my_run")
for step, batch in enumerate(dataset.take(10)):
    with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
        train_step(batch)
tf.profiler.experimental.stop()
`;

const JAX = `import jax

for _ in range(10):  # compile and warm up first
    state = train_step(state, next(batches))
jax.block_until_ready(state)

with jax.profiler.trace("runs/my_run"):
    for step in range(10):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            state = train_step(state, next(batches))
    jax.block_until_ready(state)
`;

export function Recording(): JSX.Element {
  return (
    <Tabs
      label="Framework"
      tabs={[
        { name: "PyTorch", content: <Code text={PYTORCH} language="python" /> },
        { name: "TensorFlow", content: <Code text={TENSORFLOW} language="python" /> },
        { name: "JAX", content: <Code text={JAX} language="python" /> },
      ]}
    />
  );
}
