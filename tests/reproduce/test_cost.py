from selhn.reproduce.cost import cost
from selhn.training import get_recipe, override


def costs(model, *settings):
    return cost(override(get_recipe(f"{model}_selhn_f8k"), settings))


def test_long_runs_begin_first():
    assert costs("sgr") > costs("bfan_equal") > costs("rvse") == costs("vse_fc")
    assert costs("rvse", "loss=ncr") > costs("rvse")
    assert costs("rvse", "batch_size=32") == 4 * costs("rvse") == 4 * costs("rvse", "batch_size=2048")
    assert costs("rvse", "epochs=5") < costs("rvse")
