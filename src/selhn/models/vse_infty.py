"""VSE-infinity on regions: Chen et al., Learning the Best Pooling Strategy for VSE, CVPR 2021.

Its MLP is parallel to the FC, on the raw features; that of RVSE follows the FC.
"""

from selhn.models.builders import BertSettings, WordSettings, builder
from selhn.models.vse import MLP_ORDER, VSE, with_bert, with_gru


@builder
def vse_infty(common: WordSettings, mask_bn: bool = False) -> VSE:
    """VSE-infinity with a BiGRU: FC(x) + mlp(x)."""
    return with_gru("parallel", common, 0.0, MLP_ORDER, mask_bn)


@builder
def vse_infty_bert(common: BertSettings, mask_bn: bool = False) -> VSE:
    """VSE-infinity with a BERT; the authors used bert-base-uncased."""
    return with_bert("parallel", common, MLP_ORDER, mask_bn)
