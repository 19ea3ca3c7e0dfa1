import torch
from model_cases import make_batch, make_model
from model_oracle import run_gru

from selhn.models import create_model


def naive_embeddings(model, batch):
    for i in range(len(batch.regions)):
        rows = [model.fc(x) for x in batch.regions[i][batch.region_mask[i]]]
        image = sum(rows) / len(rows)
        words = [model.embed.weight[t] for t in batch.tokens[i][batch.token_mask[i]]]
        text = run_gru(model.rnn, words, 16)[-1]
        yield image, text / text.norm()


def test_cosine_equals_a_loop_over_pairs():
    model, batch = make_model("vsepp").double(), make_batch(4, dtype=torch.float64)
    scores, pairs = model(batch).scores, list(naive_embeddings(model, batch))
    for i, (image, _) in enumerate(pairs):
        for j, (_, text) in enumerate(pairs):
            assert abs(image @ text / image.norm() - scores[i, j]) < 1e-6


def test_order_equals_a_loop_over_pairs():
    model, batch = make_model("vsepp_order").double(), make_batch(4, dtype=torch.float64)
    scores, pairs = model(batch).scores, list(naive_embeddings(model, batch))
    for i, (image, _) in enumerate(pairs):
        for j, (_, text) in enumerate(pairs):
            lacking = (text.abs() - (image / image.norm()).abs()).clamp(min=0)
            assert abs(-lacking.norm() - scores[i, j]) < 1e-6


def test_images_of_any_length():
    model, batch = make_model("vsepp", normalise_images=False), make_batch(4)
    images = model.encode_images(batch.regions, batch.region_mask)
    expected = torch.stack([image for image, _ in naive_embeddings(model, batch)])
    torch.testing.assert_close(images, expected)
    assert model.settings["normalise_images"] is False
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(batch).scores.dtype == torch.float32


def test_only_cosines_are_dot_products():
    assert make_model("vsepp").is_embedding
    assert not make_model("vsepp_order").is_embedding


def test_order_scores_are_worked_on_in_blocks(monkeypatch):
    model = make_model("vsepp_order")
    images, texts = torch.rand(7, 16), torch.rand(9, 16)
    whole = model.score(images, texts)
    monkeypatch.setattr("selhn.models.vsepp._NUMBERS_AT_ONCE", 2 * texts.numel())
    assert torch.equal(model.score(images, texts), whole)


def test_an_image_that_covers_the_text_has_a_finite_gradient():
    model = make_model("vsepp_order")
    images, texts = torch.full((1, 16), 0.9, requires_grad=True), torch.full((1, 16), 0.1)
    score = model.score(images, texts)
    score.sum().backward()
    assert score.item() == 0
    assert not images.grad.any()


def test_a_zero_image_gives_zeros_and_not_nan():
    model = create_model("vsepp", vocab_size=5, feature_dim=3, dim=4, word_dim=2)
    images = model.encode_images(torch.zeros(2, 1, 3), torch.ones(2, 1, dtype=torch.bool))
    assert not images.any()
