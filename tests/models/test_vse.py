import math

import pytest
import torch
from model_cases import make_batch, make_model
from model_oracle import both_ways, pool

from selhn.models import create_model, load_model


def body(image, x):
    def mlp(y):
        norm = image.mlp.bns[0]
        y = image.mlp.layers[0](y)
        y = (y - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        return image.mlp.layers[1](y.clamp(min=0))

    f = image.fc(x)
    return {
        "fc": lambda: f,
        "mlp": lambda: mlp(f),
        "residual": lambda: f + mlp(f),
        "parallel": lambda: f + mlp(x),
    }[image.body]()


@pytest.mark.parametrize("name", ["vse_fc", "vse_mlp", "rvse", "vse_infty"])
def test_equals_a_loop_over_pairs_written_from_the_paper(name):
    model, batch = make_model(name).double(), make_batch(pairs=4, dtype=torch.float64)
    with torch.no_grad():
        scores = model(batch).scores
        for i in range(4):
            rows = [body(model.image, x) for x in batch.regions[i][batch.region_mask[i]]]
            image = pool(model.image.gpo, rows)
            for j in range(4):
                words = [model.text.words.embed.weight[t] for t in batch.tokens[j][batch.token_mask[j]]]
                text = pool(model.text.gpo, both_ways(model.text.words.rnn, words, 16))
                cosine = image @ text / (image.norm() * text.norm())
                assert abs(cosine - scores[i, j]) < 1e-6


def test_number_of_parameters():
    # The numbers of the specification, section 2: 2048 -> 1024, word vectors of 300.
    model = create_model("rvse", vocab_size=10)
    count = {key: sum(p.numel() for p in part.parameters()) for key, part in model.image.named_children()}
    assert count == {"fc": 2_098_176, "mlp": 1_050_112 + 3_072, "gpo": 12_704}
    assert sum(p.numel() for p in model.text.words.rnn.parameters()) == 8_146_944


def test_starting_values():
    model = create_model("rvse", vocab_size=500, feature_dim=64, dim=32, word_dim=16)
    assert not model.image.fc.bias.any()
    assert model.image.fc.weight.abs().max() <= math.sqrt(6 / (64 + 32))
    assert 0.09 < model.text.words.embed.weight.abs().max() <= 0.1


@pytest.mark.parametrize("order", ["fc-bn-relu-fc", "fc-bn-relu-fc-bn", "bn-fc-relu-bn-fc"])
def test_orders_of_the_mlp_travel(order, tmp_path):
    model = make_model("rvse", mlp_order=order, mask_bn=True)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.image.mlp.order == order
    assert loaded.image.mlp.mask_bn
    batch = make_batch()
    assert torch.equal(loaded(batch).scores, model(batch).scores)


@pytest.mark.parametrize("name", ["vse_fc", "vse_mlp", "rvse"])
def test_word_dropout_is_for_training_only(name):
    plain, dropping, batch = make_model(name), make_model(name, word_dropout=0.4), make_batch()
    assert torch.equal(plain(batch).scores, dropping(batch).scores)
    texts = [dropping.train().encode_texts(batch.tokens, batch.token_mask) for _ in range(2)]
    assert not torch.equal(*texts)
