"""What kernels compute, by their names: family, operands, storage.

GPU profiles contain little more than names, so only the name distinguishes a 16-bit matrix
product from a 32-bit one. If a name gives no hint, the answer is unknown, never "no". The
conventions come from recorded traces, from Volta to Blackwell (cuBLAS, cuDNN, CUTLASS, nvjet,
Triton, flash attention) and CDNA (Tensile, Composable Kernel, MIOpen, aiter), and from the
generators that write the names: Tensile's `ProblemType`, CUTLASS's `procedural_name`, trtllm-gen,
triton_kernels (`make_matmul_repr`), and vLLM's `ScalarType` ids in Marlin's template arguments.

Weights may be stored in 4 or 8 bits and multiplied in 16: then the wider operand counts, because
the narrower one is converted to it first. Where a name only says that weights are quantized, as
those of GPTQ with 2 to 8 bits may do, the width is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kernels.collective_names import WORDS as COLLECTIVE_WORDS
from tb_perfadvisor.ingest.kernels.collective_names import is_collective
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.kinds import KernelFamily, Precision

# trtllm-gen: `bmm_` output, operand A, operand B (left out if equal), accumulator.
_GENERATED_TYPE: Final = r"(?:Mx)?(?:E\dm\d|Bfloat16|Fp16|Fp32|Int8)"
_GENERATED_PRODUCT: Final = (
    rf"^b?(?:mm|gemm)_{_GENERATED_TYPE}_((?:{_GENERATED_TYPE}){{1,2}})_Fp32_"
)
# trtllm-gen: `Q` and `Kv`, together if equal, then `O`.
_GENERATED_ATTENTION: Final = (
    rf"^fmhaSm\d+\w?Kernel_Q(?:kv)?({_GENERATED_TYPE}(?:Kv{_GENERATED_TYPE})?)O"
)
# triton_kernels: layouts, then output x activations x weights.
_TRITON_PRODUCT: Final = r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_([a-z0-9]+)_\d"
_TRITON_TYPE: Final = r"(?:mx)?(?:bf16|fp?16|fp?32|fp8|f8|fp4|int8|u8)"
# The first template argument is the type of the activations: vLLM's id, or a name before that.
_MARLIN: Final = r"[mM]arlin\w{0,60}(?:::|_)Marlin\w{0,60}<\s*(?:\(\w+\))?\s*(\w+)"
_MACHETE: Final = r"machete::(?=\w*Kernel)\w*<\s*([\w:]+)"
_WEIGHTS_AND_ACTIVATIONS: Final = (
    r"(?i)(?<![a-z0-9])w(?:\d+|n)a(\d{1,3})(?![0-9])|(?<![a-z0-9])a(\d{1,3})w\d+(?![0-9])"
    r"|W\d+A(\d{1,3})(?![0-9])"
)
# Weights in 4 bits, activations in 16: GPTQ, AWQ, tinygemm, bitsandbytes, exllama, TensorRT-LLM.
_WEIGHT_ONLY: Final = (
    r"(?i)gptq|(?<![a-z])awq|tinygemm|kgemm_4bit|gemm_half_q_half|gemm_forward_4bit|fpA_intB"
)

_WIDTHS: Final = (
    (r"(?i)fp?32|float(?![_0-9])", Precision.BITS_32),
    (r"(?i)bf16|bfloat16|fp?16|half|float16", Precision.BITS_16),
    (r"(?i)e\dm\d|fp?8|float_?e|fp4|int8|u8", Precision.BITS_8),
)
# Of an id of 64 bits; Python refuses to parse thousands of digits.
_MOST_DIGITS: Final = 20
_BITS: Final = {32: Precision.BITS_32, 16: Precision.BITS_16, 8: Precision.BITS_8}


def arithmetic_of(name: str) -> Precision | None:
    """The precision in which a kernel multiplies, if its name tells those of its operands.

    The name is that of a matrix product or an attention kernel; None for names of other
    conventions.
    """
    generated = re.match(_GENERATED_PRODUCT, name) or re.match(_GENERATED_ATTENTION, name)
    if generated:
        return _widest(generated[1])
    triton = re.match(_TRITON_PRODUCT, name)
    if triton:
        return _widest(" ".join(re.findall(_TRITON_TYPE, triton[1])[1:]))
    marlin = re.search(_MARLIN, name)
    if marlin:
        return _of_activations(marlin[1])
    machete = re.search(_MACHETE, name)
    if machete:
        return _widest(machete[1])
    widths = re.search(_WEIGHTS_AND_ACTIVATIONS, name)
    if widths:
        bits = int(next(group for group in widths.groups() if group))
        return _BITS.get(max(bits, 8))
    return Precision.BITS_16 if re.search(_WEIGHT_ONLY, name) else None


def _widest(types: str) -> Precision | None:
    return next((width for pattern, width in _WIDTHS if re.search(pattern, types)), None)


def _of_activations(argument: str) -> Precision:
    """The type of Marlin's activations, from its first template argument."""
    digits = argument.rstrip("lLuU")
    if digits.isdecimal() and len(digits) <= _MOST_DIGITS:
        return Precision.BITS_8 if int(digits) in _eight_bit_ids() else Precision.BITS_16
    return _widest(argument) or Precision.BITS_16


