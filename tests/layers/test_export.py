"""Networks exported to ONNX have the same outputs for any number of samples."""

import subprocess
import sys

import pytest
import torch
from support.networks import build_slice, images_and_labels, small_layers
from torch import nn

from convoy.errors import ConfigError
from convoy.layers.export import OnnxNetwork, export_onnx, require_onnx

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def network() -> nn.Module:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    return build_slice(small_layers()).to(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def model(network: nn.Module) -> bytes:
    return export_onnx(network.train(), torch.zeros(1, 3, 16, 16))


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_onnx_runtime_matches_torch(network: nn.Module, model: bytes, samples: int) -> None:
    images, _ = images_and_labels(samples, 16)
    with torch.inference_mode():
        (expected,) = network.eval()(images)
    (outputs,) = OnnxNetwork(model, threads=1)(images.contiguous(memory_format=torch.channels_last))

    assert outputs.shape == expected.shape
    assert torch.allclose(outputs, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.slow
def test_export_restores_the_training_mode(network: nn.Module) -> None:
    export_onnx(network.train(), torch.zeros(2, 3, 16, 16))

    assert all(module.training for module in network.modules())


@pytest.mark.slow
def test_an_exported_model_is_deterministic(network: nn.Module, model: bytes) -> None:
    assert export_onnx(network, torch.zeros(1, 3, 16, 16)) == model


def test_missing_packages_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy.layers.export.find_spec", lambda name: name == "onnx" or None)
    with pytest.raises(ConfigError) as caught:
        require_onnx("--backend onnxruntime")

    message = str(caught.value)
    assert "--backend onnxruntime needs onnxscript, onnxruntime" in message
    assert "pip install 'convoy-cnn[onnx]'" in message and "\n" not in message


@pytest.mark.processes
def test_onnx_is_imported_lazily() -> None:
    script = "import sys, convoy.layers.export; print([n for n in sys.modules if 'onnx' in n])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert "onnxruntime" not in result.stdout and "onnxscript" not in result.stdout
