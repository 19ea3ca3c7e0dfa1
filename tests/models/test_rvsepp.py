import pytest
import torch
from model_cases import BERT, WORDS, make_batch, make_model, write_bert

from selhn.base.errors import SelhnError
from selhn.models import create_model, load_model


def test_the_image_side_is_that_of_rvse():
    rvse, rvsepp = make_model("rvse"), make_model("rvsepp")
    rvsepp.image.load_state_dict(rvse.image.state_dict())
    batch = make_batch()
    ours = rvsepp.encode_images(batch.regions, batch.region_mask)
    assert torch.equal(ours, rvse.encode_images(batch.regions, batch.region_mask))


def test_texts_are_bert_then_fc_then_pooling():
    model, batch = make_model("rvsepp"), make_batch()
    hidden = model.text.words(batch.tokens, batch.token_mask)
    pooled = model.text.gpo(model.text.fc(hidden), batch.token_mask)
    expected = pooled / pooled.norm(dim=1, keepdim=True)
    torch.testing.assert_close(model.encode_texts(batch.tokens, batch.token_mask), expected)


def test_a_saved_model_needs_no_other_folder(tmp_path):
    bert_folder = tmp_path / "bert"
    write_bert(bert_folder)
    model = create_model("rvsepp", bert=bert_folder, feature_dim=4, dim=8).eval()
    assert model.tokenizer.max_length == 32
    model.save(tmp_path / "model")
    for path in bert_folder.iterdir():
        path.unlink()
    loaded = load_model(tmp_path / "model")
    assert loaded.tokenizer.max_length == 32
    tokens, mask = loaded.tokenize(["a dog jumps", "two dogs"])
    assert torch.equal(loaded.encode_texts(tokens, mask), model.encode_texts(tokens, mask))


def test_a_tokenizer_too_large_for_the_bert():
    with pytest.raises(SelhnError):
        create_model("rvsepp", bert={**BERT, "vocab_size": 39}, tokenizer=WORDS)


def test_a_frozen_bert_does_not_learn():
    model, batch = make_model("rvsepp", freeze_bert=True).train(), make_batch()
    model(batch).scores.sum().backward()
    assert all(p.grad is None for p in model.text.words.parameters())
    assert model.text.fc.weight.grad.any()
