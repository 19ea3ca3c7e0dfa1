"""Both towers of other libraries as one embedding model, with small random ones in place of CLIP and SigLIP."""

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import jaxtyping
import pytest
import safetensors.torch
import torch
from picture_cases import encoded, photo
from PIL import Image

from selhn.base.errors import NotFound, SelhnError
from selhn.eval import evaluate, score_split
from selhn.export import export_towers, towers_of
from selhn.models import load_model
from selhn.pictures import Library, index_pictures, load_extractor
from selhn.pictures.backbones import open_clip_name
from selhn.pictures.dataset import picture_split
from selhn.pictures.two_towers import TwoTowers, load_two_towers
from selhn.search import Index
from selhn.towers import open_towers

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *["a", "red", "ball", "dog", "in", "the", "snow", "two"]]
TEXT = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 8, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
          "image_size": 32, "patch_size": 8}  # fmt: skip


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="needs transformers")


def write_model(transformers, folder, family):
    """The folder of a small model with a tokenizer of words and the settings of its processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    if family == "clip":
        config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=12)
        network = transformers.CLIPModel(config)
        processor = {
            "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32},
            "do_center_crop": True,
        }
    else:
        config = transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
        network = transformers.SiglipModel(config)
        processor = {"size": {"height": 32, "width": 32}}
    network.save_pretrained(folder)
    scaled = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, **scaled}))
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=8, **names).save_pretrained(
        folder
    )
    return network.eval()


@pytest.fixture(scope="module", params=["clip", "siglip"])
def made(transformers, tmp_path_factory, request):
    folder = tmp_path_factory.mktemp(request.param) / "model"
    folder.mkdir()
    return write_model(transformers, folder, request.param), folder


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.png").write_bytes(encoded(photo(number, (50 + 9 * number, 40)), "PNG"))
    return folder


def expected_vectors(network, image, text):
    """What the library itself computes, by its own words."""
    siglip = network.config.model_type == "siglip"
    if not siglip:
        short = 32 / min(image.size)
        image = image.resize([max(32, int(edge * short)) for edge in image.size], Image.Resampling.BICUBIC)
        left, top = ((edge - 32) // 2 for edge in image.size)
        image = image.crop((left, top, left + 32, top + 32))
    image = image.resize((32, 32), Image.Resampling.BICUBIC)
    pixels = (
        torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(32, 32, 3).permute(2, 0, 1) / 255
    )
    pixels = (pixels - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.4])[
        :, None, None
    ]
    ids = [1, *(WORDS.index(word) for word in text.split()), 2]
    ids += [0] * (8 - len(ids)) if siglip else []
    with torch.inference_mode():
        found = network(input_ids=torch.tensor([ids]), pixel_values=pixels[None])
    return found.image_embeds[0], found.text_embeds[0]


def test_vectors_are_those_of_the_library(made):
    network, folder = made
    model = load_model(f"transformers:{folder}")
    assert model.is_embedding
    assert model.name == f"transformers:{network.config.model_type}"
    for size in ((50, 40), (40, 90), (32, 32)):
        image, text = photo(3, size), "two dog in snow"
        picture, sentence = expected_vectors(network, image, text)
        regions = model.extractor([image])
        assert regions.shape[:2] == (1, 1)
        torch.testing.assert_close(model.embed_images(regions)[0], picture, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.embed_texts([text, "a"])[0], sentence, rtol=1e-4, atol=1e-5)
        assert float(
            model.score(model.embed_images(regions), model.embed_texts([text]))[0, 0]
        ) == pytest.approx(float(picture @ sentence), abs=1e-5)
    long = "dog " * 500
    assert torch.equal(model.embed_texts([long])[0], model.embed_texts(["dog " * 6])[0]), (
        "cut where its positions end"
    )
    assert model.tokenizer.spell(model.tokenize(["a dog"])[0][0, :4].tolist()) == ["<s>", "a", "dog", "</s>"]


def test_an_index_by_one_switch(made, photos, tmp_path):
    network, folder = made
    source = f"transformers:{folder}"
    done = index_pictures(photos, tmp_path / "i", towers=towers_of(load_model(source)), quiet=True)
    assert done.added == 6
    assert not (tmp_path / "i" / "models").exists(), "it is named, not copied"
    library = Library.open(tmp_path / "i")
    hits = library.index.search("a red ball", k=6)
    scores = {hit.id: hit.score for hit in hits}
    for number in range(6):
        picture, sentence = expected_vectors(network, Image.open(photos / f"{number}.png"), "a red ball")
        assert scores[str(photos / f"{number}.png")] == pytest.approx(float(picture @ sentence), abs=2e-3)
    assert library.index.search(str(photos / "2.png"))[0].id == str(photos / "2.png")
    (photos / "7.png").write_bytes(encoded(photo(7), "PNG"))
    assert index_pictures(photos, tmp_path / "i", quiet=True).added == 1
    for bad in ("timm:resnet50", "efficientnet_lite2"):
        with pytest.raises(SelhnError, match="leave the extractor"):
            index_pictures(photos, tmp_path / "j", towers=towers_of(load_model(source)), extractor=bad)


@pytest.fixture
def no_network(monkeypatch):
    """What was looked up or connected to; all of it fails."""
    asked = []

    def refuse(*where, **how):
        asked.append(where)
        raise OSError("no network here")

    for name in ("getaddrinfo", "create_connection", "socket.connect"):
        monkeypatch.setattr(f"socket.{name}", refuse)
    return asked


LOADS = """
import socket
def refuse(*where, **how):
    print("looked up", where)
    raise OSError
socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
from selhn.base.errors import SelhnError
from selhn.models import load_model, load_model_named_in_file
for load, name in ((load_model_named_in_file, "transformers:attacker/evil"), (load_model, "transformers:{folder}")):
    try:
        print(load(name).name)
    except SelhnError as error:
        print(type(error).__name__)
"""


def test_a_fresh_process_looks_nothing_up_for_a_name_in_a_file_or_for_a_folder(made):
    """The library behind transformers asks its hub once per process, whatever is opened."""
    network, folder = made
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", LOADS.format(folder=folder)], capture_output=True, text=True, env=environment
    )
    assert done.stdout.split("\n") == ["NotFound", f"transformers:{network.config.model_type}", ""], (
        done.stderr
    )


def test_an_index_is_opened_from_local_files_only(made, photos, tmp_path, no_network):
    network, folder = made
    elsewhere = tmp_path / "model"
    elsewhere.symlink_to(folder)
    index_pictures(
        photos, tmp_path / "i", towers=towers_of(load_model(f"transformers:{elsewhere}")), quiet=True
    )
    elsewhere.unlink()
    with pytest.raises(NotFound, match=f"transformers:{elsewhere}, which is not on this machine: .*--model"):
        Index.load(tmp_path / "i")
    moved = Index.load(tmp_path / "i", towers_of(load_model(f"transformers:{folder}")))
    assert len(moved.search(str(photos / "1.png"))) == 5
    other = dict(moved.about)
    for name in (
        "transformers:someone/model",
        "open_clip:ViT-B-32/laion2b",
        "open_clip:/a/folder",
        "pickle:x",
    ):
        index = Index.create(moved.towers, tmp_path / name.replace("/", "_"), about={**other, "model": name})
        with pytest.raises(SelhnError, match="--model"):
            Index.load(index.path)
    assert not no_network, "an index and a folder make no look-up"


def test_its_files_stay_with_its_library(made, tmp_path, monkeypatch):
    _, folder = made
    monkeypatch.chdir(folder.parent)
    model = load_model("transformers:model")
    assert model.source == f"transformers:{folder}", "wherever an index is opened"
    with pytest.raises(SelhnError, match="model of another library"):
        model.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
def test_exported_towers_search_without_the_library(transformers, photos, tmp_path, family):
    pytest.importorskip("onnxscript", reason="ONNX files need the extra onnx")
    (tmp_path / "model").mkdir()
    write_model(transformers, tmp_path / "model", family)
    model = load_model(f"transformers:{tmp_path / 'model'}")
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        export_towers(model, tmp_path / "towers")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    found, by_library = open_towers(tmp_path / "towers"), towers_of(model)
    assert (found.digest, found.features) == (by_library.digest, by_library.features)
    texts, pictures = (
        ["two dog in snow", "a", "dog " * 30, "unknown"],
        [photo(3, (50, 40)), photo(4, (40, 90))],
    )
    assert abs(found.embed_texts(texts) - by_library.embed_texts(texts)).max() < 1e-5
    assert abs(found.embed_pictures(pictures) - by_library.embed_pictures(pictures)).max() < 1e-5
    for own, wanted in zip(found.tokenizer.encode(texts), by_library.tokenizer.encode(texts), strict=True):
        assert own.tolist() == wanted.tolist()
    assert index_pictures(photos, tmp_path / "i", towers=found, quiet=True).added == 6
    hits = Index.load(tmp_path / "i").search("a red ball", k=3)
    by_name = index_pictures(photos, tmp_path / "j", towers=by_library, quiet=True)
    assert by_name.added == 6
    wanted = Index.load(tmp_path / "j", by_library).search("a red ball", k=3)
    assert [hit.id for hit in hits] == [hit.id for hit in wanted]


def test_what_is_not_a_pair_of_towers(transformers, tmp_path):
    vit = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    transformers.ViTModel(vit).save_pretrained(tmp_path / "vit")
    with pytest.raises(SelhnError, match="ViTModel has no towers for pictures and texts"):
        load_model(f"transformers:{tmp_path / 'vit'}")
    with pytest.raises(NotFound, match="there is no folder .*nowhere"):
        load_model(f"transformers:{tmp_path / 'nowhere'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SelhnError, match="transformers cannot open .*empty"):
        load_model(f"transformers:{tmp_path / 'empty'}")
    write_model(transformers, tmp_path / "empty", "clip")
    for file in ("model.safetensors", "tokenizer.json", "preprocessor_config.json", "config.json"):
        whole = (tmp_path / "empty" / file).read_bytes()
        (tmp_path / "empty" / file).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(SelhnError, match="cannot open .*empty"):
            load_model(f"transformers:{tmp_path / 'empty'}")
        (tmp_path / "empty" / file).write_bytes(whole)
    (tmp_path / "code").mkdir()
    content = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (tmp_path / "code" / "config.json").write_text(json.dumps(content))
    (tmp_path / "code" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(SelhnError, match="cannot open"):
        load_model(f"transformers:{tmp_path / 'code'}")
    assert not (tmp_path / "ran").exists()


def test_why_a_library_cannot_open_a_model_is_one_line(monkeypatch):
    def offline(*_):
        raise OSError("cannot connect\n  Check your connection")

    monkeypatch.setattr("selhn.pictures.two_towers.TransformersTowers", offline)
    with pytest.raises(SelhnError, match=r"cannot open 'a/b' \(cannot connect Check your connection\)"):
        load_model("transformers:a/b")


def test_it_is_measured_on_a_data_set_of_pictures(made, photos, tmp_path):
    _, folder = made
    (tmp_path / "captions.csv").write_text(
        "image,caption\n" + "".join(f"{n}.png,{WORDS[4 + n]} dog\n{n}.png,the snow\n" for n in range(6))
    )
    model = load_model(f"transformers:{folder}")
    split, _ = picture_split(photos, model.extractor, tmp_path / "captions.csv")
    assert 0 <= evaluate(model, split).rsum <= 600
    regions, _ = split.features.gather(torch.arange(6))
    expected = model.embed_images(regions) @ model.embed_texts(split.captions).T
    torch.testing.assert_close(score_split(model, split), expected, rtol=1e-4, atol=1e-5)
    again = load_extractor(f"embedding:transformers:{folder}")
    assert again.identity == model.extractor.identity


def test_towers_that_do_not_meet(made):
    """Told when the model is opened, and not at the first picture."""
    _, folder = made
    towers = load_model(f"transformers:{folder}").towers
    towers.encode_pixels = lambda pixels: torch.zeros(len(pixels), 3)
    with pytest.raises(SelhnError, match="x gives pictures 3 numbers, but texts a different number"):
        TwoTowers(towers, "x")


def test_names_of_open_clip():
    assert open_clip_name("ViT-B-32/laion2b_s34b_b79k") == ("ViT-B-32", "laion2b_s34b_b79k")
    assert open_clip_name("RN50") == ("RN50", None)
    assert open_clip_name("hf-hub:owner/model") == ("hf-hub:owner/model", None), (
        "its slash is part of the name"
    )


@pytest.fixture(scope="module")
def open_clip():
    """open_clip imports torchvision, which some builds of torch have no operators for: two names are enough."""
    if find_spec("open_clip") is None:
        pytest.skip("needs open_clip")
    try:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:  # a torchvision that fits is there
        pass
    return import_module("open_clip")


@pytest.fixture
def of_open_clip(open_clip, tmp_path):
    """The folder of a small model of open_clip, as its own programs write one."""
    config = {
        "embed_dim": 12,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    torch.manual_seed(0)
    network = open_clip.CLIP(**config)
    folder = tmp_path / "open"
    folder.mkdir()
    prepare = {
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.4],
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": prepare})
    )
    safetensors.torch.save_model(network, str(folder / "open_clip_model.safetensors"))
    return network.eval(), folder


def test_a_model_of_open_clip(open_clip, of_open_clip, photos, tmp_path):
    network, folder = of_open_clip
    model = load_model(f"open_clip:{folder}")
    with torch.inference_mode():
        sentence = network.encode_text(
            open_clip.SimpleTokenizer(context_length=16)(["a red ball"]), normalize=True
        )[0]
        pixels = torch.from_numpy(model.extractor.backbone.prepare(photo(1, (60, 40))))[None]
        picture = network.encode_image(pixels, normalize=True)[0]
    torch.testing.assert_close(model.embed_texts(["a red ball"])[0], sentence)
    torch.testing.assert_close(model.embed_images(model.extractor([photo(1, (60, 40))]))[0], picture)
    index = index_pictures(photos, tmp_path / "i", towers=towers_of(model), quiet=True).index
    assert len(index.search("a red ball", k=9)) == 6
    with pytest.raises(SelhnError, match="open_clip:.* which is opened only if you ask for it: .*--model"):
        Index.load(tmp_path / "i")
    assert len(Index.load(tmp_path / "i", load_two_towers(f"open_clip:{folder}"))) == 6
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(SelhnError, match="asks to run code"):
        load_model(f"open_clip:{folder}")
