import pytest

from selhn.train.config import RunConfig, override
from selhn.train.run import make_model, mean_and_deviation, open_run, resume_run, run_config, run_seeds

TINY = ["data.images=100", "epochs=1", "batch_size=64", "model.dim=16", "device=cpu"]


def test_from_names_to_a_result_and_back(tmp_path, tiny_data):
    config = override(RunConfig(), TINY)
    run = run_config(config, tmp_path / "run", quiet=True)
    assert RunConfig.from_yaml((tmp_path / "run" / "config.yaml").read_text()) == config
    model, data = open_run(tmp_path / "run")
    assert data.train.num_images == 100
    assert model.tokenize(["a red ball"])[0].shape[0] == 1
    assert resume_run(tmp_path / "run", quiet=True).test == run.test


def test_several_seeds(tmp_path):
    text = run_seeds(override(RunConfig(), TINY), [0, 1], tmp_path)
    assert "seed    0  test  i2t" in text
    assert "±" in text.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"seed0", "seed1"}


def test_the_seed_decides_the_weights(tiny_data):
    models = [make_model(override(RunConfig(), [*TINY, f"seed={seed}"]), tiny_data) for seed in (0, 0, 1)]
    weights = [model.image.fc.weight for model in models]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model=rvsee"], "unknown model 'rvsee': did you mean 'rvse'"),
        (["loss=selhm"], "unknown loss 'selhm': did you mean 'selhn'"),
        (["model.dimm=3"], "rvse has no setting 'dimm': did you mean 'dim'"),
        (["loss.epsilom=3"], "selhn has no setting 'epsilom': did you mean 'epsilon'"),
        (["data.imagess=3"], "imagess"),
        (["data=nowhere"], "nowhere"),
    ],
)
def test_wrong_names(settings, message):
    with pytest.raises(ValueError, match=message):
        run_config(override(RunConfig(), [*TINY, *settings]), quiet=True)


def test_what_is_no_run(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        resume_run(tmp_path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        open_run(tmp_path)


def test_mean_and_deviation():
    assert mean_and_deviation([310.0, 312.0]) == "311.0 ± 1.4"
    assert mean_and_deviation([310.0]) == "310.0 ± 0.0"
