import pytest
import torch

from selhn.base.errors import NotFound
from selhn.models import create_model


def test_settings_travel():
    model = create_model("scan_i2t_lse", vocab_size=5, dim=8, smooth=11, lambda_lse=20)
    assert (model.head.smooth, model.head.lambda_lse, model.head.directions) == (11, 20, ("i2t",))
    assert model.settings["lambda_lse"] == 20
    with pytest.raises(NotFound):
        create_model("scan_t2i_avg", vocab_size=5, lambda_lse=6.0)


def test_longer_texts_score_higher_with_lse():
    # Official: a sum inside the logarithm, so equal cosines c of n words give c + log(n) / lambda.
    model = create_model("scan_t2i_lse", vocab_size=5, feature_dim=4, dim=8, word_dim=3)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    same = model.head._pool(torch.full((1, 4, 2), 0.3), mask)
    torch.testing.assert_close(same, 0.3 + torch.tensor([[2.0, 4.0]]).log() / 6)
