from dataclasses import replace

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.eval import Metrics, encode_split, evaluate, folds, recall, score_split
from selhn.models import create_model, in_eval_mode
from selhn.text import Vocabulary


@pytest.fixture(scope="module")
def data():
    return load_data("world", images=100)


@pytest.fixture(scope="module")
def model(data):
    torch.manual_seed(0)
    return create_model(
        "rvse", tokenizer=Vocabulary.build(data.train.captions), feature_dim=data.feature_dim, dim=16
    )


def test_blocks_give_what_one_batch_gives(model, data):
    split = data.test
    model.eval()
    with torch.no_grad():
        images = model.encode_images(*split.features.gather(torch.arange(split.num_images)))
        texts = model.encode_texts(*model.tokenize(list(split.captions)))
        expected = model.score(images, texts)
    for block in (7, 64, 1000):
        torch.testing.assert_close(score_split(model, split, block), expected, rtol=1e-4, atol=1e-5)
    encoded = encode_split(model, split, 32)
    torch.testing.assert_close(encoded[1], texts, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["scan_i2t_lse", "saf"])
def test_fragments_in_blocks(name, data):
    torch.manual_seed(0)
    settings = {"num_regions": 12, "sim_dim": 8} if name == "saf" else {}
    vocabulary, split = Vocabulary.build(data.train.captions), data.test
    model = create_model(
        name, tokenizer=vocabulary, feature_dim=data.feature_dim, dim=16, word_dim=8, **settings
    )
    model.eval()
    with torch.no_grad():
        images = model.encode_images(*split.features.gather(torch.arange(split.num_images)))
        texts = model.encode_texts(*model.tokenize(list(split.captions)))
        expected, ranked = model.score(images, texts), model.logits(images, texts)
    for block in (7, 1000):
        torch.testing.assert_close(score_split(model, split, block), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(score_split(model, split, for_ranking=True), ranked, rtol=1e-4, atol=1e-5)
    encoded_images, encoded_texts = encode_split(model, split, 32)
    torch.testing.assert_close(encoded_images.vectors, images.vectors, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoded_texts.vectors, texts.vectors, rtol=1e-4, atol=1e-5)
    assert torch.equal(encoded_texts.mask, texts.mask)


def test_saturated_sigmoids_are_ranked_by_what_is_behind_them(data):
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(data.train.captions)
    sizes = {"feature_dim": data.feature_dim, "dim": 16, "sim_dim": 8, "num_regions": 12}
    model = create_model("sgr", tokenizer=vocabulary, **sizes)
    before = evaluate(model, data.test)
    with torch.no_grad():
        model.head.last.bias.fill_(20.0)
    assert (score_split(model, data.test) == 1).all()
    assert recall(score_split(model, data.test), data.test.image_of_text).rsum == 0
    assert abs(evaluate(model, data.test).rsum - before.rsum) < 5


def test_evaluate_is_recall_of_the_scores(model, data):
    scores = score_split(model, data.test)
    assert evaluate(model, data.test) == recall(scores, data.test.image_of_text)
    assert evaluate(model, data.test, folds=5) == Metrics.mean(folds(scores, data.test.image_of_text, 5))
    assert evaluate(model, replace(data.test, folds=5)) == evaluate(model, data.test, folds=5)
    assert evaluate(model, replace(data.test, folds=5), folds=1) == evaluate(model, data.test)
    assert evaluate(model, data.test, extended=True).i2t.map_at_r is not None


def test_the_mode_of_the_model_is_given_back(model, data):
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluate(model, data.dev)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(RuntimeError), in_eval_mode(model):
        raise RuntimeError
    assert model.training


def test_a_model_without_tokenizer(data):
    model = create_model("rvse", vocab_size=50, feature_dim=data.feature_dim, dim=16)
    with pytest.raises(SelhnError):
        evaluate(model, data.test)


def test_progress_is_shown_on_a_terminal_and_only_when_asked_for(model, data, capsys, monkeypatch):
    score_split(model, data.test, 64, quiet=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    score_split(model, data.test, 64)
    evaluate(model, data.test)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("time.monotonic", iter(range(100)).__next__)
    score_split(model, data.test, 64, quiet=False)
    shown = [line.strip() for line in capsys.readouterr().err.split("\r")]
    words = sum(len(model.tokenize([text])[0][0]) for text in data.test.captions)
    assert shown[-3].startswith(f"{words}/{words} 100%  words against 100 images  0:00 left")
    assert shown[1].endswith("left")
    assert not shown[-1]


def test_a_byte_budget_bounds_the_pairs_that_are_scored_at_once(data, monkeypatch):
    torch.manual_seed(0)
    sizes = {"feature_dim": data.feature_dim, "dim": 16, "word_dim": 8}
    scan = create_model("scan_t2i_avg", tokenizer=Vocabulary.build(data.train.captions), **sizes)
    expected, scored = score_split(scan, data.test), []
    head_score = scan.head._score
    monkeypatch.setattr(
        scan.head,
        "_score",
        lambda pair: (
            scored.append(pair.contexts.mask.numel() * pair.queries.mask.numel()),
            head_score(pair),
        )[1],
    )
    torch.testing.assert_close(
        score_split(scan, data.test, byte_budget=200_000), expected, rtol=1e-5, atol=1e-6
    )
    bytes_per_product = 24
    assert max(scored) * bytes_per_product <= 200_000 < 2 * max(scored) * bytes_per_product
    assert len(scored) > 50


def test_folds_that_do_not_divide_are_refused_before_anything_is_scored(model, data, monkeypatch):
    monkeypatch.setattr(model, "encode_images", None)
    for number in (0, 3):
        with pytest.raises(SelhnError):
            evaluate(model, data.test, folds=number)


def test_parts_that_were_put_to_rest_stay_there():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).train()
    model[1].eval()
    with in_eval_mode(model):
        assert not any(part.training for part in model.modules())
        assert not torch.is_grad_enabled()
    assert [part.training for part in model.modules()] == [True, True, False]
