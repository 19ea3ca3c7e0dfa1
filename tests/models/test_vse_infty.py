import torch
from model_cases import make_batch, make_model

from selhn.models import create_model


def test_the_mlp_stands_beside_the_fc():
    model = create_model("vse_infty", vocab_size=5)
    # The number of the specification, section 2.1: 2048 -> 512 -> 1024, and two batch norms.
    assert sum(p.numel() for p in model.image.mlp.layers.parameters()) == 1_574_400
    assert model.image.mlp.layers[0].in_features == 2048


def test_bert_and_bigru_share_the_image_side():
    bigru, bert = make_model("vse_infty"), make_model("vse_infty_bert")
    bert.image.load_state_dict(bigru.image.state_dict())
    batch = make_batch()
    ours = bert.encode_images(batch.regions, batch.region_mask)
    assert torch.equal(ours, bigru.encode_images(batch.regions, batch.region_mask))
