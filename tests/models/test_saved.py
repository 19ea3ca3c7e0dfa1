import json
import os
from pathlib import Path

import pytest
import torch
from model_cases import WORDS, make_batch, make_model, score_batch, write_bert
from planted import PLANTED, make_outside, plant
from read_only import content_of, read_only

import selhn.models.saved as folder_module
from selhn.base import folders
from selhn.base.errors import Damaged, Linked, NotFound, SelhnError
from selhn.models import create_model, load_model


@pytest.fixture
def saved(tmp_path):
    make_model("rvse").save(tmp_path / "model")
    return tmp_path / "model"


def test_what_is_in_the_folder(saved):
    files = {"README.md", "checksums.json", "config.json", "model.safetensors", "vocabulary.json"}
    assert {path.name for path in saved.iterdir()} == files
    assert os.listdir(saved.parent) == ["model"], "nothing is left beside it"
    config = json.loads((saved / "config.json").read_text())
    assert config["name"] == "rvse"
    assert config["settings"]["dim"] == 16
    assert set(config["versions"]) == {"selhn", "torch"}
    assert "# rvse" in (saved / "README.md").read_text()
    assert len({path.stat().st_mode for path in saved.iterdir()}) == 1, (
        "whoever may read one file may read all"
    )


def test_saving_again_replaces_it(saved):
    other = make_model("vse_fc")
    other.save(str(saved))
    assert load_model(str(saved)).name == "vse_fc"
    assert os.listdir(saved.parent) == ["model"]


def test_the_previous_one_survives_a_full_disk(saved, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "save_file", no_space)
    with pytest.raises(OSError, match="No space left"):
        make_model("vse_fc").save(saved)
    assert os.listdir(saved.parent) == ["model"]
    assert load_model(saved).name == "rvse"


def test_the_previous_one_comes_back_when_moving_fails(saved, monkeypatch):
    rename = os.rename

    def rename_once(source, target):
        if target == saved and not str(source).endswith("previous"):
            raise OSError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_once)
    monkeypatch.setattr(folders, "_swapped", lambda one, other: False)
    with pytest.raises(OSError, match="Permission"):
        make_model("vse_fc").save(saved)
    assert os.listdir(saved.parent) == ["model"]
    assert load_model(saved).name == "rvse"


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "vocabulary.json", "checksums.json"])
@pytest.mark.parametrize("share", [0.4, 0.97])
def test_one_flipped_bit(saved, file, share):
    content = bytearray((saved / file).read_bytes())
    content[int(share * len(content))] ^= 2
    (saved / file).write_bytes(content)
    with pytest.raises(Damaged):
        load_model(saved)


def test_missing_checksums(saved):
    (saved / "checksums.json").unlink()
    with pytest.raises(Damaged):
        load_model(saved)


def test_the_card_may_be_changed(saved):
    (saved / "README.md").write_text("my words")
    load_model(saved)


def test_weights_that_are_not_finite(tmp_path):
    model = make_model("rvse")
    model.image.fc.bias.data[1] = float("nan")
    model.save(tmp_path)
    with pytest.raises(Damaged, match="not finite"):
        load_model(tmp_path)


def test_a_folder_with_other_things_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SelhnError, match="thesis.tex"):
        make_model("rvse").save(tmp_path)
    with pytest.raises(SelhnError, match="is a file"):
        make_model("rvse").save(tmp_path / "thesis.tex")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file(saved, file):
    (saved / file).unlink()
    with pytest.raises(NotFound, match=file):
        load_model(saved)


def test_weights_of_another_program_are_sent_to_their_reader(tmp_path):
    torch.save({"model": []}, tmp_path / "model_best.pth.tar")
    with pytest.raises(NotFound, match=r"load_official\(NAME, "):
        load_model(tmp_path / "model_best.pth.tar")


def test_no_folder(tmp_path):
    with pytest.raises(NotFound):
        load_model(tmp_path / "nowhere")


def test_a_run_is_its_best_epoch(saved, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(NotFound):
        load_model(run)
    saved.rename(run / "best")
    assert load_model(run).name == "rvse"


def test_a_run_with_a_model_that_is_not_registered(saved, tmp_path):
    saved.rename(tmp_path / "best")
    (tmp_path / "best" / "config.json").unlink()
    with pytest.raises(NotFound):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["run", "run/best"])
