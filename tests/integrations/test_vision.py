"""Vision models of transformers and timm in `vit_bert`, with random weights."""

import pytest
import torch
from model_cases import WORDS
from model_cases import make_from_pixels as make
from picture_cases import encoded, photo

import selhn
from selhn.base.errors import NotFound, SelhnError
from selhn.losses import TripletSelHN
from selhn.models import load_model
from selhn.models.pixels import as_pixels, without_weights
from selhn.pictures import import_rows, load_extractor
from selhn.pictures.backbones import OpenClip, Timm
from selhn.pictures.extractor import Extractor
from selhn.training.optim import parameter_groups

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
SWIN = {
    "model_type": "swin",
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 2,
    "patch_size": 4,
}
HF_VIT = {"model_type": "vit", "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
          "intermediate_size": 16}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("vision", [HF_VIT, SWIN], ids=["vit", "swin"])
def test_vision_models_of_transformers_learn_and_are_saved(vision, tmp_path, library):
    transformers = library("transformers")
    model, regions = (
        make(vision={**vision, "auto_map": {"AutoModel": "evil.Model"}}),
        torch.rand(3, 17, 192) * 2 - 1,
    )
    model.train().encode_images(regions).sum().backward()
    gradients = [
        weight.grad is not None for weight in model.image.vision.parameters() if weight.requires_grad
    ]
    assert sum(gradients) > 0.8 * len(gradients)
    model.eval().save(tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").embed_images(regions), model.embed_images(regions))
    model.image.vision.network.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(
        '{"image_mean": [0.4, 0.4, 0.4], "image_std": [0.2, 0.2, 0.2]}'
    )
    opened = make(vision=f"transformers:{tmp_path / 'theirs'}").image.vision
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "theirs").eval()
    mask = torch.ones(3, 17, dtype=torch.bool)
    wanted = theirs(pixel_values=((as_pixels(regions, mask) + 1) / 2 - 0.4) / 0.2).last_hidden_state
    torch.testing.assert_close(opened(regions, mask)[0], wanted)
    assert opened.is_pretrained


@pytest.mark.slow
def test_what_a_file_may_not_name(library):
    library("transformers")
    for vision in ({"model_type": "timm_wrapper"}, {"library": "os", "model_type": "vit"}):
        with pytest.raises(NotFound):
            make(vision=vision)
    with pytest.raises(SelhnError):
        make(vision={**HF_VIT, "image_size": 64})


@pytest.mark.slow
def test_vision_models_of_timm(tmp_path, library):
    library("timm")
    regions = torch.rand(2, 17, 192) * 2 - 1
    for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "davit_tiny", "resnet18"):
        model = make(vision={"library": "timm", "model": name})
        model.save(tmp_path / name)
        assert torch.equal(load_model(tmp_path / name).embed_images(regions), model.embed_images(regions))
    with pytest.raises(NotFound):
        make(vision={"library": "timm", "model": "hf-hub:someone/model"})
    with pytest.raises(SelhnError):
        make(vision={"library": "timm", "model": "crossvit_tiny_240"})


@pytest.mark.slow
def test_trained_towers_keep_their_rate_when_a_run_is_resumed_or_a_model_loaded(
    tmp_path, library, monkeypatch
):
    timm = library("timm")
    make_timm = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *named, pretrained, **set: make_timm(*named, **set)
    )  # no network
    rates = [
        (len(group["params"]), group["lr"]) for group in parameter_groups(make(vision="timm:resnet18"), 1.0)
    ]
    assert [rate for _, rate in rates] == [1.0, 0.1]
    resumed = make(vision=without_weights("timm:resnet18"))
    resumed.save(tmp_path / "model")
    for model in (resumed, load_model(tmp_path / "model")):
        assert [(len(group["params"]), group["lr"]) for group in parameter_groups(model, 1.0)] == rates


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:resnet18", "timm:vit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224",
                                  "open_clip:ViT-S-32-alt"])  # fmt: skip
def test_extractors_of_timm_and_open_clip(name, library):
    """Their own features of a picture, where they are in it; with random weights."""
    kind, _, model = name.partition(":")
    library(kind)
    backbone = Timm(model, pretrained=False) if kind == "timm" else OpenClip(model)
    picture = photo(1, (60, 40))
    seen = []
    if kind == "open_clip":
        backbone.network.visual.transformer.resblocks[-1].register_forward_hook(
            lambda *given: seen.append(given[2])
        )
    with torch.inference_mode():
        pixels = backbone.prepare(picture)[None]
        maps = backbone.maps(pixels)
        theirs = seen[-1] if seen else backbone.network.forward_features(pixels)
        if theirs.ndim == 3:  # a class token and patches, row by row
            theirs = theirs[:, 1:].transpose(1, 2).unflatten(2, maps.shape[2:])
        elif theirs.shape[1] != backbone.width:
            theirs = theirs.permute(0, 3, 1, 2)
        assert torch.equal(maps, theirs)
        regions = Extractor(backbone, cells=2)([picture])
    assert regions.shape == (1, 5, backbone.width)
    torch.testing.assert_close(regions[0, 0], maps[0].mean(dim=(1, 2)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_clip_of_transformers_adapted_learns(library):
    """Its own pictures and words, by the plain seams: gradients reach both towers, and a step lowers the loss."""
    theirs, side, patch = library("transformers"), 16, 8
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    towers = {
        "text_config": {**sizes, "vocab_size": 40},
        "vision_config": {**sizes, "image_size": 16, "patch_size": 8},
    }
    torch.manual_seed(0)
    clip = theirs.CLIPModel(theirs.CLIPConfig(**towers, projection_dim=8))
    model = selhn.adapt(
        clip, images=clip.get_image_features, pixels=True, tokenizer=WORDS,
        texts=lambda tokens, mask: clip.get_text_features(input_ids=tokens, attention_mask=mask),
    )  # fmt: skip
    regions = torch.rand(8, 1 + (side // patch) ** 2, 3 * patch**2) * 2 - 1
    tokens, mask = WORDS.encode([f"word{i} word{i + 1}" for i in range(8)])
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(12):
        scores = model.score(model.encode_images(regions), model.encode_texts(tokens, mask))
        losses.append(TripletSelHN()(scores))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert clip.visual_projection.weight.grad.any()
    assert clip.text_projection.weight.grad.any()
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_dataset_of_hugging_face_is_imported(tmp_path, library):
    datasets = library("datasets")
    images = [{"bytes": encoded(photo(n), "PNG"), "path": None} for n in range(6)]
    rows = datasets.Dataset.from_dict({"image": images, "caption": [[f"a {n}", f"b {n}"] for n in range(6)]})
    rows = rows.cast_column("image", datasets.Image())
    parts = datasets.DatasetDict(
        {"train": rows.select(range(4)), "validation": rows.select([4]), "test": rows.select([5])}
    )
    import_rows(parts, tmp_path / "data", load_extractor("pixels_16_8"), cache=tmp_path / "c", quiet=True)
    data = selhn.load_data(tmp_path / "data")
    assert (data.train.num_images, data.train.num_texts, data.train.features.shape[1:]) == (4, 8, (5, 192))
    assert list(data.dev.captions) == ["a 4", "b 4"]
