import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selhn.base.errors import SelhnError
from selhn.eval import recall, recall_from_embeddings
from selhn.eval.metrics import measure
from selhn.eval.scoring import BYTES_PER_SCORE, AllPairs


def whole_number_embeddings(num_images, num_texts, dtype, seed=0):
    """Small whole numbers: every product is exact in every floating type, and many scores tie."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(-3, 4, (num_images, 5), generator=generator)
    texts = torch.randint(-3, 4, (num_texts, 5), generator=generator)
    return images.to(dtype), texts.to(dtype), torch.randint(num_images, (num_texts,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("byte_budget", [1, 1000, 2**28])
@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
def test_equals_recall_of_the_whole_matrix(dtype, byte_budget, ties):
    images, texts, image_of_text = whole_number_embeddings(11, 37, dtype)
    blockwise = recall_from_embeddings(
        images, texts, image_of_text, byte_budget=byte_budget, ties=ties, extended=True
    )
    assert blockwise == recall(images.float() @ texts.float().T, image_of_text, ties=ties, extended=True)


@given(
    num_images=st.integers(1, 7), num_texts=st.integers(1, 9), rows=st.integers(0, 5), seed=st.integers(0, 99)
)
def test_any_tile_height_gives_the_same_metrics(num_images, num_texts, rows, seed):
    images, texts, _ = whole_number_embeddings(num_images, num_texts, torch.float32, seed)
    scores = images @ texts.T
    relevant = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    relevant[0, 0] = True
    expected = recall(scores, relevance=relevant, extended=True)
    byte_budget = rows * BYTES_PER_SCORE * num_texts
    assert expected == recall_from_embeddings(
        images, texts, relevance=relevant, byte_budget=byte_budget, extended=True
    )
    assert expected == measure(
        AllPairs.from_matrix(scores, None, relevant), (1, 5, 10), "pessimistic", True, byte_budget
    )


def test_half_precision_is_multiplied_in_float32():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(40, 64, generator=generator).bfloat16()
    texts = torch.randn(80, 64, generator=generator).bfloat16()
    image_of_text = torch.arange(80) % 40
    expected = recall(images.double() @ texts.double().T, image_of_text)
    assert recall_from_embeddings(images, texts, image_of_text) == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert recall_from_embeddings(images, texts, image_of_text) == expected


def test_numpy_and_mixed_types():
    images, texts, image_of_text = whole_number_embeddings(6, 9, torch.float32)
    expected = recall(images @ texts.T, image_of_text)
    assert recall_from_embeddings(images.numpy(), texts.double().numpy(), image_of_text.tolist()) == expected


def test_never_holds_the_whole_matrix():
    images, texts, image_of_text = whole_number_embeddings(50, 90, torch.float32)
    scored = AllPairs.from_embeddings(images, texts, image_of_text, None)
    byte_budget = 7 * BYTES_PER_SCORE * 90
    for direction, num_queries in (("i2t", 50), ("t2i", 90)):
        tiles = [tile for _, tile in scored.tiles(direction, byte_budget)]
        assert all(tile.scores.numel() * BYTES_PER_SCORE <= byte_budget for tile in tiles)
        assert sum(len(tile.scores) for tile in tiles) == num_queries
        assert sum(len(tile.row) for tile in tiles) == 90


EMB = torch.eye(4)
WITH_NAN = EMB.clone()
WITH_NAN[1, 2] = float("nan")


@pytest.mark.parametrize(
    ("image_emb", "text_emb", "sentence"),
    [
        (EMB, EMB[:, :3], "4 wide"),
        (EMB, EMB[0], "text_emb has shape"),
        (EMB[:0], EMB, "image_emb has shape"),
        (EMB.long(), EMB, "int64"),
        (EMB, WITH_NAN, r"text_emb\[1, 2\]"),
        (EMB.to("meta"), EMB, "device"),
        # inf * 0: the embeddings have no NaN, a product has.
        (EMB, np.full((4, 4), np.inf), r"scores\[0, 0\]"),
        (EMB, EMB[:2], "2 texts"),
    ],
)
def test_errors_say_what_to_do(image_emb, text_emb, sentence):
    with pytest.raises(SelhnError, match=sentence):
        recall_from_embeddings(image_emb, text_emb, torch.arange(4))
