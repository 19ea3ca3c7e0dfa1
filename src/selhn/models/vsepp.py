"""VSE++ on precomputed features: Faghri et al., BMVC 2018; order scores: Vendrov et al., ICLR 2016.

Differs from the public code: unit vectors divide by the norm plus 1e-8, so that zeros give no NaN; images may
have several regions, whose projections are averaged.
"""

from operator import not_

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.models.builders import WordSettings, xavier
from selhn.models.layouts import AuthorsLayout
from selhn.models.matcher import AbstractMatcher, RegionMask, Regions, TokenMask, Tokens, all_real
from selhn.models.table import Paper, model
from selhn.ops import last_states, mean_of, unit, word_embedding

_NUMBERS_AT_ONCE = 2**26


class VSEpp(AbstractMatcher):
    """`image = unit(FC(x))`, `text = unit(GRU(words) at the last word)`, score = cosine or order.

    With `order`: s = -|max(0, |text| - |image|)|, absolute values and maximum by coordinates: a text is more
    general. Without `normalise_images` image vectors stay unscaled, as in the baseline VSE0.
    """

    def __init__(self, common: WordSettings, order: bool = False, normalise_images: bool = True):
        super().__init__(common.tokenizer)
        self.order = order
        self.normalise_images = normalise_images
        self.is_embedding = not order
        self.fc = xavier(common.feature_dim, common.dim)
        self.embed = word_embedding(common.num_words, common.word_dim)
        self.rnn = nn.GRU(common.word_dim, common.dim, batch_first=True)
        self.settings = {"vocab_size": common.num_words}
        text = nn.ModuleList([self.embed, self.rnn])
        self.watched = {"image": self.fc, "text": text, "image_fc": self.fc, "text_last": self.rnn}

    def encode_images(self, regions: Regions, region_mask: RegionMask | None = None) -> Float[Tensor, "I d"]:
        """One vector per image; usually M = 1, otherwise the mean over the regions."""
        features = mean_of(self.fc(regions), all_real(regions, region_mask))
        if self.normalise_images:
            features = unit(features)
        return features.abs() if self.order else features

    def encode_texts(self, tokens: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, "T d"]:
        states, _ = self.rnn(self.embed(tokens))
        text = unit(last_states(states, all_real(tokens, token_mask)))
        return text.abs() if self.order else text

    def score(self, images: Float[Tensor, "I d"], texts: Float[Tensor, "T d"]) -> Float[Tensor, "I T"]:
        """Cosines, or minus the length of the part of a text that the image lacks."""
        if not self.order:
            return super().score(images, texts)
        rows = max(1, _NUMBERS_AT_ONCE // max(1, texts.numel()))
        return torch.cat([-(texts - block[:, None]).relu().norm(dim=2) for block in images.split(rows)])


_PAPER = Paper("Faghri et al., BMVC 2018", "https://arxiv.org/abs/1707.05612")


def _layout(measure: str) -> AuthorsLayout:
    names = [(r"^img_enc\.fc\.", "fc."), (r"^txt_enc\.(embed|rnn)\.", r"\1.")]
    fixed = {"measure": measure, "use_abs": measure == "order"}
    return AuthorsLayout(names, fixed, {"no_imgnorm": ("normalise_images", not_)})


@model(_PAPER, official=_layout("cosine"))
def vsepp(common: WordSettings, normalise_images: bool = True) -> VSEpp:
    """VSE++ with cosines; `normalise_images=False` is VSE0's image side."""
    return VSEpp(common, order=False, normalise_images=normalise_images)


@model(_PAPER, "order embedding", official=_layout("order"))
def vsepp_order(common: WordSettings, normalise_images: bool = True) -> VSEpp:
    """Order++: the order scores."""
    return VSEpp(common, order=True, normalise_images=normalise_images)
