"""AOQ: negatives from the whole training set beside those of a batch (Chen et al., ECCV 2020)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.data import Batches, Data, Pairs
from selhn.losses import AOQ, OfflineScores
from selhn.models import AbstractMatcher, CrossAttention, Twins, encode_batch
from selhn.training.config import TrainConfig
from selhn.training.protocols.base import Protocol
from selhn.training.protocols.mining import TextsOfImages, hardest_negatives


class OfflineNegatives(Protocol):
    """Ranks negatives of the whole training set before an epoch; scores four further pairs per pair of a batch.

    For pair i a number n below `loss.depth` is drawn; T- is the n-th hardest negative text of image i, V- the
    (n I / T)-th hardest negative image of text i, V2 the image of T-, and T2 a random text of V-. With five
    texts per image, V- is at place n / 5, as in the authors' program. They rank once, by a model that was
    trained before (an embedding, also for BFAN); here the model that is being trained ranks, again every
    `loss.refresh` epochs.
    """

    def __init__(self, model: AbstractMatcher, loss: AOQ, data: Data, batches: Batches, config: TrainConfig):
        super().__init__(model, loss, data, batches, config)
        self.loss: AOQ = loss
        if isinstance(model, Twins):
            raise SelhnError("aoq trains one network: leave model.networks at 1")
        if config.two_pass:
            raise SelhnError("aoq has gradients for more pairs than those of a batch: leave two_pass=false")
        split, device = data.train, batches.device
        self._texts_of = TextsOfImages.of(split, device)
        self._image_of_text = split.image_of_text.to(device)
        self._num_images = int((self._texts_of.number > 0).sum())
        if self._num_images < 2:
            raise SelhnError(f"aoq finds no negatives in {split.name}: all of its texts belong to one image")
        depth = min(loss.depth, split.num_texts - int(self._texts_of.number.max()))
        image_depth = min(self._image_place(depth - 1) + 1, self._num_images - 1)
        self.tables = {
            "texts": torch.zeros(split.num_images, depth, dtype=torch.int32, device=device),
            "images": torch.zeros(split.num_texts, image_depth, dtype=torch.int32, device=device),
        }

    @property
    def capturable(self) -> bool:
        """Features that are not on the device are copied to it within the step, which cannot be recorded."""
        return self.batches.resident

    def begin_epoch(self, epoch: int) -> None:
        """The hardest negatives of all images and texts."""
        if epoch % self.loss.refresh:
            return
        depths = [table.shape[1] for table in self.tables.values()]
        for table, found in zip(self.tables.values(), hardest_negatives(self.model, self.data.train, *depths)):
            table.copy_(found)

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, OfflineScores]:
        """The scores of a batch, and of its pairs with their offline negatives; each item is encoded once."""
        model, size = self.model, len(pairs.texts)
        images, texts = encode_batch(model, batch)
        # As long as the longest text of all: the host does not know how long those are that were drawn.
        longest = self.batches.texts.tokens.shape[1]
        further = self.batches.assemble_seeded(self.draw(pairs), longest)
        other_images, other_texts = encode_batch(model, further)
        far_texts, far_images = other_texts[:size], other_images[:size]
        given = OfflineScores(
            negative=torch.stack([paired_scores(model, images, far_texts), paired_scores(model, far_images, texts)]),
            pair=torch.stack(
                [
                    paired_scores(model, other_images[half], other_texts[half])
                    for half in (slice(size), slice(size, 2 * size))
                ]
            ),
        )
        return Match(model.score(images, texts), model.auxiliary(batch, images, texts)), given

    def draw(self, pairs: Pairs) -> Pairs:
        """T- and V- of every pair, and after them T2 and V2, which are pairs of their own."""
        device, size = pairs.texts.device, len(pairs.texts)
        texts, images = self.tables["texts"], self.tables["images"]
        place = torch.randint(texts.shape[1], (size,), device=device, generator=self.batches.generator)
        far_texts = texts[pairs.images, place].long()
        far_images = images[pairs.texts, self._image_place(place).clamp(max=images.shape[1] - 1)].long()
        share = torch.rand(size, device=device, generator=self.batches.generator)
        which = (share * self._texts_of.number[far_images]).long()
        second_texts = self._texts_of.texts[far_images, which]
        return Pairs(torch.cat([far_texts, second_texts]), torch.cat([far_images, self._image_of_text[far_texts]]))

    def _image_place(self, place: Any) -> Any:
        """The place among images that is as hard as this one among texts."""
        return place * self._num_images // len(self._image_of_text)


def paired_scores(model: AbstractMatcher, images: Any, texts: Any) -> Float[Tensor, " P"]:
    """Image p with text p."""
    if model.is_embedding:
        with torch.autocast(images.device.type, enabled=False):
            return (images * texts).sum(dim=1)
    if isinstance(model, CrossAttention) and model.pairs_apart:
        return model.activation(model.logits(images, texts, aligned=True))
    return model.score(images, texts).diagonal()
