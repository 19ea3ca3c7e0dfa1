"""AOQ: negatives from the whole training set beside those of a batch (Chen et al., ECCV 2020)."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.data import Pairs, Split, TextBlocks
from selhn.data.features import blocks
from selhn.eval.encoded import image_encodings, text_encodings
from selhn.losses import AOQ, OfflineScores
from selhn.models import AbstractMatcher, encode_batch, in_eval_mode
from selhn.models.matcher import members, trains_on_more
from selhn.ops import Fragments, unit
from selhn.training.protocols.base import Protocol

TILE_SCORES = 2**24
"""Scores in memory at a time while negatives are ranked."""


class OfflineNegatives(Protocol):
    """Ranks negatives of the whole training set before an epoch; scores four more pairs per pair of a batch.

    For pair i a number n below `loss.depth` is drawn; T- is the n-th hardest negative text of image i, V- the
    (n I / T)-th hardest negative image of text i, V2 the image of T-, and T2 a random text of V-. With five
    texts per image, V- is at place n / 5, as in the authors' program. They rank once, by a model that was
    trained before (an embedding, also for BFAN); here the model that is being trained ranks, again every
    `loss.refresh` epochs.
    """

    in_parts = False
    loss: AOQ

    def __post_init__(self) -> None:
        if len(members(self.model)) > 1:
            raise SelhnError("aoq trains one network: leave model.networks at 1")
        if self.config.two_pass:
            raise SelhnError("aoq has gradients for more pairs than those of a batch: leave two_pass=false")
        # Features that are not on the device are copied to it within the step, which cannot be recorded.
        self.capturable = self.batches.resident
        split, device = self.data.train, self.batches.device
        self._by_image, self._first, self._number = (found.to(device) for found in texts_of_images(split))
        self._image_of_text = split.image_of_text.to(device)
        self._num_images = int((self._number > 0).sum())
        if self._num_images < 2:
            raise SelhnError(f"aoq finds no negatives in {split.name}: all of its texts belong to one image")
        depth = min(self.loss.depth, split.num_texts - int(self._number.max()))
        image_depth = min(self._image_place(depth - 1) + 1, self._num_images - 1)
        self.tables["texts"] = torch.zeros(split.num_images, depth, dtype=torch.int32, device=device)
        self.tables["images"] = torch.zeros(split.num_texts, image_depth, dtype=torch.int32, device=device)

    def begin_epoch(self, epoch: int) -> None:
        if epoch % self.loss.refresh:
            return
        depths = [table.shape[1] for table in self.tables.values()]
        for table, found in zip(
            self.tables.values(), hardest_negatives(self.model, self.data.train, *depths)
        ):
            table.copy_(found)

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, OfflineScores]:
        """The scores of a batch, and of its pairs with their offline negatives; each item is encoded once."""
        model, size = self.model, len(pairs.texts)
        images, texts = encode_batch(model, batch)
        # As long as the longest text of all: the host does not know the lengths of the drawn texts.
        longest = self.batches.texts.tokens.shape[1]
        further = self.batches.assemble_seeded(self.draw(pairs), longest)
        # In a recorded step, branches of the backward pass still read it when its last owner here is done. Kept,
        # its memory is not given to another branch until then.
        self._further = further
        other_images, other_texts = encode_batch(model, further)
        far_texts, far_images = other_texts[:size], other_images[:size]
        negative = [paired_scores(model, images, far_texts), paired_scores(model, far_images, texts)]
        halves = slice(size), slice(size, 2 * size)
        pair = [paired_scores(model, other_images[half], other_texts[half]) for half in halves]
        given = OfflineScores(torch.stack(negative), torch.stack(pair))
        further_losses = model(batch).aux if trains_on_more(model) else {}
        return Match(model.score(images, texts), further_losses), given

    def draw(self, pairs: Pairs) -> Pairs:
        """T- and V- of every pair, and after them T2 and V2, which are pairs of their own."""
        device, size = pairs.texts.device, len(pairs.texts)
        texts, images = self.tables["texts"], self.tables["images"]
        place = torch.randint(texts.shape[1], (size,), device=device, generator=self.batches.generator)
        far_texts = texts[pairs.images, place].long()
        far_images = images[pairs.texts, self._image_place(place).clamp(max=images.shape[1] - 1)].long()
        share = torch.rand(size, device=device, generator=self.batches.generator)
        second_texts = self._by_image[self._first[far_images] + (share * self._number[far_images]).long()]
        return Pairs(
            torch.cat([far_texts, second_texts]), torch.cat([far_images, self._image_of_text[far_texts]])
        )

    def _image_place(self, place: Any) -> Any:
        """The place among images that is as hard as this one among texts."""
        return place * self._num_images // len(self._image_of_text)


def paired_scores(model: AbstractMatcher, images: Any, texts: Any) -> Float[Tensor, " P"]:
    """Image p with text p."""
    if model.is_embedding:
        with torch.autocast(images.device.type, enabled=False):
            return (images * texts).sum(dim=1)
    if model.pairs_apart:
        return model.activation(model.logits(images, texts, aligned=True))
    return model.score(images, texts).diagonal()


def texts_of_images(split: Split) -> tuple[Int[Tensor, " T"], Int[Tensor, " I"], Int[Tensor, " I"]]:
    """All texts in the order of their images; where those of each image begin; how many it has."""
    image_of_text = split.image_of_text.cpu()
    number = image_of_text.bincount(minlength=split.num_images)
    return image_of_text.argsort(stable=True), number.cumsum(0) - number, number


def hardest_negatives(
    model: AbstractMatcher, split: Split, num_texts: int, num_images: int, tile_scores: int = TILE_SCORES
) -> tuple[Int32[Tensor, "I t"], Int32[Tensor, "T i"]]:
    """The hardest negative texts of every image, and images of every text, hardest first.

    Embedding models rank by their own scores, exactly. A model that compares fragments ranks by one vector
    per item (see `one_vector`). In memory are a vector per image and text, and one tile. Images without texts
    are left out.
    """
    device = device_of(model)
    assert model.tokenizer is not None
    with in_eval_mode(model):
        ordered = TextBlocks(split, model.tokenizer, device=device)
        images = torch.cat([one_vector(part) for part in image_encodings(model, split)])
        texts = torch.cat([one_vector(part) for part in text_encodings(model, split, ordered)])[
            ordered.inverse
        ]
        has_fragments = isinstance(next(text_encodings(model, split, ordered)), Fragments)
        image_of_text = split.image_of_text.to(device)
        without_texts = image_of_text.bincount(minlength=split.num_images) == 0

        def score(some_images: slice, some_texts: slice) -> Float[Tensor, "i t"]:
            rows, columns = images[some_images], texts[some_texts]
            scores = rows @ columns.T if has_fragments else model.score(rows, columns)
            return scores.masked_fill(without_texts[some_images, None], -torch.inf)

        of_image, every = torch.arange(split.num_images, device=device), slice(None)
        return (
            _hardest(lambda some: score(some, every), of_image, image_of_text, num_texts, tile_scores),
            _hardest(lambda some: score(every, some).T, image_of_text, of_image, num_images, tile_scores),
        )


def one_vector(encoded: Any) -> Float[Tensor, "n d"]:
    """One vector per item: the embedding, that of the whole item, or the mean direction of its fragments."""
    if not isinstance(encoded, Fragments):
        return encoded
    return unit(encoded.vectors.sum(dim=1) if encoded.whole is None else encoded.whole)


def _hardest(
    score: Callable[[slice], Float[Tensor, "q G"]], image_of_query: Int[Tensor, " Q"],
    image_of_item: Int[Tensor, " G"], k: int, tile_scores: int,
) -> Int32[Tensor, "Q k"]:  # fmt: skip
    """Places of the k largest scores of every query among its negatives; `score` gives those of some queries."""
    found = []
    for some in blocks(len(image_of_query), len(image_of_item), tile_scores):
        own = image_of_query[some, None] == image_of_item
        found.append(score(some).masked_fill(own, -torch.inf).topk(k, dim=1).indices.int())
    return torch.cat(found)
