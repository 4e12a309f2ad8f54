"""Why the advice misses what it misses, as far as it is known."""

from __future__ import annotations

_FASTER_REST = (
    "with the cause gone the rest of the step gets faster by more than the range allows for"
)
_UNSEEN_LOADER = f"{_FASTER_REST} (loader processes that no profile shows share its cores)"
_DIFFERS = "differs from recording to recording by more than the range allows for"
_FEEDS_BESIDE = (
    "input threads and step share two cores: the input slows the step's operators rather than "
    "making them wait, which only the range's upper end counts"
)
_EAGER = "on the CPU operators count as work, and what of it is dispatch no event tells"
_JITTER = "a few milliseconds of a short step, on two cores that several threads share"

MISSES: dict[str, str] = {
    "torch-few-workers": _UNSEEN_LOADER,
    "torch-slow-batches": _FASTER_REST,
    "torch-garbage": _FASTER_REST,
    "tf-py-function": _FASTER_REST,
    "tf-checkpoint": _FASTER_REST,
    "keras-no-prefetch": _FASTER_REST,
    "keras-element-map": _JITTER,
    "ddp-checkpoint": f"how long writing takes {_DIFFERS}",
    "jax-new-jit": f"how long compiling takes {_DIFFERS}",
    "jax-static-number": f"how long compiling takes {_DIFFERS}",
    "torch-augment": "the fix gains less than the machine's noise: the true gain is not known",
    "torch-tokenize": "a stall of three percent, the least that is told of",
    "torch-python-mask": "no stretch of Python is as long as python-overhead asks: operators that "
    "make a tensor of each list stand between",
    "ddp-input": "ranks share two cores, so that the fixed one computes longer than the slow one",
    "ddp-buckets": "what a bucket costs the host is not counted as communication",
    "ddp-accumulate": "what reducing costs the host is not counted as communication",
    "jax-all-reduce": "collectives of virtual devices wait for threads: how long they take "
    "differs from recording to recording",
    "keras-transform": _FEEDS_BESIDE,
    "keras-py-function": _FEEDS_BESIDE,
    "keras-generator": _FEEDS_BESIDE,
    "keras-eager": _EAGER,
    "jax-eager": _EAGER,
    "tf-retracing": "a new graph also runs slowly for the first time, which counts as work",
    "tf-lengths": "a new graph runs slowly for the first time, by more than the range allows for",
    "torch-compile": "recording each operator that is traced makes tracing take longer than it "
    "does without the profiler",
    "jax-lengths": "compilations differ in length by half",
    "torch-small-files, fixed": "reading a shard in the training process still takes 5 %: true",
    "torch-few-workers, fixed": "four workers on two cores do not always keep up: true",
    "torch-augment, fixed": "what is left of the augmentation still takes 5 to 10 %: true",
    "torch-heavy-decode, fixed": _JITTER,
    "keras-transform, fixed": _JITTER,
    "keras-py-function, fixed": _JITTER,
    "keras-no-prefetch, fixed": _JITTER,
    "jax-logging, fixed": _JITTER,
    "ddp-input, fixed": _JITTER,
    "tf-numpy": "the thread that prepares batches in the fixed one shares the cores with the step, "
    "which takes longer beside it",
    "tf-numpy, fixed": "the thread that prepares batches does not quite keep up: true",
    "pytorch_ddp_balanced": "the gradients' one bucket is exposed: true, and said by its label",
    "jax_healthy": "making the batch in NumPy takes a twelfth of the step: true, a guess in size",
    "kineto/resnet50_num_workers_4": "re-timed, faster kernels save nothing there: the host is "
    "as slow as the device",
    "local-torch2.13-cpu/conv_dl0_slow_rich": _UNSEEN_LOADER,
    "local-torch2.13-cpu/conv_dl0_fast_rich": "fetching in the training process takes 6.6 %: true",
    "local-torch2.13-cpu/ddp_gloo_2rank": _JITTER,
    "local-torch2.13-cpu/ddp_gloo_2rank_straggler": "other work slowed the recording without the "
    "sleep of 50 ms; 50 ms are right",
    "straggler: work that one rank has more of is shared[cpu]": "the others wait twice as long as "
    "an equal share would save, and waiting is communication that nothing covers",
    "backward synchronization: saves what the fix saves": "the idle that the wait "
    "induces is also that of a drawn copy: two findings of the same saving",
    "long all reduce: saves what the fix saves": "the drawing leaves out 30 µs of latency, "
    "which the estimate counts",
    "tfdata late growth: a buffer of decoded images": "a matter of memory, and rightly behind "
    "what costs time",
    "tfdata repeat before shuffle: names the repeat beneath the shuffle": "a matter of order, and "
    "rightly behind what costs time",
    "memory growth: fires on growth and not without": "no saving, so it ranks behind what has one",
    "memory headroom: fires with room and idle time and not without": "a remedy for the idle time "
    "that ranks first",
    "memory near capacity: fires near capacity and not below": "another finding on the same memory "
    "ranks level",
    "depthwise convolution: saves what the fix saves": "its single channel is padding as well: the "
    "same time by its layout",
    "transpose overhead: saves what the fix saves": "the same copy by its general name: level with "
    "it",
    "dominant kernel: names the kernel and its place": "no saving by itself: what is wrong with "
    "the kernel ranks first",
    "low matrix unit use: is told without a saving": "no saving by itself: the product that is "
    "slow ranks first",
    "replicated state: fires on replicas and not on shards": "a matter of memory, and rightly "
    "behind what costs time",
    "input imbalance: saves what the fix saves": "the same stall on the late rank: level with it",
    "debug mode: blocking launches save what running ahead saves": "the same idle time by its "
    "symptom: level with it",
    "unfused optimizer: saves what the fix saves": "the drawing fuses twenty kernels into one of "
    "the length of one; the estimate claims at most half of their time",
}
"""Why the advice misses a case, by the case's name; each is listed with its miss."""
