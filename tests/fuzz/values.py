"""Values that break readers: limits of types, and text that must not reach anybody raw."""

from __future__ import annotations

MARKUP = "<img src=x onerror=alert(1)>"
"""Must never appear in an export as it is."""

NUMBERS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, 7, 63, 64, 127, 128, 255, 256, 1000, 1023, 1024, 65_535, 65_536),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**53 + 1, 10**12, 10**15, -(10**15)),
    # As microseconds, at the limit of 64-bit nanoseconds and beyond.
    *(9_223_372_036_854_775, 9_223_372_036_854_776, -9_223_372_036_854_776, 9 * 10**15),
    *(2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, 10**400),
    *(0.5, -0.5, 1e-9, 1e9, 1e18, 1e300, -1e300, 1.7976931348623157e308),
    *(float("nan"), float("inf"), float("-inf")),
)
INTEGERS = tuple(
    number for number in NUMBERS if isinstance(number, int) and number.bit_length() < 65
)

TEXTS = (
    "",
    MARKUP,
    "]]>&amp;\"'`|*_#[x](javascript:alert(1))",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202eright to left\u2066",
    "\ud800 half of a pair",
    "\x00",
    "a" * 5_000,
    "\n\n# heading\n\n",
    "ProfilerStep#1",
    "ProfilerStep#99999999999",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
    "cudaGraphLaunch",
    "aten::bmm",
    "aten::_softmax",
    "aten::convolution",
    "aten::batch_norm",
    "aten::copy_",
    "autograd::engine::evaluate_function: MmBackward0",
    "Optimizer.step#SGD.step",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "Memcpy DtoH (Device -> Pageable)",
    "[memory]",
    "gpu_user_annotation",
    "cuda_sync",
    "python_function",
    "Iterator::Batch::Map",
    "PjitFunction(step)",
    "jit_step(7)",
    "XLA Ops",
    "/device:TPU:0",
    "/device:GPU:4294967295",
    "/host:CPU",
    "%f = f32[9999999999999,9999999999]{1,0:T(8,128)} dot(f32[8]{0} %a, f32[0]{0} %b)",
    "[[8,128],[128,64]]",
    "-1",
    "1e999",
    "NaN",
)
