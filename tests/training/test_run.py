import shutil
from pathlib import Path

import pytest
import torch

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.data import load_data
from selhn.diagnose import diagnose
from selhn.eval import evaluate
from selhn.losses import TripletHN
from selhn.models import load_model
from selhn.runs import RunFolder
from selhn.training import measure_runs, train
from selhn.training import run as run_module
from selhn.training.config import RunConfig, override
from selhn.training.recipes import get_recipe
from selhn.training.run import (
    make_model,
    mean_and_deviation,
    open_run,
    resume_run,
    run_config,
    run_seeds,
)

BEFORE = Path(__file__).parents[1] / "fixtures" / "version_0_2_0"
TINY = ["data.images=100", "epochs=1", "batch_size=64", "model.dim=16", "device=cpu"]


def test_from_names_to_a_result_and_back(tmp_path, monkeypatch):
    config = override(RunConfig(), TINY)
    run = run_config(config, tmp_path / "run", quiet=True)
    assert RunConfig.of_run(tmp_path / "run") == config
    model, data = open_run(tmp_path / "run")
    assert data.train.num_images == 100
    assert model.tokenize(["a red ball"])[0].shape[0] == 1
    assert resume_run(tmp_path / "run", quiet=True).test == run.test
    resume_run(tmp_path / "run", ["epochs=2"], quiet=True)
    assert RunConfig.of_run(tmp_path / "run").train.epochs == 2, "the longer run is what the folder now holds"
    with pytest.raises(SelhnError, match="lr was"):
        resume_run(tmp_path / "run", ["lr=0.1"], quiet=True)
    assert RunConfig.of_run(tmp_path / "run").train.lr == 5e-4, "a refused resume changes nothing"
    monkeypatch.setattr(run_module, "load_data", lambda *args, **settings: pytest.fail("data was read"))
    with pytest.raises(SelhnError, match="already"):
        run_config(override(config, ["model=vse_mlp"]), tmp_path / "run", quiet=True)
    assert RunConfig.of_run(tmp_path / "run").model == "rvse", "a refused run changes nothing"


def test_several_seeds(tmp_path):
    text = run_seeds(override(RunConfig(), TINY), [0, 1], tmp_path)
    assert "seed    0  test  i2t" in text
    assert "±" in text.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"seed0", "seed1"}
    assert run_seeds(override(RunConfig(), TINY), [0, 1], tmp_path) == text, "what is done is not done again"
    with pytest.raises(SelhnError):
        run_seeds(RunConfig(), [0, 0], tmp_path)


def test_the_seed_decides_the_weights(tiny_data):
    models = [make_model(override(RunConfig(), [*TINY, f"seed={seed}"]), tiny_data) for seed in (0, 0, 1)]
    weights = [model.image.fc.weight for model in models]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def test_a_bert_of_random_weights_reads_the_words_of_the_data(tiny_data):
    bert = "model.bert={hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 1, max_position_embeddings: 32}"
    model = make_model(override(RunConfig(), [*TINY, "model=rvsepp", bert]), tiny_data)
    tokens, mask = model.tokenize(tiny_data.train.captions[:2])
    assert model.encode_texts(tokens, mask).shape == (2, 16)
    assert model.settings["bert"]["vocab_size"] == model.tokenizer.size


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model=rvsee"], "rvsee"),
        (["loss=selhm"], "selhm"),
        (["model.dimm=3"], "dimm"),
        (["loss.epsilom=3"], "epsilom"),
        (["data.imagess=3"], "imagess"),
        (["data=nowhere"], "nowhere"),
        (["model.dim=abc"], "dim of rvse"),
        (["data.images=abc"], "images of"),
        (["data.objects=3"], "objects of"),
        (["device=foo"], "foo"),
    ],
)
def test_wrong_names(settings, message):
    with pytest.raises(SelhnError, match=message):
        run_config(override(RunConfig(), [*TINY, *settings]), quiet=True)


def test_mean_and_deviation():
    assert mean_and_deviation([310.0, 312.0]) == "311.0 ± 1.4"
    assert mean_and_deviation([310.0]) == "310.0 ± 0.0"


def test_a_damaged_configuration(tmp_path):
    (tmp_path / "config.yaml").write_text("train: [")
    with pytest.raises(Damaged, match="config.yaml"):
        resume_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(NotFound, match="epoch"):
        open_run(tmp_path)