@cache
def _eight_bit_ids() -> frozenset[int]:
    """Ids of vLLM's `ScalarType`: widths of exponent and mantissa, and flags from bit 16 on."""
    signed, finite, not_a_number = 1 << 16, 1 << 49, 1 << 50
    int8 = signed | 7 << 8 | not_a_number
    e4m3 = signed | 3 << 8 | 4 | finite | 2 * not_a_number
    return frozenset((int8, e4m3))


# Demangled C++ names repeat their template arguments in the parameter list. The rest of a long
# name takes time and contains misleading words such as "NoPermute".
_HEAD_CHARS: Final = 700

T = TypeVar("T")


class KernelClasses(Struct, frozen=True):
    """The classes of kernels; shape (n,) each, one entry per name."""

    family: NDArray[np.uint8]
    """`KernelFamily`."""
    precision: NDArray[np.uint8]
    """`Precision` of the arithmetic: of the narrowest input, unless the kernel first converts it
    to the type of the other one. 4-bit formats count as 8-bit."""
    tensor_cores: NDArray[np.int8]
    """1 if the kernel uses matrix units, 0 if not, -1 unknown."""


class _Class(Struct, frozen=True):
    family: KernelFamily
    precision: Precision
    tensor_cores: int


def classify_kernels(names: Sequence[str]) -> KernelClasses:
    """Classify kernels by their unique names, mangled or demangled; columns are in their order."""
    classes = [_classify(name) for name in names]
    return KernelClasses(
        family=np.array([c.family for c in classes], dtype=np.uint8),
        precision=np.array([c.precision for c in classes], dtype=np.uint8),
        tensor_cores=np.array([c.tensor_cores for c in classes], dtype=np.int8),
    )


def is_copy(name: str) -> bool:
    """Whether a kernel is a copy that ROCm's runtime carries out and records as a kernel."""
    return name.startswith("__amd_rocclr_copy")


def is_fill(name: str) -> bool:
    """Whether a kernel is a memset that ROCm's runtime carries out and records as a kernel."""
    return name.startswith("__amd_rocclr_fill")


@lru_cache(maxsize=16_384)  # ranks of one run share their kernels
def _classify(name: str) -> _Class:
    tensile = re.match(_TENSILE, name)
    if tensile:
        used = 1 if re.search(_TENSILE_MATRIX, name) else -1
        return _Class(KernelFamily.MATMUL, _tensile_precision(tensile[1]), used)
    head = _NOISE.sub("", name[:_HEAD_CHARS])
    family = _family(head)
    precision = _precision(head, family)
    return _Class(family, precision, _tensor_cores(head, family, precision))


# --- family -----------------------------------------------------------------------------------

_F = KernelFamily
_MATRIX_FAMILIES: Final = frozenset({_F.MATMUL, _F.CONVOLUTION, _F.ATTENTION})

