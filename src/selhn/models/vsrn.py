"""VSRN: Li et al., Visual Semantic Reasoning for Image-Text Matching, ICCV 2019.

    x = FC(regions);  x <- x + BN(W (theta(x) phi(x)' / M) g(x)), four times;  x <- x normalised
    image = unit(BN(GRU over the regions at the last one));  text = unit(GRU over the words at the last one)

In training a captioner (`captioner.py`) predicts the text from the regions x; its loss is added.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.types import Batch, Match
from selhn.models.builders import WordSettings, xavier
from selhn.models.captioner import Captioner
from selhn.models.layouts import UNIT_VECTORS, AuthorsLayout, Names
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, all_real
from selhn.models.table import Paper, model
from selhn.ops import last_states, look_up, masked_batch_norm, side_by_side, unit, word_embedding

NormOver = Literal["regions", "features"]
"""What the norm of regions (M, d) runs over: the M numbers of a feature, or the d numbers of a region."""


class GraphLayer(nn.Module):
    """`x + BN(W (R g(x)))`, `R = theta(x) phi(x)' / M`: regions attend to each other, without a softmax."""

    def __init__(self, dim: int):
        super().__init__()
        self.theta, self.phi, self.g, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.BatchNorm1d(dim)
        self.out.bias.requires_grad_(False)  # the norm cancels it; published weights have it
        nn.init.zeros_(self.norm.weight)  # initially the layer changes nothing

    def forward(self, regions: Float[Tensor, "I M d"], mask: RegionMask) -> Float[Tensor, "I M d"]:
        number = mask.sum(1)[:, None, None].clamp(min=1)
        # M is smaller than d, so the M x M matrix is made first.
        affinity = self.theta(regions) @ self.phi(regions).transpose(1, 2) / number
        seen = affinity @ self.g(regions).masked_fill(~mask[:, :, None], 0)
        return regions + masked_batch_norm(self.norm, self.out(seen), mask)


class RegionReasoning(nn.Module):
    """Regions in the context of each other: FC, the graph layers, a norm."""

    def __init__(self, feature_dim: int, dim: int, layers: int, first_norm: bool, norm_over: NormOver):
        super().__init__()
        self.axis = 1 if norm_over == "regions" else 2
        self.first_norm = first_norm
        self.fc = xavier(feature_dim, dim)
        self.layers = nn.ModuleList(GraphLayer(dim) for _ in range(layers))

    def forward(self, regions: Regions, mask: RegionMask) -> Float[Tensor, "I M d"]:
        reasoned = self.fc(regions)
        if self.first_norm:
            reasoned = self._unit(reasoned, mask)
        for layer in self.layers:
            reasoned = layer(reasoned, mask)
        return self._unit(reasoned, mask)

    def _unit(self, regions: Float[Tensor, "I M d"], mask: RegionMask) -> Float[Tensor, "I M d"]:
        return unit(regions.masked_fill(~mask[:, :, None], 0), axis=self.axis)


class VSRN(AbstractMatcher):
    """Regions that reason over a graph and are then read in sequence, as words are."""

    is_embedding = True

    def __init__(
        self,
        common: WordSettings,
        reasoning: RegionReasoning,
        final_bn: bool,
        captioner: Captioner | None,
        captioning: float,
    ):
        super().__init__(common.tokenizer)
        self.reasoning = reasoning
        self.region_rnn = nn.GRU(common.dim, common.dim, batch_first=True)
        self.final_bn = nn.BatchNorm1d(common.dim) if final_bn else nn.Identity()
        self.embed = word_embedding(common.num_words, common.word_dim)
        self.rnn = nn.GRU(common.word_dim, common.dim, batch_first=True)
        self.captioner = captioner
        self.captioning = captioning
        self.settings = {"vocab_size": common.num_words}
        image, text = nn.ModuleList([reasoning, self.region_rnn]), nn.ModuleList([self.embed, self.rnn])
        self.watched = {"image": image, "text": text, "image_fc": reasoning.fc, "text_last": self.rnn}

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Float[Tensor, "I d"]:
        return self._pool(*self._reason(regions, region_mask))

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, "T d"]:
        return unit(last_states(self.rnn(look_up(self.embed, tokens))[0], all_real(tokens, token_mask)))

    def forward(self, batch: Batch) -> Match:
        """The scores, and in training the captioner's loss; both share one pass over the graph."""
        (images, aux), texts = side_by_side(
            lambda: self._images_and_captions(batch),
            lambda: self.encode_texts(batch.tokens, batch.token_mask),
        )
        return Match(self.score(images, texts), aux)

    def _images_and_captions(self, batch: Batch) -> tuple[Float[Tensor, "B d"], dict[str, Tensor]]:
        reasoned, mask = self._reason(batch.regions, batch.region_mask)
        images = self._pool(reasoned, mask)
        if self.captioner is None or not self.training:
            return images, {}
        captions = self.captioner(reasoned, mask, batch.tokens, batch.token_mask)
        return images, {"captioning": self.captioning * captions}

    def _reason(self, regions: Regions, mask: RegionMask | None) -> tuple[Float[Tensor, "I M d"], RegionMask]:
        """The regions after the graph, with dropped regions moved to the end, as a GRU needs them."""
        mask, order = to_front(all_real(regions, mask))
        regions = regions.gather(1, order[:, :, None].expand_as(regions))
        return self.reasoning(regions, mask), mask

    def _pool(self, reasoned: Float[Tensor, "I M d"], mask: RegionMask) -> Float[Tensor, "I d"]:
        return unit(self.final_bn(last_states(self.region_rnn(reasoned)[0], mask)))


