"""Known reasons why the advice misses a case."""

from __future__ import annotations

_FASTER_REST = "without the cause, the rest of the step gets faster by more than the range allows"
_UNSEEN_LOADER = f"{_FASTER_REST} (loader processes, which no profile shows, share its cores)"
_DIFFERS = "differs between recordings by more than the range allows"
_SHARED_CORES = (
    "input threads and the step share two cores, and no event shows how long a Python function "
    "computes, and how long it waits"
)
_EAGER = "on the CPU operators count as work, and no event shows how much of it is dispatch"
_JITTER = "a few milliseconds of a short step, on two cores that several threads share"

MISSES: dict[str, str] = {
    "torch-slow-batches": _FASTER_REST,
    "torch-garbage": _FASTER_REST,
    "tf-py-function": _FASTER_REST,
    "tf-checkpoint": _FASTER_REST,
    "keras-no-prefetch": _FASTER_REST,
    "keras-element-map": "tf.data tunes the slow program's map while it runs, so that its step "
    "takes 17 to 49 ms",
    "torch-nested-lists": _FASTER_REST,
    "torch-epochs": _FASTER_REST,
    "torch-checkpoint": f"how long writing takes {_DIFFERS}",
    "ddp-checkpoint": f"how long writing takes {_DIFFERS}",
    "jax-new-jit": f"how long compiling takes {_DIFFERS}",
    "jax-static-number": f"how long compiling takes {_DIFFERS}",
    "jax-new-lengths": f"how long compiling takes {_DIFFERS}",
    "torch-augment": "the fix gains less than the machine's noise, so the true gain is unknown",
    "torch-tokenize": "a stall of 3 %, the smallest that is reported",
    "torch-python-mask": "no stretch of Python is as long as python-overhead requires, because "
    "operators that turn each list into a tensor lie in between",
    "ddp-input": "ranks share two cores, so the fixed one computes longer than the slow one",
    "ddp-buckets": "the host cost of a bucket does not count as communication",
    "ddp-accumulate": "the host cost of reducing does not count as communication",
    "jax-all-reduce": "collectives of virtual devices wait for threads, so their duration differs "
    "between recordings",
    "keras-transform": _SHARED_CORES,
    "keras-py-function": _SHARED_CORES,
    "keras-eager": _EAGER,
    "jax-eager": _EAGER,
    "tf-retracing": "the first run of a new graph is slow, too, which counts as work",
    "tf-lengths": "the first run of a new graph is slow, by more than the range allows",
    "torch-compile": "recording every traced operator makes tracing slower than it is without the "
    "profiler",
    "jax-lengths": "compilation times differ by half",
    "torch-small-files, fixed": "true: reading a shard in the training process still takes 5 %",
    "torch-few-workers, fixed": "true: four workers on two cores do not always keep up",
    "torch-augment, fixed": "true: the remaining augmentation still takes 5 to 10 %",
    "torch-heavy-decode, fixed": _JITTER,
    "keras-transform, fixed": _JITTER,
    "keras-element-map, fixed": _JITTER,
    "keras-small-batches, fixed": "true: making fifty batches takes a tenth of the call",
    "keras-py-function, fixed": _JITTER,
    "keras-no-prefetch, fixed": _JITTER,
    "jax-logging, fixed": _JITTER,
    "ddp-input, fixed": _JITTER,
    "tf-numpy": "in the fixed one, the thread that prepares batches shares the cores with the step "
    "and slows it",
    "tf-numpy, fixed": "true: the thread that prepares batches does not quite keep up",
    "pytorch_ddp_balanced": "true: the only bucket of gradients is exposed, as its label says",
    "jax_healthy": "true: making the batch in NumPy takes a twelfth of the step, by a guess",
    "kineto/resnet50_num_workers_4": "in the replay, faster kernels save nothing: the host is "
    "as slow as the device",
    "local-torch2.13-cpu/conv_dl0_slow_rich": _UNSEEN_LOADER,
    "local-torch2.13-cpu/conv_dl0_fast_rich": "true: fetching in the training process takes 6.6 %",
    "local-torch2.13-cpu/ddp_gloo_2rank": _JITTER,
    "local-torch2.13-cpu/ddp_gloo_2rank_straggler": "other work slowed the recording without "
    "the sleep of 50 ms; 50 ms are right",
    "straggler: uneven work can be shared[cpu]": "the others wait twice as long as "
    "an equal share would save, and waiting is exposed communication",
    "backward synchronization: saves what the fix saves": "the idle time "
    "of the wait is also that of a drawn copy: two findings with the same saving",
    "long all reduce: saves what the fix saves": "the drawing leaves out 30 µs of latency, "
    "which the estimate counts",
    "tfdata late growth: a buffer of decoded images": "about memory, and rightly ranked "
    "below what costs time",
    "tfdata repeat before shuffle: names the repeat below the shuffle": "about order, and "
    "rightly ranked below what costs time",
    "memory growth: fires on growth and not without": "no saving, so it ranks below what has one",
    "memory headroom: fires with room and idle time and not without": "a remedy for the idle time "
    "that ranks first",
    "memory near capacity: fires near capacity and not below": "another finding about the same "
    "memory ranks equally",
    "transpose overhead: saves what the fix saves": "the same copy under its general name ranks "
    "equally",
    "dominant kernel: names the kernel and its place on the roofline": (
        "no saving of its own: what is wrong with the kernel ranks first"
    ),
    "low matrix unit use: reports low use without a saving": (
        "no saving of its own: the slow product ranks first"
    ),
    "replicated state: fires on replicas and not on shards": "about memory, and rightly "
    "ranked below what costs time",
    "input imbalance: saves what the fix saves": "the same stall on the late rank ranks equally",
    "debug mode: blocking launches cost what running ahead saves": "the same idle time, explained "
    "by its symptom, ranks equally",
    "unfused optimizer: saves what the fix saves": "the drawing fuses twenty kernels into a single "
    "one of the same length; the estimate claims at most half of their time",
}
"""The reason by the name of the case."""