# Inductor and XLA name a kernel after everything fused into it, so only the prefix tells what the
# kernel is: `triton_poi_fused_addmm_silu` is pointwise and contains no matrix product.
_COMPILED: Final = (
    (r"triton_tem_(?:(?!triton_).)*(?:flex|attention)|triton_flex_attention", _F.ATTENTION),
    (r"triton_tem_.*conv", _F.CONVOLUTION),
    (r"triton_(?:tem_|mm|bmm|gemm|nested_gemm)|gemm_fusion|__triton_nested_gemm", _F.MATMUL),
    (r"triton_poi_", _F.ELEMENTWISE),
    (r"^triton_(?:red|per)_.*(?:_norm|mean(?:(?!mean).)*rsqrt|var_mean)", _F.NORMALIZATION),
    (r"triton_(?:(?:red|per)_(?:(?!triton_).)*)?_?softmax", _F.SOFTMAX),
    (r"triton_(?:red|per|spl)_", _F.REDUCTION),
    (r"(?:loop|input)_(?:copy_)*transpose_fusion|(?:wrapped_)?transpose(?:[._]\d+)?$",
     _F.LAYOUT),
    (r"^(?:input|row|column|loop)_(?:\w+_)?reduce_(?:(?:(?!reduce_)\w)+_)?fusion|wrapped_reduce",
     _F.REDUCTION),
    (r"(?:wrapped_)?(?:input_concatenate|loop_copy|copy|concatenate)(?:_fusion)?(?:[._]\d+)?$",
     _F.COPY),
    (r"(?:loop|wrapped)_", _F.ELEMENTWISE),
)  # fmt: skip

