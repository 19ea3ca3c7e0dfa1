import pytest

from selhn.losses import create_loss
from selhn.train.recipes import RECIPES, describe_recipes, find_data, get_recipe, list_recipes


def test_every_row_of_table_1_is_there():
    rows = {f"{model}_{loss}" for model in ("vse_fc", "vse_mlp", "rvse") for loss in ("triplet", "hn", "selhn")}
    assert set(RECIPES) == rows | {"rvsepp_selhn"}
    assert len(list_recipes()) == 40


@pytest.mark.parametrize("name", list_recipes())
def test_recipes(name):
    config = get_recipe(name)
    recipe, _, data = name.rpartition("_")
    assert config.data == data
    assert f"{config.model}_{config.loss}" == recipe
    assert config.train.lr == 5e-4
    assert config.train.batch_size == 128
    assert create_loss(config.loss, **config.loss_settings).margin == 0.2
    assert "Paper: " in RECIPES[recipe].__doc__


def test_rvsepp_decays():
    assert (get_recipe("rvsepp_selhn_f30k").train.epochs, get_recipe("rvsepp_selhn_f30k").train.decay_at) == (30, (15,))


def test_unknown_recipe():
    with pytest.raises(ValueError, match="unknown recipe 'rvse_sel_f8k': did you mean 'rvse_selhn_f8k'"):
        get_recipe("rvse_sel_f8k")


def test_descriptions_name_the_papers_numbers():
    assert "Paper: 498.6" in describe_recipes()


def test_find_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_data("world") == "world"
    assert find_data("some/folder") == "some/folder"
    with pytest.raises(ValueError, match=r"'f8k' was not found in ./data .*f8k_pocket.*data=DIR.*SELHN_DATA"):
        find_data("f8k")
    (tmp_path / "sets" / "f8k_pocket").mkdir(parents=True)
    monkeypatch.setenv("SELHN_DATA", str(tmp_path / "sets"))
    assert find_data("f8k") == str(tmp_path / "sets" / "f8k_pocket")
