from dataclasses import replace

import pytest
import torch
from model_cases import GRAPH, WORDS, make_batch, make_model
from model_oracle import both_ways, length_one

from selhn.base.errors import SelhnError
from selhn.models import cvse
from selhn.models.cvse import LEVEL_WEIGHTS, distance


def naive_concepts(model):
    """The vectors of the concepts, concept by concept."""
    a, basis = model.concepts.adjacency, model.concepts
    degrees = [sum(row) for row in a]
    number = len(a)

    def spread(rows):
        return torch.stack([
            sum(a[j][i] / (degrees[i] * degrees[j]).sqrt() * rows[j] for j in range(number)) for i in range(number)
        ])  # fmt: skip

    hidden = spread(basis.inputs @ basis.first)
    hidden = torch.where(hidden > 0, hidden, 0.2 * hidden)
    return torch.stack([length_one(row) for row in spread(hidden @ basis.second)])


def naive_instance(pool, rows, mean, norm_at=None):
    logits = []
    for place, x in enumerate(rows):
        local = pool.local[0](x)
        if norm_at is not None:
            norm = pool.local[1]
            scale = norm.weight[place] / (norm.running_var[place] + norm.eps).sqrt()
            local = (local - norm.running_mean[place]) * scale + norm.bias[place]
        logits.append(pool.common(local.tanh() * pool.mean(mean[None])[0]))
    weights = torch.stack(logits).softmax(0)
    return length_one((weights * rows).sum(0))


def naive_weights(consensus, item, concepts, smooth):
    of_item = consensus.of_item(item[None])[0]
    logits = torch.stack([consensus.last(consensus.of_concept(g[None])[0] * of_item) for g in concepts])[:, 0]
    return (smooth * logits).softmax(0)


def naive_pair(model, batch, i, j):
    """The score of one image with one text, by the equations."""
    concepts = naive_concepts(model)
    regions = torch.stack([length_one(model.image.fc(x)) for x in batch.regions[i]])
    image = naive_instance(model.image.pool, regions, regions.mean(0), norm_at=0)
    words = [model.text.words.embed.weight[t] for t in batch.tokens[j][batch.token_mask[j]]]
    rows = torch.stack([length_one(h) for h in both_ways(model.text.words.rnn, words, 16)])
    text = naive_instance(model.text.pool, rows, length_one(rows.mean(0)))
    spelled = set(WORDS.spell(batch.tokens[j][batch.token_mask[j]].tolist()))
    labels = torch.tensor([float(bool(spelled & set(forms))) for forms in GRAPH.words], dtype=concepts.dtype)
    own = naive_weights(model.text_consensus, text, concepts, 10)
    text_weights = 0.35 * (10 * labels).softmax(0) + 0.65 * own
    levels = []
    for instance, weights in (
        (image, naive_weights(model.image_consensus, image, concepts, 10)),
        (text, text_weights),
    ):
        consensus = length_one(weights @ concepts)
        levels.append((length_one(0.85 * instance + 0.15 * consensus), consensus))
    (fused, consensus), (other_fused, other_consensus) = levels
    return 0.95 * fused @ other_fused + 0.05 * consensus @ other_consensus


def test_scores_equal_a_loop_over_pairs():
    model, batch = make_model("cvse").double(), make_batch(3, dtype=torch.float64)
    batch = replace(batch, region_mask=torch.ones_like(batch.region_mask))
    scores = model(batch).scores
    for i in range(3):
        for j in range(3):
            assert abs(naive_pair(model, batch, i, j) - scores[i, j]) < 1e-6


def test_concepts_by_words_or_given():
    model, batch = make_model("cvse"), make_batch()
    words = [[word for forms in GRAPH.words for word in forms if word in WORDS.ids][0], "word19 word19"]
    tokens, mask = model.tokenize(words)
    assert model.labels_of(tokens, mask).tolist() == [[1, 0, 0, 0, 0, 0], [0] * 6]
    labels = torch.eye(6)
    by_words, given = model.encode_texts(batch.tokens), model.encode_texts(batch.tokens, concepts=labels)
    assert not torch.allclose(by_words, given)
    torch.testing.assert_close(model.encode_texts(batch.tokens, concepts=labels.bool()), given)
    in_batch = replace(batch, token_mask=torch.ones_like(batch.token_mask), side={"concepts": labels})
    images = model.encode_images(batch.regions, batch.region_mask)
    torch.testing.assert_close(model(in_batch).scores, model.score(images, given))
    with pytest.raises(SelhnError):
        model.encode_texts(batch.tokens, concepts=labels[:, :5])


def test_in_training_three_matrices_as_often_as_they_count():
    model, batch = make_model("cvse"), make_batch()
    model.training = True  # and its parts as in evaluation
    match = model(batch)
    assert len(match.scores) == sum(LEVEL_WEIGHTS.values()) == 9
    concepts = model.concepts()
    images = model.image_levels(batch.regions, batch.region_mask, concepts)
    texts = model.text_levels(batch.tokens, batch.token_mask, None, concepts)
    for row in (0, 2):
        torch.testing.assert_close(match.scores[row], images.fused(0.85) @ texts.fused(0.85).T)
    torch.testing.assert_close(match.scores[7], images.instance @ texts.instance.T)
    torch.testing.assert_close(match.scores[8], images.consensus @ texts.consensus.T)
    t, v = texts.weights, images.weights
    torch.testing.assert_close(match.aux["concepts"], 2 * (t * (t / v).log()).sum())
    assert model.eval()(batch).aux == {}


def test_a_concept_that_an_image_lacks_entirely_costs_a_finite_number():
    texts, images = torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = distance(texts, images)
    value.backward()
    assert value.isfinite()
    assert images.grad.isfinite().all()


def test_word_vectors_are_what_words_and_concepts_begin_with(tmp_path):
    (tmp_path / "glove.txt").write_text("word0 1 0\nword7 0 2\n")
    settings = {"tokenizer": WORDS, "feature_dim": 4, "dim": 4, "word_dim": 2, "concept_graph": GRAPH}
    model = cvse.cvse(**settings, word_vectors=tmp_path / "glove.txt")
    assert model.text.words.embed.weight[WORDS.ids["word7"]].tolist() == [0, 2]
    assert model.concepts.inputs[0].tolist() == [1, 0]
    assert model.text.words.embed.weight.requires_grad
    assert set(dict(model.concepts.named_parameters())) == {"first", "second"}
    GRAPH.write(tmp_path / "concepts.json")
    read = cvse.cvse(**{**settings, "concept_graph": tmp_path / "concepts.json"})
    assert torch.equal(read.concepts.adjacency, model.concepts.adjacency)
    assert torch.equal(read.concept_of_word, model.concept_of_word)
