import torch
from model_cases import make_batch, make_model


def test_the_two_differ_only_in_what_they_keep():
    equal, prob, batch = make_model("bfan_equal"), make_model("bfan_prob"), make_batch()
    assert equal.state_dict().keys() == prob.state_dict().keys()
    assert not torch.allclose(equal(batch).scores, prob(batch).scores)
