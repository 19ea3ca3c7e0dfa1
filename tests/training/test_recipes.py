import pytest

from selhn.base.names import require_settings
from selhn.losses import TAL, SigLIP, create_loss
from selhn.models import MODELS, create_model
from selhn.training.config import RunConfig, TrainConfig
from selhn.training.recipes import (
    DATASETS,
    PIXELS,
    RECIPES,
    STRONG,
    SYSTEMS,
    describe_recipes,
    get_recipe,
    list_recipes,
)

CROSS_ATTENTION = [name for name, entry in MODELS.items() if entry.family == "cross-attention"]


def test_every_row_of_table_1_is_there():
    rows = {
        f"{model}_{loss}" for model in ("vse_fc", "vse_mlp", "rvse") for loss in ("triplet", "hn", "selhn")
    }
    systems = {f"{model}_{loss}" for model in CROSS_ATTENTION for loss in ("hn", "selhn")}
    systems |= {"camp_bce_max", "camp_stage1_bce_max"}
    others = {f"devise_{loss}" for loss in ("triplet", "hn", "selhn")} | {
        f"{model}_{loss}" for model in ("vsrn", "cvse") for loss in ("hn", "selhn")
    }
    assert set(RECIPES) == rows | {"rvsepp_selhn"} | others | systems
    assert len(list_recipes()) == 4 * (len(RECIPES) + len(STRONG) + len(PIXELS))


@pytest.mark.parametrize("name", [f"{recipe}_{data}" for recipe in RECIPES for data in DATASETS])
def test_recipes(name):
    config = get_recipe(name)
    recipe, _, data = name.rpartition("_")
    assert config.data == data
    assert f"{config.model}_{config.loss}" == recipe
    own = {"naaf_coco": 256, "gsmn_coco": 32, "gsmn_f30k": 64, "gsmn_f8k": 64, "gsmn_world": 64}
    own |= {"camp_f8k": 64, "camp_world": 64}
    assert config.train.batch_size == own.get(f"{name.split('_')[0]}_{data}", 128)
    margins = {"devise_triplet": 0.1, "camp_bce_max": 0, "camp_stage1_bce_max": 0}
    assert create_loss(config.loss, **config.loss_settings).margin == margins.get(recipe, 0.2)
    assert config.loss in SYSTEMS[config.model].rsum
    if config.model in (*CROSS_ATTENTION, "vsrn", "cvse"):
        small = {**config.model_settings, "dim": 4, "word_dim": 3}
        small |= {"blocks": 2} if config.model.startswith("gsmn") else {}
        model = create_model(config.model, vocab_size=9, feature_dim=4, **small)
        assert small.items() <= model.settings.items()
        assert (config.train.weight_decay, config.train.drop_regions, config.train.corrupt_words) == (0, 0, 0)
        assert config.train.clip == 2.0
    else:
        assert config.train.lr == 5e-4


@pytest.mark.parametrize(
    ("name", "epochs", "decay_at", "lr"),
    [
        ("scan_t2i_avg_hn_f30k", 30, (15,), 2e-4),
        ("scan_i2t_lse_selhn_coco", 20, (10,), 5e-4),
        ("bfan_prob_hn_f30k", 15, (), 2e-4),
        ("bfan_equal_selhn_coco", 20, (15,), 5e-4),
        ("sgr_hn_f30k", 40, (30,), 2e-4),
        ("saf_selhn_f30k", 30, (20,), 2e-4),
        ("saf_selhn_f8k", 20, (15,), 2e-4),
        ("scan_t2i_avg_hn_f8k", 30, (15,), 2e-4),
        ("saf_hn_coco", 20, (10,), 2e-4),
        ("vsrn_hn_f30k", 30, (10, 20), 2e-4),
        ("imram_hn_coco", 20, (10,), 5e-4),
        ("gsmn_dense_hn_coco", 20, (5, 10, 15), 5e-4),
        ("cmcan_hn_f30k", 60, (40,), 2e-4),
        ("naaf_selhn_coco", 20, (10,), 5e-4),
        ("vsrn_selhn_coco", 30, (15,), 2e-4),
        ("cvse_hn_f30k", 50, (25,), 2e-4),
    ],
)
def test_schedules_of_the_authors(name, epochs, decay_at, lr):
    train = get_recipe(name).train
    assert (train.epochs, train.decay_at, train.lr) == (epochs, decay_at, lr)


def test_what_the_authors_set_by_data_set():
    assert get_recipe("sgr_selhn_f8k").model_settings == {"num_regions": 20}
    assert get_recipe("saf_hn_coco").model_settings == {"num_regions": 36}
    assert get_recipe("scan_i2t_lse_hn_f30k").model_settings == {"lambda_lse": 5.0}
    assert get_recipe("scan_i2t_lse_hn_coco").model_settings == {"lambda_lse": 20.0}
    assert get_recipe("scan_i2t_lse_hn_coco").loss_settings == {"reduction": "sum"}
    assert get_recipe("scan_i2t_lse_selhn_coco").loss_settings == {}
    assert get_recipe("vsrn_selhn_coco").model_settings == {"dim": 2048, "final_bn": False}
    assert get_recipe("gsmn_sparse_hn_coco").model_settings == {"smooth": 10.0}
    assert get_recipe("cmcan_hn_f8k").model_settings == {"num_regions": 20}
    assert get_recipe("vsrn_selhn_coco").loss_settings == {"reduction": "sum"}
    assert get_recipe("cvse_hn_coco").model_settings == {
        "num_regions": 36,
        "label_ratio": 0.4,
        "fuse_alpha": 0.9,
    }
    assert get_recipe("cvse_hn_f8k").model_settings == {"num_regions": 20}


@pytest.mark.parametrize(
    ("name", "loss", "model", "own"),
    [
        ("rvse_strong", TAL(0.2, 0.05), {"dim": 2048, "word_dropout": 0.2}, {"epochs": 20, "distil": 0.3}),
        (
            "rvsepp_strong",
            SigLIP(0.1, -10.0, learn=True),
            {"dim": 2048},
            {"epochs": 12, "batch_size": 256, "text_lr_factor": 0.05},
        ),
    ],
)
def test_recipes_of_our_own(name, loss, model, own):
    config = get_recipe(f"{name}_coco")
    assert (config.data, config.model_settings) == ("coco", model)
    assert repr(create_loss(config.loss, **config.loss_settings)) == repr(loss)
    assert config.train == TrainConfig(lr=2e-3, schedule="constant", ema=0.999, weight_decay=0.3, **own)
    assert RunConfig.from_dict(config.to_dict()) == config
    assert f"{name}_DATA" in describe_recipes()
    require_settings(config.model, MODELS[config.model].build, config.model_settings)


def test_rvsepp_decays():
    assert (get_recipe("rvsepp_selhn_f30k").train.epochs, get_recipe("rvsepp_selhn_f30k").train.decay_at) == (
        30,
        (15,),
    )


def test_descriptions_name_the_papers_numbers():
    assert "Paper: 498.6" in describe_recipes()
    assert "scan_t2i_avg_selhn_DATA  SCAN t2i AVG with SelHN. Paper: 477.5." in describe_recipes()
