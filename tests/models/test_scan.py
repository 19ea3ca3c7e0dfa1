import pytest
import torch
from model_cases import make_batch, make_model
from model_oracle import cosines, fragments

from selhn.models import create_model


@pytest.mark.parametrize("name", ["scan_t2i_avg", "scan_t2i_lse", "scan_i2t_avg", "scan_i2t_lse"])
@pytest.mark.parametrize("training", [False, True])
def test_equals_a_loop_over_pairs_written_from_the_paper(name, training):
    model, batch = make_model(name).double().train(training), make_batch(pairs=4, dtype=torch.float64)
    images, texts = fragments(model, batch)
    smooth = {"t2i": 9.0, "i2t": 4.0}[name[5:8]]
    naive = torch.zeros(4, 4, dtype=torch.float64)
    for i, regions in enumerate(images):
        for t, words in enumerate(texts):
            looking, seen = (words, regions) if "t2i" in name else (regions, words)
            found = torch.stack(cosines(looking, seen, smooth))
            naive[i, t] = found.mean() if name.endswith("avg") else (6 * found).exp().sum().log() / 6
    scores = model(batch).scores
    torch.testing.assert_close(scores, naive, rtol=0, atol=1e-12)
    weights = torch.randn(4, 4, dtype=torch.float64)
    parameters = list(model.parameters())
    ours = torch.autograd.grad((scores * weights).sum(), parameters)
    for mine, theirs in zip(ours, torch.autograd.grad((naive * weights).sum(), parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_settings_travel():
    model = create_model("scan_i2t_lse", vocab_size=5, dim=8, smooth=11, lambda_lse=20)
    assert (model.head.smooth, model.head.lambda_lse, model.head.direction) == (11, 20, "i2t")
    assert model.settings["lambda_lse"] == 20
    with pytest.raises(ValueError, match="scan_t2i_avg has no setting 'lambda_lse'"):
        create_model("scan_t2i_avg", vocab_size=5, lambda_lse=6.0)


def test_longer_texts_score_higher_with_lse():
    # Official: a sum inside the logarithm, so equal cosines c of n words give c + log(n) / lambda.
    model = create_model("scan_t2i_lse", vocab_size=5, feature_dim=4, dim=8, word_dim=3)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    same = model.head._pool(torch.full((1, 4, 2), 0.3), mask)
    torch.testing.assert_close(same, 0.3 + torch.tensor([[2.0, 4.0]]).log() / 6)
