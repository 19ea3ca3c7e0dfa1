"""VSE-infinity on regions: Chen et al., Learning the Best Pooling Strategy for VSE, CVPR 2021.

Its MLP is parallel to the FC, on the raw features; that of RVSE follows the FC.
"""

from selhn.models.builders import BertSettings, WordSettings
from selhn.models.layouts import GRU_NAMES, UNIT_VECTORS, AuthorsLayout
from selhn.models.table import Paper, model
from selhn.models.vse import MLP_ORDER, VSE, with_bert, with_gru

_PAPER = Paper("Chen et al., CVPR 2021", "https://arxiv.org/abs/2011.04305")
_VSE_NAMES = [
    *GRU_NAMES,
    (r"^img_enc\.(fc|mlp)\.", r"image.\1."),
    (r"^img_enc\.gpool\.", "image.gpo."),
    (r"^txt_enc\.(embed|rnn)\.", r"text.words.\1."),
    (r"^txt_enc\.bert\.", "text.words.bert."),
    (r"^txt_enc\.linear\.", "text.fc."),
    (r"^txt_enc\.gpool\.", "text.gpo."),
]
_LAYOUT = AuthorsLayout(_VSE_NAMES, UNIT_VECTORS, one_side=True)


@model(_PAPER, official=_LAYOUT)
def vse_infty(common: WordSettings, mask_bn: bool = False) -> VSE:
    """VSE-infinity with a BiGRU: FC(x) + mlp(x)."""
    return with_gru("parallel", common, 0.0, MLP_ORDER, mask_bn)


@model(_PAPER, brings_tokenizer=True, official=_LAYOUT)
def vse_infty_bert(common: BertSettings, mask_bn: bool = False) -> VSE:
    """VSE-infinity with a BERT; the authors used bert-base-uncased."""
    return with_bert("parallel", common, MLP_ORDER, mask_bn)
