"""Names as recorded: Kineto's samples and HTA's, sam-fast's and TraceLens' traces, XLA on a TPU."""

from __future__ import annotations

import pytest

from tb_perfadvisor.trace.names import (
    short_annotation,
    short_name,
    unqualified,
    variant_key,
    without_number,
)

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<{0}>, "
    "at::detail::Array<char*, 3> >(int, at::native::AddFunctor<{0}>, at::detail::Array<char*, 3>)"
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x128_tn"),
        (ADD.format("float"), ADD.format("c10::Half")),
        (ADD.format("float"), ADD.format("c10::BFloat16")),
        ("triton_poi_fused__unsafe_view_mul_silu_2", "triton_poi_fused__unsafe_view_mul_silu_13"),
        (
            "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float)",
            "void cudnn::bn_bw_1C11_kernel_new<__half, float, float2, 512, true, 1>(float, __half)",
        ),
        (
            "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
            "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x64x64",
        ),
        (
            "StatefulPartitionedCall/sequential_1/conv2d_1/Relu:_FusedConv2D",
            "StatefulPartitionedCall/sequential_1_1/conv2d_2_1/Relu:_FusedConv2D",
        ),
        ("StatefulPartitionedCall/adam/mul_16:Mul", "StatefulPartitionedCall/adam_1/mul_20:Mul"),
    ],
)
def test_variants_of_one_kernel(first: str, second: str) -> None:
    assert variant_key(first) == variant_key(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ADD.format("float"), ADD.format("float").replace("AddFunctor", "MulFunctor")),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_nn"),
        ("triton_poi_fused_add_0", "triton_poi_fused_mul_0"),
        ("aten::add", "aten::add_"),
        ("model/dense/MatMul:MatMul", "model/dense/BiasAdd:BiasAdd"),
        # The name of a type inside a word is not a type.
        ("doubleBufferedKernel", "floatBufferedKernel"),
    ],
)
def test_different_kernels(first: str, second: str) -> None:
    assert variant_key(first) != variant_key(second)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("fusion.12", "fusion"),
        ("broadcast_add_fusion", "broadcast_add_fusion"),
        ("loop_fusion_3", "loop_fusion"),
        ("copy.1.clone.2", "copy"),
        ("all-reduce-done.7", "all-reduce-done"),
        ("conv2d", "conv2d"),
        (".5", ".5"),
    ],
)
def test_numbers_of_xla_operations(name: str, stem: str) -> None:
    assert without_number(name) == stem


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            ADD.format("float"),
            "vectorized_elementwise_kernel<4, AddFunctor<float>, Array<char*, 3>>",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
            "(int, float, float const*)",
            "vectorized_layer_norm_kernel<float, float>",
        ),
        (
            "void cub::DeviceScanKernel<cub::Policy<int>::P800>(int*, (anonymous namespace)::Op)",
            "DeviceScanKernel<Policy<int>::P800>",
        ),
        ("(odd)", "(odd)"),
    ],
)
def test_unqualified_names(name: str, short: str) -> None:
    assert unqualified(name) == short


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mm", "aten::mm"),
        ("PjitFunction(<lambda>)", "PjitFunction(<lambda>)"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::Fill<float> >(int)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("replica_6/bert/embeddings/GatherV2/Cast:Cast", "GatherV2/Cast"),
        ("random_uniform/RandomUniform:RandomUniform", "random_uniform/RandomUniform"),
        ("conv/BiasAdd:Add", "conv/BiasAdd:Add"),
        ("Iterator::Root::Prefetch::MapAndBatch", "MapAndBatch"),
        ("Iterator::Model::ParallelMapV2[0]", "ParallelMapV2"),
        ("$time sleep", "time.sleep"),
        ("$train.py:12 step", "train.py:12 step"),
        ("/tmp/cache/ov/model.py(2533): call", "ov/model.py:2533 call"),
        ("k" * 60, "k" * 47 + "…"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("## forward ##", "forward"),
        ("forward", "forward"),
        # From tracelens/inference_vllm_decode_full_capture.
        (
            "## Call CompiledFxGraph f4ii27ddivzklxr54hd45chngp247rp2ytmjxpq3f55wet4szuh7 ##",
            "Call CompiledFxGraph",
        ),
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("####", "####"),
    ],
)
def test_short_annotations(name: str, short: str) -> None:
    assert short_annotation(name) == short
