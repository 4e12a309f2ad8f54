"""FLOP of real profiles beside what the architectures need, worked out by hand.

Architectures are those of the models' configurations on Hugging Face and in torchvision; batches
and lengths are the recorded ones.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.efficiency.utilization import throughput, utilization
from tb_perfadvisor.testing import run_of
from tests.corpus.test_xla_profiles import training
from tests.corpus.test_xprof_tpu import table


def signals_of(path: Path) -> Signals:
    (run,) = load(path)
    return Signals(run)


def test_bert_small(corpus: Path) -> None:
    signals = signals_of(corpus / "tracelens/h100/gaunernst_bert-small-uncased")
    # Four layers of width 512: 4 x 512 x 512 for attention, 2 x 512 x 2048; then the head for
    # masked words, 512 x 512 and 512 x 30,522. One sequence of 141 tokens.
    parameters = 4 * (4 * 512**2 + 2 * 512 * 2048) + 512**2 + 512 * 30_522
    expected = 2 * parameters * 141 + 4 * 4 * 141**2 * 512
    found = utilization(signals)
    assert found.model_flop == found.executed_flop == expected
    # A step of 4.426 ms in bf16.
    assert found.mfu == pytest.approx(expected / (4.426e-3 * 989.4e12), rel=1e-3)
    assert throughput(signals).tokens_per_step == 141


def test_vision_transformer(corpus: Path) -> None:
    signals = signals_of(corpus / "tracelens/h100/Falconsai_nsfw_image_detection")
    # ViT-Base: 12 layers of width 768, and a layer for the class token at the end. Images of
    # 224 x 224 in patches of 16 x 16.
    patches, images = 14 * 14, 4
    parameters = 12 * 12 * 768**2
    expected = images * (
        2 * parameters * (patches + 1)
        + 12 * 4 * (patches + 1) ** 2 * 768
        + 2 * patches * 768 * (16 * 16 * 3)
        + 2 * 768**2
    )
    assert utilization(signals).model_flop == expected
    assert throughput(signals).samples_per_step == images


def test_qwen_with_causal_flash_attention(corpus: Path) -> None:
    signals = signals_of(corpus / "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat")
    # Qwen1.5-0.5B without its head: 24 layers of width 1,024, and three matrices of 1,024 x 2,816.
    # 16 sequences of 559 tokens. Positions are a product of 32 frequencies by 559.
    tokens, parameters = 16 * 559, 24 * (4 * 1024**2 + 3 * 1024 * 2816)
    attention, positions = 24 * 4 * 16 * 559**2 * 1024, 2 * 32 * 559
    found = utilization(signals)
    assert found.model_flop == 2 * parameters * tokens + attention + positions
    assert found.executed_flop == found.model_flop - attention / 2
    assert throughput(signals).tokens_per_step == tokens
    # The host takes 47.151 ms, longer than the device for the work of the step. The dense peak in
    # 16 bits is 989.4 TFLOP/s.
    assert found.mfu == pytest.approx(found.model_flop / (47.151e-3 * 989.4e12), rel=1e-3)


def test_tensor_parallel_megatron(corpus: Path) -> None:
    signals = signals_of(corpus / "astra-sim/megatron_tp8")
    # GPT of 40 layers of width 4,096 and a vocabulary of 51,200. Four sequences of 2,048 tokens,
    # forward only. Each of eight ranks has an eighth of all matrices and heads.
    tokens, ranks = 4 * 2048, 8
    parameters = 40 * 12 * 4096**2 + 4096 * 51_200
    attention = 40 * 4 * 4 * 2048**2 * 4096
    expected = (2 * parameters * tokens + attention) / ranks
    found = utilization(signals)
    assert found.model_flop == found.executed_flop == expected
    # A100, 16 bits; rank 0 takes 603.24 ms.
    assert found.mfu == pytest.approx(expected / (0.60324 * 312e12), rel=1e-4)
    assert throughput(signals).tokens_per_step == tokens


def test_resnet_18_with_activation_checkpoints(corpus: Path) -> None:
    signals = signals_of(corpus / "tracelens/mi300/resnet_act_checkpoint")
    # torchvision's ResNet-18 takes 1,814,073,344 multiplications for an image, of which its first
    # convolution takes 118,013,952 and its last layer 512,000. Ten images a step. The first layer
    # needs no gradient of its input.
    first = 2 * 10 * 118_013_952
    forward = 2 * 10 * 1_814_073_344
    found = utilization(signals)
    assert found.model_flop == 3 * forward - first
    # All but the first and the last layer are computed again.
    recomputed = forward - first - 2 * 10 * 512_000
    assert found.executed_flop == 3 * forward - first + recomputed
    assert throughput(signals).samples_per_step == 10
    # The markers are 16.2 ms apart, but the work of the steps ends at 49.346, 68.329 and 86.883 ms,
    # and begins at 30.366: 18.839 ms a step. The dense peak in 16 bits is 1,307.4 TFLOP/s.
    assert found.mfu == pytest.approx(found.model_flop / (18.839e-3 * 1307.4e12), rel=1e-3)


def test_resnet_50_of_an_old_profiler(corpus: Path) -> None:
    signals = signals_of(corpus / "kineto/resnet50_num_workers_0")
    # 4.09e9 multiplications for an image (torchvision), 32 images; forward and twice that backward.
    # Old profiles do not tell that the first layer's input needs no gradient, which is 1 %.
    expected = 3 * 2 * 4.09e9 * 32
    found = utilization(signals)
    assert found.model_flop == pytest.approx(expected, rel=0.002)
    # V100 in 32 bits: 15.7 TFLOP/s. Six steps take 1,049.3 ms.
    assert found.mfu == pytest.approx(expected / (1.0493 / 6 * 15.7e12), abs=0.005)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tracelens/inference_sglang_decode", "no shapes of products"),
        ("tugot17/llama_tp2_ann", "no shapes recorded"),
        ("xprof-demo/plugins/profile/Cloud-TPU", "only sums recorded"),
        ("hta/rank_non_gpu", "no device events"),
    ],
)
def test_unknown_says_why(corpus: Path, path: str, reason: str) -> None:
    run = load(corpus / path)[0]
    found = utilization(Signals(run))
    assert (found.mfu, found.hfu, found.reason_in_short) == (None, None, reason)


def test_products_in_graphs_are_known_where_their_capture_is_recorded(corpus: Path) -> None:
    (folder,) = (corpus / "pytorch-labs").glob("01_*")
    found = utilization(Signals(load(folder)[0]))
    assert found.reason_in_short == ""
    # The encoder's products run in a graph, most of the time is the decoder's and the host's.
    assert found.mfu is not None
    assert 0.005 < found.mfu < 0.05


def test_hfu_of_a_real_training_on_a_tpu_is_xprofs(corpus: Path) -> None:
    path = corpus / "xprof-golden/data_tpu-training_roofline_model_tpu_training.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    program = table(document[0] if isinstance(document, list) else document)[0]
    assert program["Operation"] == "Program"
    stated = program["FLOP Rate / Peak (%)"]
    assert stated == pytest.approx(0.5969, abs=1e-4)
    found = utilization(Signals(run_of(training(corpus))))
    assert found.hfu == pytest.approx(stated, abs=0.005)
    # Attention is a kernel of the program's own, so MFU stays unknown.
    assert (found.mfu, found.reason_in_short) == (None, "custom kernels")
