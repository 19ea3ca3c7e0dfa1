from dataclasses import replace

import numpy as np
import pytest
import yaml

from selhn.base.errors import NotFound, SelhnError
from selhn.losses import LOSSES, TripletHN, create_loss
from selhn.training.config import RunConfig, TrainConfig, describe_objects, key_values, override, with_values
from selhn.training.recipes import get_recipe


def test_overrides_reach_their_place():
    config = override(
        RunConfig(),
        [
            "epochs=3",
            "lr=5e-5",
            "decay_at=[4, 6]",
            "model=vse_fc",
            "model.dim=512",
            "loss.epsilon=0.02",
            "data.images=500",
        ],
    )
    assert config.train.epochs == 3
    assert config.train.lr == 5e-5
    assert config.train.decay_at == (4, 6)
    assert (config.model, config.model_settings) == ("vse_fc", {"dim": 512})
    assert config.loss_settings == {"epsilon": 0.02}
    assert config.data_settings == {"images": 500}
    assert RunConfig().train.epochs == 20, "the default is untouched"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs", "key=value"),
        ("epochs=2.5", "epochs takes"),
        ("epochs=0", "at least 1"),
        ("batch_size=1", "at least 2"),
        ("epochs=9223372036854775808", "below 2"),
        ("lr=fast", "lr takes"),
        ("mask_same_image=1", "mask_same_image takes"),
        ("decay_at=soon", "decay_at takes"),
        ("precision=fp8", "precision takes"),
        ("feature_precision=fp8", "feature_precision takes"),
        ("capture=alwyas", "capture takes"),
        ("schedule=linear", "schedule takes"),
        ("ema=often", "ema takes"),
        ("distil=-1", "distil"),
        ("decay_by=nan", "decay_by"),
        ("clip=inf", "finite"),
        ("modell.dim=3", "modell.dim"),
        ("decay_at=[1", "cannot be read"),
    ],
)
def test_wrong_settings(setting, message):
    with pytest.raises(SelhnError, match=message):
        override(RunConfig(), [setting])


def test_another_loss_or_model_keeps_the_settings_that_it_has():
    strong = get_recipe("rvse_strong_f8k")
    assert override(strong, ["loss=selhn"]).loss_settings == {"margin": 0.2}
    assert override(strong, ["loss.epsilon=0.02", "loss=selhn"]).loss_settings == {
        "margin": 0.2,
        "epsilon": 0.02,
    }
    unknown = override(strong, ["loss.temperature=1.0", "loss=selhn"]).loss_settings
    assert unknown == {"margin": 0.2, "temperature": 1.0}, (
        "in any order: what is asked for is refused later, not dropped"
    )
    assert override(strong, ["loss=infonce"]).loss_settings == {"temperature": 0.05}
    assert override(strong, ["model=rvsepp"]).model_settings == {"dim": 2048}
    assert override(strong, ["model=rvse"]).model_settings == strong.model_settings
    assert override(strong, ["loss=tall"]).loss_settings == strong.loss_settings, "and it is unknown later"
    summed = get_recipe("saf_hn_f30k")
    assert override(summed, ["loss=ncr"]).loss_settings == {"reduction": "sum"}
    assert override(summed, ["model=rvse"]).model_settings == {}, "it has no number of regions"


def test_yaml_round_trip():
    config = override(
        RunConfig(), ["decay_at=[15]", "loss.margin=0.1", "data=somewhere", "mask_same_image=false"]
    )
    assert RunConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config


@pytest.mark.parametrize("text", ["epochs: 3", "train: {epoch: 3}"])
def test_yaml_with_unknown_keys(text):
    with pytest.raises(NotFound):
        RunConfig.from_dict(yaml.safe_load(text))


def test_integers_become_floats_where_floats_are_meant():
    assert with_values(TrainConfig(), {"clip": 2}).clip == 2.0
    assert [with_values(TrainConfig(), {"ema": value}).ema for value in (None, 0, 0.999)] == [0.0, 0.0, 0.999]
    assert override(RunConfig(), ["ema=null"]).train.ema == 0.0
    assert key_values(["a=1", "b=x", "c=1e-3", "d=[1, 2]", "e=1e2"]) == {
        "a": 1,
        "b": "x",
        "c": 0.001,
        "d": [1, 2],
        "e": 100,
    }


def test_an_empty_section():
    assert RunConfig.from_dict({"model": "rvse", "train": None}) == RunConfig()


@pytest.mark.parametrize("path", ["/x/set #2", "010", "yes", "1e3", "[a]"])
def test_names_and_paths_are_taken_as_they_are(path):
    assert override(RunConfig(), [f"data={path}"]).data == path
    assert RunConfig.from_dict(override(RunConfig(), [f"data={path}"]).to_dict()).data == path


@pytest.mark.parametrize(
    ("text", "message"),
    [("data: 5", "data must"), ("data_settings: [1]", "data_settings must"), ("train: 3", "train must")],
)
def test_yaml_of_the_wrong_kind(text, message):
    with pytest.raises(SelhnError, match=message):
        RunConfig.from_dict(yaml.safe_load(text))
    assert RunConfig.from_dict({"data_settings": None, "model": "rvse"}).data_settings == {}


def test_a_seed_no_generator_takes():
    with pytest.raises(SelhnError):
        override(RunConfig(), ["seed=99999999999999999999999"])


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_ours_is_described_by_name(name, tiny_model, tiny_data, tiny_config):
    loss = create_loss(name)
    config = describe_objects(tiny_model(), loss, tiny_data, tiny_config)
    read = RunConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict())))
    assert read.train == config.train
    assert repr(create_loss(read.loss, **read.loss_settings)) == repr(loss)
    assert (config.model, config.data, config.own) == ("rvse", "world", [])
    assert config.data_settings == {"images": 100}


def test_objects_of_ones_own_are_described_as_such(tiny_model, tiny_data, tiny_config):
    def cross_entropy(scores):
        return scores.sum()

    class Scaled(TripletHN):
        pass

    model = tiny_model()
    model.name = None
    data = replace(tiny_data, source=None, settings={})
    assert describe_objects(model, cross_entropy, data, tiny_config).own == [
        "model (VSE)", "loss (cross_entropy)", "data (world)"
    ]  # fmt: skip
    assert describe_objects(tiny_model(), Scaled(), tiny_data, tiny_config).own == ["loss (Scaled)"]


@pytest.mark.usefixtures("as_a_user")
def test_numbers_of_numpy_are_settings():
    config = TrainConfig(lr=np.float32(0.5), epochs=np.int64(3), decay_at=(np.int32(1),))
    assert (
        with_values(TrainConfig(), {"lr": np.float32(0.5), "epochs": np.int64(3), "decay_at": [np.int32(1)]})
        == config
    )
    run = RunConfig(
        model_settings={"dim": np.int64(8)}, loss_settings={"margin": np.float32(0.5)}, train=config
    )
    assert RunConfig.from_dict(run.to_dict()) == run
    assert (run.to_dict()["model_settings"], run.to_dict()["loss_settings"]) == ({"dim": 8}, {"margin": 0.5})
