"""The second stage of a search: a model that compares regions with words scores what another has found."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.data import Features, Split
from selhn.data.splits import split_ids
from selhn.eval.encoded import encode_split, require_width, score_split
from selhn.eval.metrics import Metrics, recall
from selhn.models import AbstractMatcher, in_eval_mode
from selhn.models.matcher import taken_side
from selhn.ops import Fragments

PAIRS_AT_ONCE = 1024


class PairScorer:
    """Scores images for a text with a model that looks at every pair of regions and words, for `search.Reranker`.

    Args:
        model: usually a cross-attention model; any matcher will do.
        features: the regions of the images.
        ids: the ids of the images in the index, in the order of `features`.
        side: side inputs of the images, if the model takes any.
    """

    def __init__(
        self,
        model: AbstractMatcher,
        features: Features,
        ids: Sequence[str],
        side: Mapping[str, Tensor] | None = None,
    ):
        taken_side(model, {}, "texts")  # a typed sentence has no side inputs
        self.side = taken_side(model, side or {}, "images")
        if len(ids) != features.num_images:
            raise SelhnError(f"there are {features.num_images} images and {len(ids)} ids: give one each")
        self.model, self.features = model, features
        self.row_of_id = {name: row for row, name in enumerate(ids)}

    @classmethod
    def of_split(cls, model: AbstractMatcher, split: Split) -> "PairScorer":
        """For an index that was built from a split."""
        require_width(model, split)
        return cls(model, split.features, split_ids(split), split.side)

    def __call__(
        self, text: str, ids: Sequence[str], first: Sequence[float], first_share: float
    ) -> tuple[list[float], list[float]]:
        """What images are ordered by for a text, by `blend` with the scores of the first stage; and their scores."""
        unknown = next((name for name in ids if name not in self.row_of_id), None)
        if unknown is not None:
            raise SelhnError(f"the re-ranker has no regions of {unknown!r}: give it those of all images")
        device = device_of(self.model)
        with in_eval_mode(self.model):
            rows = torch.tensor([self.row_of_id[name] for name in ids])
            regions, mask = self.features.gather(rows)
            side = {name: tensor[rows.to(tensor.device)].to(device) for name, tensor in self.side.items()}
            images = self.model.encode_images(regions.to(device), mask.to(device), **side)
            tokens, token_mask = self.model.tokenize([text])
            texts = self.model.encode_texts(tokens.to(device), token_mask.to(device))
            numbers = self.model.logits(images, texts)[:, 0].float().cpu()
            numbers = blend(torch.tensor(first), numbers, first_share)
            return numbers.tolist(), self.model.activation(numbers).tolist()


def blend(
    first: Float[Tensor, "*Q k"], second: Float[Tensor, "*Q k"], first_share: float
) -> Float[Tensor, "*Q k"]:
    """The scores of two stages for the k best of a query, on the scale of the second.

    Those of the first are rescaled to the mean and deviation of the second over the same k, and weighted by
    `first_share`: 0 is the second stage alone, 1 the first.
    """
    if not 0 <= first_share <= 1:
        raise SelhnError(f"first_share is {first_share}: give 0 (second stage only) to 1 (first only)")
    mean, deviation = first.mean(-1, keepdim=True), first.std(-1, correction=0, keepdim=True)
    level, width = second.mean(-1, keepdim=True), second.std(-1, correction=0, keepdim=True)
    alike = deviation == 0  # the first stage has no opinion
    as_second = level + width * (first - mean) / deviation.masked_fill(alike, 1.0)
    return (1 - first_share) * second + first_share * as_second


def rerank_split(
    recaller: AbstractMatcher,
    reranker: AbstractMatcher,
    split: Split,
    k: int,
    first_share: float = 0.5,
) -> Metrics:
    """Recall of both stages on a split: the k best of every query by `recaller`, in the order of `blend`."""
    if k < 1:
        raise SelhnError(f"k must be at least 1, got {k}")
    scores = score_split(recaller, split, for_ranking=True).cpu()
    images, texts = encode_split(reranker, split)
    measured = []
    for by_text in (False, True):
        table = scores.T if by_text else scores
        first = table.topk(min(k, table.shape[1]), dim=1).indices
        query = torch.arange(len(first))[:, None].expand_as(first)
        image, text = (first, query) if by_text else (query, first)
        numbers = score_chosen(reranker, images, texts, image.flatten(), text.flatten()).reshape(first.shape)
        numbers = blend(table.gather(1, first).to(numbers), numbers, first_share)
        # Above everything that was not scored again, in the order of both; ties stay ties.
        above = table.max() + 1 + (numbers - numbers.min()).double()
        combined = table.double().scatter(1, first, above)
        measured.append(recall(combined.T if by_text else combined, split.image_of_text))
    return Metrics(measured[0].i2t, measured[1].t2i)


def score_chosen(
    model: AbstractMatcher, images: Any, texts: Any, image: Int[Tensor, " P"], text: Int[Tensor, " P"]
) -> Float[Tensor, " P"]:
    """The scores of only some pairs, by `logits`; on the CPU."""
    device = device_of(model)
    # Texts of similar length together: little padding is computed.
    order = torch.arange(len(text))
    if isinstance(texts, Fragments):
        order = texts.mask.sum(1).cpu()[text].argsort(stable=True)
    found = torch.empty(len(text))
    with in_eval_mode(model):
        for some in order.split(PAIRS_AT_ONCE):
            own_texts = texts[text[some].to(device)]
            own_texts = own_texts.trimmed() if isinstance(own_texts, Fragments) else own_texts
            found[some] = model.logits(images[image[some].to(device)], own_texts, aligned=True).float().cpu()
    return found