# The first match wins, so narrow patterns precede wide ones: cuDNN's attention kernels contain
# "fprop", convolutions "gemm", normalizations "reduce". Every name that matches a pattern contains
# at least one of the words before it, in lower case. Checking the words first takes a fifth of the
# time of the patterns, which are compiled only when needed.
_FAMILIES: Final = tuple(
    (words.split(), pattern, family)
    for words, pattern, family in (
        # The names of its template arguments, such as `TransposePitchLinear`, say nothing.
        ("cutlass",
         r"cutlass\w{0,20}::\w{1,40}<cutlass\w{0,20}::gemm::", _F.MATMUL),
        ("__amd_rocclr_ memcpy reshape_and_cache store_kv",
         r"^__amd_rocclr_(?:copy|fill)|^(?:hip|cuda)?[mM]emcpy|reshape_and_cache|store_kv_?cache",
         _F.COPY),
        ("kv_indices alloc_",
         r"kv_indices|^alloc_\w*_kernel", _F.OTHER),
        ("rotary rope",
         r"(?i)rotary|(?<![a-z])(?:fused_)?rope_|apply_rope", _F.ELEMENTWISE),
        ("embedding indexselect gather krn_partial bounds_check sum_and compute_grad",
         r"(?i)embedding_bag|embeddingbag|split_embedding|embedding_(?:forward|backward|dense)"
         r"|indexSelect|vectorized_gather_kernel|krn_partial|bounds_check_indices"
         r"|sum_and_scatter|compute_grad_weight", _F.EMBEDDING),
        ("bn_ norm ln_ rowwisemoments gammabeta",
         r"bn_(?:fw|bw)_|bnorm|(?i:batch_?norm|layer_?norm|rms_?norm|group_?norm|instance_?norm)"
         r"|ln_(?:fwd|bwd)_|RowwiseMoments|GammaBeta", _F.NORMALIZATION),
        ("fmha flash att sdpa mha_ mla_ kvcache batchmla mergestate",
         r"(?i)fmha|flash_?(?:fwd|bwd|attn|decod)|flash::|attention|(?<![a-z])attn|sdpa"
         r"|(?<![a-z])mha_|(?<![a-z])mla_|FlashAttn|(?:Prefill|Decode)With\w{0,60}KVCache|BatchMLA"
         r"|MergeStates?", _F.ATTENTION),
        ("soft",
         r"(?i)soft_?max(?!op)", _F.SOFTMAX),
        ("nchw nhwc converttensor transpose permute swapdimension",
         r"(?i)nchw\w{0,60}tonhwc|nhwc\w{0,60}tonchw|foldednhwc|convertTensor_kernel|cublasTranspose"
         r"|batched_transpose|transpose_kernel|(?<![a-z])transpose_|permute(?!_indices|_2D)"
         r"|SwapDimension\w*", _F.LAYOUT),
        ("conv fprop dgrad wgrad bwd_weight cask_ cudnn winograd im2 col2im igemm_ fft flip_filter "
         "gcgemm pointwise_mult kern_precompute implicit",
         r"(?i)conv(?:olve|olution|[_<0-9]|fwd|bwd|2d|3d|::)|fprop|dgrad|wgrad|scudnn"
         r"|\d(?:cudnn)_|winograd|im2col|im2d2col|col2im|igemm_(?:fwd|bwd|wrw)"
         r"|(?<![a-z])fft[12]d_|flip_filter|gcgemm|pointwise_mult_and_sum_complex"
         r"|cask_\w{0,60}::compute\w{0,60}Offsets|_bwd_weight|kern_precompute_ind|implicit_?gemm",
         _F.CONVOLUTION),
        ("gemm gemv nvjet matmul cublas splitk fused_moe fmoe_ cijk_ mm_kernel bmm_ marlin "
         "machete w4a w8a fc-dtype",
         r"(?i)gemm|^fc-dtype|gemv|^nvjet|matmul|cublas(?:lt)?(?:::|splitk|dot|gemv|lt)|splitK_?reduce"
         r"|fused_moe_kernel|fmoe_|^Cijk_|(?<![a-z])b?mm_kernel|wvSplitK|ck_tile::\w*Gemm"
         r"|^bmm_|marlin(?:_24)?<|machete::|w4a(?:8|16)(?![0-9])|w8a(?:8|16)(?![0-9])", _F.MATMUL),
        ("adam lamb fusedoptimizer sgd adagrad rmsprop adafactor multi_tensor_apply",
         r"(?i)(?:fused_?)?adam|lamb(?:functor|_)|FusedOptimizer|sgd|adagrad|rmsprop|adafactor"
         r"|multi_tensor_apply_kernel<(?:(?!multi_).)*(?:PointwiseOp|TernaryOp)", _F.OPTIMIZER),
        ("sort topk top_k bitonic segmented",
         r"(?i)sort|topk|top_k|bitonic|segmented_?merge", _F.SORT),
        ("philox dropout distribution_ bernoulli multinomial curand random",
         r"(?i)philox|dropout|distribution_|bernoulli|multinomial|curand|random", _F.RANDOM),
        ("copy cat.out-dtype",
         r"(?i)^aten::cat\.out-dtype|CatArrayBatchedCopy|direct_copy_kernel|copy_device_to_device|copy_kernel"
         r"|copy_async_kernel|^copy", _F.COPY),
        ("elementwise act_and_mul silu gelu multi_tensor_apply optensor "
         "subtensorop mul_ add_ sub_ div_ tensorassignop scal_kernel scalepacked -dtype",
         r"(?i)vectorized_elementwise|unrolled_elementwise|elementwise|act_and_mul|silu|gelu"
         r"|multi_tensor_apply|SubTensorOp|OpTensor|^(?:mul|add|sub|div)_kernel"
         r"|TensorAssignOp(?!.*Reduction)|scal_kernel|scalePackedTensor"
         r"|^(?:aten::)?(?:add|sub|mul|divide|neg|reciprocal|sqrt|log2|clip|where|relu|sigmoid|tanh"
         r"|threshold)(?:_backward)?(?:\.\w+)?-dtype", _F.ELEMENTWISE),
        ("reduc cumsum cumprod scan loss nllcriterion sum_ argmax",
         r"(?i)reduc(?:e|tion)|cumsum|cumprod|scan|nll_?loss|NLLCriterion|(?:^|_)sum_|argmax",
         _F.REDUCTION),
    )
)  # fmt: skip

_COMPILED_PREFIX: Final = (
    r"^_*(?:triton_(?!_)|gemm_fusion|(?:loop|input|row|column|wrapped)_\w|transpose|copy"
    r"|concatenate)"
)