def to_front(mask: RegionMask) -> tuple[RegionMask, Tensor]:
    """The mask with all real items in front, in their order, and the places they come from."""
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    number = mask.sum(1, keepdim=True)
    goes_to = torch.where(mask, mask.cumsum(1) - 1, number + (~mask).cumsum(1) - 1)
    return places < number, torch.zeros_like(goes_to).scatter(1, goes_to, places)


_PAPER = Paper("Li et al., ICCV 2019", "https://arxiv.org/abs/1909.02701")
_VSRN_NAMES: Names = [
    (r"^img_enc\.fc\.", "reasoning.fc."),
    (r"^img_enc\.Rs_GCN_([1-9]\d*)\.", lambda found: f"reasoning.layers.{int(found[1]) - 1}."),
    (r"\.W\.0\.", ".out."),
    (r"\.W\.1\.", ".norm."),
    (r"^img_enc\.img_rnn\.", "region_rnn."),
    (r"^img_enc\.bn\.", "final_bn."),
    (r"^txt_enc\.(embed|rnn)\.", r"\1."),
]
_LAYOUT = AuthorsLayout(
    _VSRN_NAMES,
    {**UNIT_VECTORS, "measure": "cosine", "use_abs": False},
    unsaved=("captioner.",),
    numbered={"graph_layers": r"img_enc\.Rs_GCN_\d+"},
    present={"final_bn": "img_enc.bn.weight"},
)


@model(_PAPER, official=_LAYOUT)
def vsrn(
    common: WordSettings,
    graph_layers: int = 4,
    final_bn: bool = True,
    norm_over: NormOver = "regions",
    captioning: float = 1.0,
    caption_dim: int = 512,
) -> VSRN:
    """VSRN as for Flickr30K; `final_bn=False` as for COCO. `captioning` weighs the captioner's loss, 0: none.

    The authors' `dim` is 2048. Their programs differ: that for Flickr30K has a batch norm at the end, that
    for COCO has none, and normalises after the FC.
    """
    # Official: the norm of regions runs over the regions; the paper means, and the authors agree, the features.
    reasoning = RegionReasoning(common.feature_dim, common.dim, graph_layers, not final_bn, norm_over)
    captioner = Captioner(common.dim, caption_dim, common.num_words, common.word_dim) if captioning else None
    return VSRN(common, reasoning, final_bn, captioner, captioning)