def test_models_and_runs_of_version_0_2_0_are_read(name):
    model = load_model(Path(__file__).parents[1] / "fixtures/version_0_2_0" / name)
    assert len(model.encode_texts(*model.tokenize(["a dog"]))) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"model_type": "bert"}', "written by selhn"),
        ('{"format": 99, "name": "rvse", "settings": {}}', "format 99"),
        ('{"format": 1, "name": "rvs", "settings": {}}', "registered"),
    ],
)
def test_a_strange_config(saved, content, message):
    before_checksums(saved)
    (saved / "config.json").write_text(content)
    with pytest.raises(SelhnError, match=message):
        load_model(saved)


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_truncated_weights(saved, share):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(Damaged, match="not what was written"):
        load_model(saved)
    before_checksums(saved)
    with pytest.raises(Damaged, match="cut off"):
        load_model(saved)


def before_checksums(saved):
    """Make it a folder of format 1."""
    (saved / "checksums.json").unlink()
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"format": 1}))


def test_weights_of_another_model(saved, tmp_path):
    before_checksums(saved)
    make_model("vse_fc").save(tmp_path / "other")
    (saved / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(SelhnError, match="image.mlp"):
        load_model(saved)


def test_weights_that_share_memory_can_be_saved(tmp_path):
    model = make_model("rvse")
    flat = torch.randn(40 * 8 + 16)
    model.text.words.embed.weight = torch.nn.Parameter(flat[:320].view(40, 8))
    model.image.fc.bias = torch.nn.Parameter(flat[320:])
    model.save(tmp_path / "model")
    batch = make_batch()
    assert torch.equal(score_batch(load_model(tmp_path / "model"), batch), score_batch(model, batch))


def test_the_tokenizer_travels(saved):
    loaded = load_model(saved)
    assert loaded.tokenizer.words == WORDS.words
    assert loaded.tokenizer.mask_id == 39


def test_what_others_left_beside_a_model_stays(saved):
    (saved / ".DS_Store").write_text("looked")
    (saved / "notes.txt").write_text("the good one")
    make_model("vse_fc").save(saved)
    assert load_model(saved).name == "vse_fc"
    assert (saved / "notes.txt").read_text() == "the good one"
    assert (saved / ".DS_Store").exists()
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ["rvse"]}, "written by selhn"),
        ({"settings": [1]}, "written by selhn"),
        ({"dim": -3}, "no model can be built"),
    ],
)
def test_a_strangers_config(saved, change, message):
    before_checksums(saved)
    config = json.loads((saved / "config.json").read_text())
    if "dim" in change:
        config["settings"] |= change
    else:
        config |= change
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(SelhnError, match=message):
        load_model(saved)


def forge(folder, **settings):
    if (folder / "checksums.json").exists():
        before_checksums(folder)
    config = json.loads((folder / "config.json").read_text())
    config["settings"] |= settings
    (folder / "config.json").write_text(json.dumps(config))


def test_settings_without_end_end_at_once(tmp_path):
    make_model("sgr").save(tmp_path / "sgr")
    forge(tmp_path / "sgr", steps=10**6)
    with pytest.raises(Damaged, match="many more parts"):
        load_model(tmp_path / "sgr")


def test_a_folder_cannot_name_another(tmp_path):
    write_bert(tmp_path / "private")
    create_model("rvsepp", feature_dim=8, dim=16, bert=tmp_path / "private").save(tmp_path / "model")
    assert load_model(tmp_path / "model").name == "rvsepp"
    for source in (str(tmp_path / "private"), "minilm"):
        forge(tmp_path / "model", bert=source)
        with pytest.raises(Damaged, match="hold all"):
            load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "kind"),
    list(
        zip(["config.json", "model.safetensors", "vocabulary.json", "checksums.json", "README.md"], PLANTED)
    ),
)
def test_a_link_in_a_model_is_not_followed(saved, tmp_path, kind, name):
    outside = make_outside(tmp_path / "outside")
    before = content_of(outside)
    plant(saved / name, kind, outside)
    with pytest.raises((Linked, NotFound), match=name):
        load_model(saved)
    assert content_of(outside) == before


def test_a_model_behind_a_link_that_the_user_names(saved, tmp_path):
    """It is read and replaced there, and the link stays; also after a kill between two renames."""
    named = tmp_path / "named"
    named.symlink_to(saved)
    make_model("vse_fc").save(named)
    assert named.is_symlink()
    assert load_model(saved).name == load_model(named).name == "vse_fc"
    (tmp_path / ".model.partial").mkdir()
    saved.rename(tmp_path / ".model.partial" / "previous")
    before = content_of(tmp_path)
    with read_only(tmp_path):
        assert load_model(saved).name == load_model(named).name == "vse_fc"
    assert content_of(tmp_path) == before
    make_model("rvse").save(named)
    assert load_model(saved).name == "rvse"
    assert sorted(os.listdir(tmp_path)) == ["model", "named"]
