from dataclasses import fields

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import Augmentation, Batches, DenseFeatures, RaggedFeatures, Split, TextBlocks, image_blocks
from selhn.data.batches import EncodedTexts, drop_regions
from selhn.text import Vocabulary


def make_split(images=7, each=3, features=None):
    words = ["a", "dog", "jumps", "over", "the", "old", "red", "fence", "while", "children", "watch"]
    captions = [f"{' '.join(words[: 2 + n % 9])} n{n}" for n in range(images * each)]
    owners = torch.arange(images).repeat_interleave(each)
    features = features or DenseFeatures(torch.arange(images * 5 * 4).reshape(images, 5, 4).float())
    return Split("train", features, captions, owners, [str(n) for n in range(images)])


SPLIT = make_split()
VOCABULARY = Vocabulary.build(SPLIT.captions, min_count=1)


def epoch(batches, number, start=0):
    return map(batches.assemble, batches.steps(number, start))


def same(one, other):
    return all(
        torch.equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one) if f.name != "side"
    )


def texts_of(batch):
    ids = [row[mask].tolist() for row, mask in zip(batch.tokens, batch.token_mask)]
    return [" ".join(VOCABULARY.words[i] for i in row[1:-1]) for row in ids]


def test_each_caption_once_an_epoch_with_its_image():
    batches = Batches(SPLIT, VOCABULARY, 3)
    found = list(epoch(batches, 0))
    assert len(batches) == len(found) == 7
    assert sorted(text for batch in found for text in texts_of(batch)) == sorted(SPLIT.captions)
    owner = dict(zip(SPLIT.captions, SPLIT.image_of_text.tolist()))
    for batch in found:
        assert batch.image_ids.tolist() == [owner[text] for text in texts_of(batch)]
        assert torch.equal(batch.regions, SPLIT.features.store[batch.image_ids])
        assert batch.region_mask.all()
        assert batch.tokens.dtype == torch.int32