def _family(head: str) -> KernelFamily:
    if is_collective(head):
        return KernelFamily.COLLECTIVE
    if re.match(_COMPILED_PREFIX, head):
        bare = head.removesuffix(".kd")
        for pattern, family in _COMPILED:
            if re.match(pattern, bare, re.IGNORECASE):
                return family
    return _first_match(_FAMILIES, head, KernelFamily.OTHER)


def _first_match(table: Iterable[tuple[list[str], str, T]], head: str, default: T) -> T:
    """The value of the first pattern in a table that a name matches."""
    lower = head.lower()
    for words, pattern, value in table:
        for word in words:
            if word in lower:
                if re.search(pattern, head):
                    return value
                break
    return default


# --- precision --------------------------------------------------------------------------------

# Words that only look like an operation or a type: a library's name, an enumeration that can mean
# "no fp8", and the target of a conversion (the narrowest *input* counts).
_NOISE: Final = regex(
    r"fbgemm(?:_gpu)?|flashinfer|Fp8KVCacheDataType|to_h?fp8\w*|(?:compute|get)_FP8_q\w*|f2f_"
)

# Ordered by width, because the narrowest input counts. Words before patterns as above.
_KERNEL_WIDTHS: Final = tuple(
    (words.split(), pattern, precision)
    for words, pattern, precision in (
        (
            "f8 fp8 e4m3 e5m2 float8 e2m1 fp4 mxf i8816 i16832 i8832 imma s8s8 i8i8 scale mxgemm",
            r"(?i)fp8|e4m3|e5m2|float8|(?<![a-z])f8f8|_f8_|f8_(?:fnuz|ocp)|e2m1|fp4|mxf[468]"
            r"|i8816|i16832|i8832|imma(?![a-z])|s8s8|i8i8|block_?scale|mxgemm",
            Precision.BITS_8,
        ),
        (
            "16 half opaquetype 884 h1688 hgemm hmma",
            r"[Bb][Ff]16|[Bb][Ff]loat16|(?<![A-Za-z])[Ff]16|DF16|fp16|FP16|[Ff]loat16"
            r"|(?<![a-z])[hH]alf(?![a-z])|OpaqueType<2u?>|_matmul_\w{0,60}16"
            r"|[hs]884|h1688|[hs]16816|161616|hgemm|hmma_fp",
            Precision.BITS_16,
        ),
        (
            "float f32 fp32 sgemm scudnn cgemm tensorop_s1688",
            r"-dtype_Float|(?<!b)(?<!B)(?<!_to_)float(?![a-z0-9]*(?:8|16))|f32|fp32|sgemm|scudnn"
            r"|(?<![a-z])g?cgemm|\d\d_(?:wmma_)?tensorop_s1688|tensorop_s1688",
            Precision.BITS_32,
        ),
        (
            "double f64 fp64 dgemm zgemm d884",
            r"-dtype_Double|(?<![A-Za-z])double(?![A-Za-z])|f64|fp64|dgemm|zgemm|d884",
            Precision.BITS_64,
        ),
    )
)

RECOGNIZED_WORDS: Final = frozenset(
    word for table in (_FAMILIES, _KERNEL_WIDTHS) for words, *_ in table for word in words
).union(COLLECTIVE_WORDS)
"""What kernels are recognized by, in lower case; pieces of words and names."""

# Itanium's letters for pointers to and template arguments of float and double.
_MANGLED_32: Final = r"(?:P|PK|I|J|E)f(?=[A-Z]|$)"
_MANGLED_64: Final = r"(?:P|PK|I|J|E)d(?=[A-Z]|$)"
# Composable Kernel stores bfloat16 as unsigned short, `t`: A, B, accumulator, shuffle, C.
_MANGLED_CK_16: Final = r"[EI_]t{2,3}[ft]t"

# nvjet's type letters: input (one letter for both, or one each), compute, output.
_NVJET: Final = r"^nvjet_(?:sm\d+_)?([a-z]+)_"
_NVJET_TYPES: Final = {
    "h": Precision.BITS_16,
    "t": Precision.BITS_16,  # bfloat16
    "s": Precision.BITS_32,
    "d": Precision.BITS_64,
    "q": Precision.BITS_8,  # e4m3
    "r": Precision.BITS_8,  # e5m2
    "o": Precision.BITS_8,  # 4-bit float, which counts as 8-bit
}