def test_a_vocabulary_is_no_setting():
    config = override(get_recipe("rvse_selhn_world"), ["model.tokenizer=words.json", "data.images=100"])
    with pytest.raises(SelhnError):
        make_model(config, load_data("world", images=100))


def test_a_run_from_python_is_a_run_like_any_other(tmp_path, tiny_model, tiny_data, tiny_config):
    whole = train(
        tiny_model(), tiny_data, TripletHN(margin=0.1), out=tmp_path / "whole", config=tiny_config, quiet=True
    )
    train(
        tiny_model(),
        tiny_data,
        TripletHN(margin=0.1),
        out=tmp_path / "part",
        config=tiny_config,
        epochs=1,
        quiet=True,
    )
    config = RunConfig.of_run(tmp_path / "part")
    assert (config.model, config.loss, config.loss_settings["margin"]) == ("rvse", "hn", 0.1)
    assert resume_run(tmp_path / "part", ["epochs=2"], quiet=True).test == whole.test
    log = (tmp_path / "part" / "log.jsonl").read_text()
    assert log == (tmp_path / "whole" / "log.jsonl").read_text(), (
        "to the bit, with the vocabulary it began with"
    )
    model, data = open_run(tmp_path / "part")
    assert evaluate(model, data.test) == whole.test
    assert diagnose(tmp_path / "part").plateau == 0.1


def test_a_run_of_objects_of_ones_own(tmp_path, tiny_model, tiny_data, tiny_config):
    def cross_entropy(scores):
        return torch.nn.functional.cross_entropy(scores / 0.05, torch.arange(len(scores)))

    train(tiny_model(), tiny_data, cross_entropy, out=tmp_path, config=tiny_config, epochs=1, quiet=True)
    with pytest.raises(SelhnError):
        resume_run(tmp_path, ["epochs=2"])
    assert diagnose(tmp_path).log.steps[-1] == 7
    train(tiny_model(), tiny_data, cross_entropy, out=tmp_path, config=tiny_config, resume=True, quiet=True)


def test_a_run_of_version_0_2_0_is_read_and_not_continued(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(BEFORE / "run", run)
    assert diagnose(run).log.steps[-1] == 12
    assert RunConfig.of_run(run).train.ema == 0.9
    model, data = open_run(run)
    results = RunFolder(run).results
    (_, metrics), *_ = measure_runs([run], data=None, split="test")
    assert metrics == evaluate(model, data.test)
    assert metrics.rsum == pytest.approx(results.test["rsum"], abs=1e-3)
    with pytest.raises(SelhnError):
        resume_run(run, ["epochs=3"])


@pytest.mark.filterwarnings("ignore:BCE got scores")
def test_a_run_starts_from_another(tmp_path, capsys):
    """What both models have is copied, by name and shape; the vocabulary comes along."""
    settings = [*TINY, "model.word_dim=8", "lr=1e-9", "weight_decay=0"]
    run_config(
        override(RunConfig(model="camp_stage1", loss="bce_max"), settings), tmp_path / "first", quiet=True
    )
    config = override(
        RunConfig(model="camp", loss="bce_max"), [*settings, f"start={tmp_path / 'first'}", "data.seed=5"]
    )
    run_config(config, tmp_path / "second")
    said = capsys.readouterr().out
    assert said.startswith(f"started from {tmp_path / 'first'}; new: head.to_regions.fuse, ")
    assert "head.to_regions.query" not in said
    first, second = load_model(tmp_path / "first"), load_model(tmp_path / "second")
    assert second.tokenizer.words == first.tokenizer.words
    for name, weight in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], weight, rtol=0, atol=1e-5)
    assert RunConfig.of_run(tmp_path / "second") == config
    shutil.rmtree(tmp_path / "first")
    resume_run(tmp_path / "second", ["epochs=2"], quiet=True)  # it has its own weights
    with pytest.raises(SelhnError):
        run_config(override(RunConfig(), [*TINY, "model.dim=8", f"start={tmp_path / 'second'}"]), quiet=True)


def test_a_folder_without_a_run_is_not_continued(tmp_path):
    with pytest.raises(NotFound):
        resume_run(tmp_path)
    with pytest.raises(NotFound):
        resume_run(tmp_path / "nothing")
