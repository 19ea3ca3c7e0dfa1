"""What a model of torch looks at: attention between words and regions, for `selhn serve --attention`."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.eval import region_attention
from selhn.export import MatcherTowers, towers_of
from selhn.models import AbstractMatcher, CrossAttention
from selhn.pictures import Extractor, Library, load_extractor
from selhn.pictures.extractor import Prepared
from selhn.serve.looking import MOST_WORDS, Looking, LookingAtParts, LookMessage
from selhn.towers.ready import READY


class LookingByAttention(Looking):
    """Shows the attention of a model that compares regions with words."""

    def __init__(self, model: AbstractMatcher, extractor: Extractor):
        super().__init__(extractor.prepare, self._regions, extractor.resized)
        self.model, self.extractor = model, extractor

    def _regions(self, prepared: Prepared) -> tuple[Float[Tensor, "M F"], Float[Tensor, "M 4"]]:
        return self.extractor.extract([prepared])[0], prepared.boxes

    def compare(self, parts: tuple[Float[Tensor, "M F"], Float[Tensor, "M 4"]], text: str) -> LookMessage:
        regions, boxes = parts
        found = region_attention(self.model, regions, text, boxes)
        rows = [row for row, is_word in enumerate(found.is_word) if is_word][:MOST_WORDS]
        weights = found.weights.cpu()[rows].float().numpy()
        return LookMessage.of(
            "attention", [found.words[row] for row in rows], boxes.numpy(), weights, 3 / len(boxes)
        )


def looking_by(model: AbstractMatcher, library: Library) -> Looking:
    """How a model looks at the pictures of a library; one that was trained on other features is refused."""
    extractor = _extractor_of(library)
    fits = extractor is not None and model.settings.get("feature_dim", extractor.width) == extractor.width
    if extractor is None or not fits or model.tokenizer is None:
        raise SelhnError(
            "--attention needs an index of pictures with a known extractor, whose features have the "
            "width that the model was trained on"
        )
    if isinstance(model, CrossAttention):
        return LookingByAttention(model, extractor)
    return LookingAtParts(towers_of(model, extractor))


def _extractor_of(library: Library) -> Extractor | None:
    """What makes the regions of the pictures; it is never downloaded."""
    towers: Any = library.towers
    if isinstance(towers, MatcherTowers):
        return towers.extractor
    if towers is None or towers.vision != READY:
        return None
    return load_extractor(READY)