_INT8_MATRIX: Final = r"u?int8_t|signed char"


def _precision(head: str, family: KernelFamily) -> Precision:
    nvjet = re.match(_NVJET, head)
    if nvjet:
        return _NVJET_TYPES.get(nvjet[1][0], Precision.UNKNOWN)
    if family in _MATRIX_FAMILIES:
        arithmetic = arithmetic_of(head)
        if arithmetic is not None:
            return arithmetic
    # Turing's tensor cores have no tf32, so a bare s1688 there is a 16-bit product.
    if "s1688" in head and re.search(r"turing_|cutlass_75", head):
        return Precision.BITS_16
    # Kernels that quantize read the wider type and compute with it.
    quantizes = family not in _MATRIX_FAMILIES and "quant" in head.lower()
    precision = _first_match(_KERNEL_WIDTHS[1:] if quantizes else _KERNEL_WIDTHS, head, None)
    if precision is not None:
        return precision
    if head.startswith("_Z"):
        if re.search(_MANGLED_CK_16, head):
            return Precision.BITS_16
        if re.search(_MANGLED_32, head):
            return Precision.BITS_32
        if re.search(_MANGLED_64, head):
            return Precision.BITS_64
    if family in (_F.MATMUL, _F.CONVOLUTION) and re.search(_INT8_MATRIX, head):
        return Precision.BITS_8
    return Precision.UNKNOWN


# Tensile: indices, then the types of input, output and compute, then B(atched) and H(igh
# precision accumulation): `Cijk_Alik_Bljk_BBS_BH_…`, `…_SB_…`, `…_F8B8S_BH_…`, `…_S_MX_B_…`.
_TENSILE: Final = r"^(?:Custom_)?Cij[a-z]*_A[a-z]+_B[a-z]+_([A-Z0-9x]+(?:i8?[A-Z]*)?)_"
_TENSILE_MATRIX: Final = r"_MI\d+x\d+x\d+"
_TENSILE_TYPES: Final = (
    (("F8", "B8", "I8", "4xi8", "F6", "B6", "F4"), Precision.BITS_8),
    (("H", "B"), Precision.BITS_16),
    (("S", "C"), Precision.BITS_32),
    (("D", "Z"), Precision.BITS_64),
)


def _tensile_precision(types: str) -> Precision:
    for prefixes, precision in _TENSILE_TYPES:
        if types.startswith(prefixes):
            return precision
    return Precision.UNKNOWN


# --- matrix units -----------------------------------------------------------------------------

_MATRIX_UNITS: Final = (
    r"(?i)tensorop|tensor_op_|sm(?:80|86|89|9\d|1\d\d)_xmma|xmma_|hmma|imma|[hsdi](?:884|1688|16816)"
    r"|161616|i(?:8816|16832|8832)|s64x\d+x\d+|gmma|tcgen05|utcmma|^nvjet|cutlass3x"
    r"|flash_(?:fwd|bwd)|flash::|native_sdpa|FlashAttnFwdSm|fmhaSm(?:80|86|89|9\d|1\d\d)|mfma|xdl|deep_gemm"
    r"|igemm_(?:fwd|bwd|wrw)_gtcx|MultistageINS_4gemm|TensorOp|^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_"
    r"|^b?(?:mm|gemm)_\w+_Fp32_|marlin(?:_24)?<|machete::|tinygemm|gemm_forward_4bit|w\d+a\d+mixed"
    r"|Gemm\w{0,60}Sm\d+|BlockScaled\w{0,60}Gemm|ck::kernel_(?:moe_)?(?:mx)?gemm|(?:oss|native)_sdpa"
    r"|aiter(?:::|\d+)(?:fmoe|fmha|mla|f4gemm|fp8gemm|bf16gemm|i8gemm)"
    r"|PrefillWith\w{0,60}KVCache"
)
_NO_MATRIX_UNITS: Final = (
    r"(?i)(?<![a-z])(?:maxwell|pascal|volta|turing|ampere|cudnn)\w{0,60}_(?:s|gc|c)gemm|sgemm|scudnn|simt"
    r"|(?<![a-z])g?cgemm|fermi[a-z]gemm|volta_[dz]gemm|gemv|gemmk1|gemmSN|splitK_?reduce|ReduceSplitK|reduce_1Block"
    r"|dot_kernel|kgemm_4bit|gemm_half_q_half|winograd|miopenSp3AsmConv|naive_conv|(?<![a-z])fft[12]d_|im2col|im2d2col|flip_filter|Offsets"
    r"|pointwise_mult_and_sum|precompute_ind|[dw]grad2?d?_\w{0,60}engine|dgrad_engine"
    r"|dgrad2d_alg|reduce_wgrad|epilogue::impl"
)
_MEM_EFFICIENT: Final = r"fmha_cutlass[FB]_(f32|f16|bf16)_\w{0,100}?sm(\d+)"


