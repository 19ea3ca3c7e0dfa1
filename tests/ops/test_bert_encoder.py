import json

import pytest
import torch
import transformers
from model_cases import BERT

from selhn.base.errors import SelhnError
from selhn.ops.bert_encoder import BertConfig, BertEncoder

SIZES = {**BERT, "num_hidden_layers": 3, "intermediate_size": 40}


def make_pair(dtype=torch.float64, **settings):
    """Ours and that of `transformers`, with the same weights, none of them trivial."""
    torch.manual_seed(0)
    config = {**SIZES, **settings}
    theirs = transformers.BertModel(transformers.BertConfig(**config), add_pooling_layer=False).to(dtype)
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if name.endswith("LayerNorm.weight") else 0.0, std=0.3)
    ours = BertEncoder(BertConfig.read(config)).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def make_texts():
    torch.manual_seed(1)
    mask = torch.arange(9) < torch.tensor([9, 2, 5, 7])[:, None]
    return torch.randint(1, 40, (4, 9)).masked_fill(~mask, 0), mask


def test_names_and_shapes_are_those_published():
    ours, theirs = make_pair()
    shapes = {name: weight.shape for name, weight in theirs.state_dict().items()}
    assert {name: weight.shape for name, weight in ours.state_dict().items()} == shapes


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("training", [False, True])
def test_it_computes_what_transformers_does(training, dtype, tolerance):
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if training else {}
    ours, theirs = (bert.train(training) for bert in make_pair(dtype, **dropouts))
    tokens, mask = make_texts()
    expected = theirs(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    actual = ours(tokens, mask)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    upstream = torch.randn(actual.shape, dtype=dtype)
    expected.backward(upstream)
    actual.backward(upstream)
    grads = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        # The gradient of a key's bias is 0 but for rounding, which is as large as that of its neighbours.
        scale = grads[name.replace("key.bias", "value.bias")].abs().max().item()
        torch.testing.assert_close(parameter.grad, grads[name], rtol=0, atol=tolerance * scale, msg=name)


def test_it_drops_as_often_as_transformers():
    # A layer with no weights but gamma is the norm of what dropout leaves of its input.
    bert = BertEncoder(BertConfig.read({**SIZES, "num_hidden_layers": 0, "hidden_dropout_prob": 0.3}))
    tokens, mask = torch.ones(200, 20, dtype=torch.int64), torch.ones(200, 20, dtype=torch.bool)
    assert (bert(tokens, mask) == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)


def test_the_padding_word_does_not_learn():
    ours = make_pair()[0].eval()
    tokens, mask = make_texts()
    ours(tokens, torch.ones_like(mask)).sum().backward()
    grad = ours.embeddings.word_embeddings.weight.grad
    assert (grad[0] == 0).all()
    assert (grad[tokens[mask].unique()] != 0).any(1).all()
    other, theirs = (bert.eval() for bert in make_pair(pad_token_id=None))
    other(tokens, mask).pow(2).sum().backward()
    theirs(input_ids=tokens, attention_mask=mask.long()).last_hidden_state.pow(2).sum().backward()
    torch.testing.assert_close(
        other.embeddings.word_embeddings.weight.grad, theirs.embeddings.word_embeddings.weight.grad
    )


def test_new_weights():
    torch.manual_seed(0)
    bert = BertEncoder(BertConfig.read({**SIZES, "hidden_size": 64, "initializer_range": 0.05}))
    assert (bert.embeddings.word_embeddings.weight[0] == 0).all()
    for name, weight in bert.named_parameters():
        if name.endswith("LayerNorm.weight"):
            assert (weight == 1).all(), name
        elif name.endswith("bias"):
            assert (weight == 0).all(), name
        else:
            assert weight.std().item() == pytest.approx(0.05, rel=0.2), name


def test_a_published_configuration_is_read():
    published = transformers.BertConfig(
        **SIZES, hidden_dropout_prob=0.25, layer_norm_eps=1e-5, pad_token_id=3
    ).to_dict()
    config = BertConfig.read(json.loads(json.dumps(published, default=str)))
    assert config.hidden_dropout_prob == 0.25
    assert config.layer_norm_eps == 1e-5
    assert config.pad_token_id == 3
    assert config.num_hidden_layers == 3
    assert BertConfig.read(config.to_dict()) == config
    ours, theirs = BertConfig().to_dict(), transformers.BertConfig().to_dict()
    assert ours == {key: theirs[key] for key in ours}


@pytest.mark.parametrize(
    "setting",
    [
        {"hidden_act": "relu"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"num_attention_heads": 3},
    ],
)
def test_other_kinds_of_bert_are_refused(setting):
    with pytest.raises(SelhnError):
        BertConfig.read({**SIZES, **setting})