def test_the_order_changes_with_epoch_and_seed_only():
    orders = [
        Batches(SPLIT, VOCABULARY, 4, seed=seed).order(epoch).tolist() for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert Batches(SPLIT, VOCABULARY, 7, seed=1).order(1).tolist() == orders[3]


def test_pairs_that_do_not_fill_a_batch_are_left_out():
    assert len(Batches(SPLIT, VOCABULARY, 4)) == len(list(epoch(Batches(SPLIT, VOCABULARY, 4), 0))) == 5
    assert len(Batches(SPLIT, VOCABULARY, 7)) == 3


@pytest.mark.parametrize("augmentation", [None, Augmentation(), Augmentation(0.5, 0), Augmentation(0, 0.5)])
@pytest.mark.parametrize("ragged", [False, True])
def test_taken_up_at_any_step_batches_are_the_same(augmentation, ragged):
    flat = RaggedFeatures.of(torch.rand(14, 4), torch.tensor([0, 1, 3, 6, 7, 9, 12, 14]))
    split = make_split(features=flat if ragged else None)
    options = {"augmentation": augmentation, "seed": 3}
    for number in (0, 2):
        whole = list(epoch(Batches(split, VOCABULARY, 4, **options), number))
        for start in range(6):
            rest = list(epoch(Batches(split, VOCABULARY, 4, **options), number, start))
            assert len(rest) == len(whole) - start
            assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_the_random_numbers_of_the_program_are_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(epoch(Batches(SPLIT, VOCABULARY, 4, augmentation=Augmentation()), 0))
    assert torch.equal(before, torch.get_rng_state())


def test_each_batch_is_trimmed_to_its_longest_text():
    for batch in epoch(Batches(SPLIT, VOCABULARY, 2), 0):
        assert batch.token_mask.any(0).all()


def test_dropped_regions_in_numbers():
    mask = torch.ones(4000, 5, dtype=torch.bool)
    mask[:, 4] = False
    kept = drop_regions(mask, 0.2, torch.Generator().manual_seed(0))
    assert not kept[:, 4].any()
    assert abs(kept[:, :4].float().mean().item() - 0.8) < 0.02
    assert kept.any(1).all()
    alone = drop_regions(mask, 1.0, torch.Generator().manual_seed(0))
    assert (alone.sum(1) == 1).all()
    assert (alone[:, :4].float().mean(0) - 0.25).abs().max() < 0.03  # the one that stays is any of them


def test_augmentation_in_numbers():
    split = make_split(images=100, each=5)
    vocabulary = Vocabulary.build(split.captions, min_count=1)
    plain, changed = (Batches(split, vocabulary, 500, augmentation=a) for a in (None, Augmentation(0.2, 0.2)))
    before, after = next(epoch(plain, 0)), next(epoch(changed, 0))
    assert torch.equal(before.image_ids, after.image_ids)
    assert torch.equal(before.regions, after.regions)
    assert abs(after.region_mask.float().mean().item() - 0.8) < 0.03
    words = before.token_mask.sum() - 2 * 500
    deleted = (before.token_mask.sum() - after.token_mask.sum()) / words
    masked = (after.tokens == vocabulary.mask_id).sum() / words
    assert abs(deleted.item() - 0.08) < 0.02
    assert abs(masked.item() - 0.10) < 0.02
    assert after.tokens.dtype == torch.int32
    assert not same(after, next(epoch(changed, 1)))


def test_evaluation_sees_everything_once_and_unchanged():
    regions, mask = (torch.cat(part) for part in zip(*image_blocks(SPLIT, block_size=3)))
    assert torch.equal(regions, SPLIT.features.store)
    assert mask.all()
    blocks = TextBlocks(SPLIT, VOCABULARY, block_size=4)
    found = list(blocks)
    assert len(blocks) == len(found) == 6
    lengths = [mask.sum(1) for _, mask in found]
    assert torch.equal(torch.cat(lengths), torch.cat(lengths).sort().values)
    assert all(mask.any(0).all() for _, mask in found)
    sums = torch.cat([(tokens * mask).sum(1) for tokens, mask in found])[blocks.inverse]
    tokens, mask = VOCABULARY.encode(list(SPLIT.captions))
    assert torch.equal(sums, (tokens * mask).sum(1))


def test_features_are_asked_once_a_batch_and_tokens_once_at_all():
    class Counting(DenseFeatures):
        asked = 0

        def read(self, rows):
            Counting.asked += 1
            return super().read(rows)

    batches = Batches(make_split(features=Counting(SPLIT.features.store)), VOCABULARY, 4)
    Counting.asked = 0
    list(epoch(batches, 0))
    assert Counting.asked == 5


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Augmentation(drop_regions=1.5), "drop_regions"),
        (lambda: Augmentation(corrupt_words=-0.1), "corrupt_words"),
        (lambda: Batches(SPLIT, VOCABULARY, 22), "batch_size is 22"),
        (lambda: Batches(SPLIT, VOCABULARY, 0), "batch_size is 0"),
        (lambda: Batches(SPLIT, VOCABULARY, 2, seed=-1), "seed"),
    ],
)
def test_errors_say_what_to_do(call, sentence):
    with pytest.raises(SelhnError, match=sentence):
        call()


def test_a_vocabulary_without_mask_is_fine_where_no_word_is_changed():
    bare = Vocabulary([word for word in VOCABULARY.words if word != "<mask>"])
    next(epoch(Batches(SPLIT, bare, 4, augmentation=Augmentation(corrupt_words=0)), 0))


@pytest.mark.gpu
def test_on_a_device(tmp_path):
    np.save(tmp_path / "a.npy", SPLIT.features.store.numpy())
    mapped = DenseFeatures(np.load(tmp_path / "a.npy", mmap_mode="r"))
    host = list(epoch(Batches(SPLIT, VOCABULARY, 4), 1))
    for store in (mapped, mapped.to("cuda")):
        there = Batches(make_split(features=store), VOCABULARY, 4, device="cuda")
        assert all(same(a, b.to("cpu")) for a, b in zip(host, epoch(there, 1), strict=True))
        changed = Batches(
            make_split(features=store), VOCABULARY, 4, device="cuda", augmentation=Augmentation()
        )
        assert same(list(epoch(changed, 1))[3], next(epoch(changed, 1, 3)))


def test_a_split_is_tokenised_once_for_a_tokenizer():
    class Counting(Vocabulary):
        asked = 0

        def encode(self, texts):
            self.asked += 1
            return super().encode(texts)

    split, first = make_split(), Counting(VOCABULARY.words)
    texts = [EncodedTexts.of(split, first) for _ in range(3)]
    assert first.asked == 1
    assert texts[0] is texts[2]
    others = [Counting(VOCABULARY.words) for _ in range(5)]
    for other in others:
        EncodedTexts.of(split, other)
    assert all(other.asked == 1 for other in others)
    EncodedTexts.of(split, first)
    assert first.asked == 2, "the oldest is given up"
    EncodedTexts.of(make_split(), others[0])
    assert others[0].asked == 2