def _tensor_cores(head: str, family: KernelFamily, precision: Precision) -> int:
    if family == _F.OTHER:
        return -1
    if family not in _MATRIX_FAMILIES:
        return 0
    efficient = re.search(_MEM_EFFICIENT, head)
    if efficient:  # 32-bit inputs reach tensor cores from Ampere on, 16-bit ones from Volta on
        return int(int(efficient[2]) >= (80 if efficient[1] == "f32" else 70))
    if re.search(_NO_MATRIX_UNITS, head):
        return 0
    if re.search(_MATRIX_UNITS, head):
        return 1
    if "ck_tile" in head and precision in (Precision.BITS_8, Precision.BITS_16):
        return 1  # all its pipelines use MFMA instructions
    return -1


# trtllm-gen: output, then operands A and B. triton_kernels: output x activations x weights.
_GENERATED: Final = (
    r"^b?(?:mm|gemm)_[^_]+_((?:Mx)?(?:E\dm\d|Int8))((?:Mx)?(?:E\dm\d|Bfloat16|Fp16))_"
)
_TRITON: Final = (
    r"^_(?:p_)?matmul(?:_ogs)?_[NT]{3}_[a-z0-9]{1,40}?x((?:bf|fp?)\d+)\w{0,60}?x((?:mx)?fp?\d)"
)
# The second template argument is the type of the weights: an id of vLLM, or a name.
_MARLIN_WEIGHTS: Final = (
    r"[mM]arlin\w{0,60}(?:::|_)Marlin\w{0,60}<[^,]{1,200},\s*(?:\(\w+\))?\s*(\d{1,20})[lL]?,"
)
_MACHETE_WEIGHTS: Final = r"machete::(?=\w*Kernel)\w*<[^,]{1,200},\s*cutlass::integer_subbyte<(\d),"
_STATED: Final = (
    r"(?i:kgemm|gemm_forward|gptq)_(4)bit|BLayout_TC_int(4)|(?<![a-z0-9])w([48])a16(?![0-9])"
    r"|W([48])A16(?![0-9])|(?<![a-z])a16w([48])(?![0-9])"
)
_FOUR_BITS: Final = r"E2m1|fp?4$"


def stored_bits(name: str) -> int | None:
    """The width of a product's weights, if its name tells that it multiplies them in more bits.

    It is 4 or 8 bits; None if the name tells nothing, or that both operands are as wide.
    """
    operands = re.match(_GENERATED, name) or re.match(_TRITON, name)
    if operands:
        widths = {
            4 if re.search(_FOUR_BITS, type_) else _width(type_) for type_ in operands.groups()
        }
        return min(widths) if len(widths) > 1 else None
    marlin = re.search(_MARLIN_WEIGHTS, name)
    if marlin:
        # Of vLLM's `ScalarType`: bits of the exponent, of the mantissa, and whether it is signed.
        number = int(marlin[1])
        return (number & 0xFF) + (number >> 8 & 0xFF) + (number >> 16 & 1)
    stated = re.search(_MACHETE_WEIGHTS, name) or re.search(_STATED, name)
    return int(next(group for group in stated.groups() if group)) if stated else None


def _width(type_: str) -> int:
    return 16 if re.search(r"(?i)bf|fp?16", type_) else 8
