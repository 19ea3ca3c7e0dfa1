import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import make_embeddings, make_ids

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.diagnose import Probe, Watch, probe_embeddings, probe_scores, probe_split
from selhn.diagnose.probe import false_negatives
from selhn.losses import TripletHN
from selhn.models import create_model
from selhn.text import Vocabulary

KINDS = st.sampled_from(["spread", "collapsed", "trained"])


def a_step(probe, margin=0.2, **given):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4))
    probe = probe(model)
    images, texts = (torch.nn.functional.normalize(model(x), dim=1) for x in torch.randn(2, 9, 6))
    images.retain_grad()
    scores = images @ texts.T
    loss = TripletHN(margin)(scores)
    loss.backward()
    return probe(scores, loss=loss, images=images, texts=texts, **given), probe, images, texts


def test_two_lines_in_a_loop(tmp_path):
    row, probe, images, _ = a_step(
        lambda model: Probe(model, tmp_path / "probe.jsonl"), image_ids=[*range(8), 0]
    )
    assert json.loads((tmp_path / "probe.jsonl").read_text()) == row == probe.rows[0]
    assert {"grad_0", "grad_2", "delta_s", "tangent", "paper", "rank_texts", "false_negatives"} <= set(row)
    along = (images.grad * images.detach()).sum(1)
    assert row["radial_images"] == pytest.approx(along.norm().item(), rel=1e-4)
    assert row["tangent_images"] == pytest.approx(
        (images.grad - along[:, None] * images).norm().item(), rel=1e-4
    )
    assert "tangent_texts" not in row, "its gradient was not kept"


def test_only_every_few_steps():
    probe, scores = Probe(torch.nn.Linear(2, 2), every=3), torch.rand(4, 4)
    measured = [probe(scores) is not None for _ in range(7)]
    assert measured == [True, False, False] * 2 + [True]
    assert [row["step"] for row in probe.rows] == [1, 4, 7]
    with pytest.raises(SelhnError):
        Probe(torch.nn.Linear(2, 2), every=0)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(("loss", "got"), [(torch.rand(4), r"shape \(4,\)"), ("0.2", "'0.2'")])
def test_a_loss_that_is_not_one_number(loss, got):
    with pytest.raises(SelhnError):
        Watch()(torch.rand(4, 4), loss)
    for one in (torch.full((1,), 0.5), torch.tensor(0.5).numpy(), 0.5):
        assert Watch()(torch.rand(4, 4), one)["loss"] == 0.5


@pytest.mark.usefixtures("as_a_user")
def test_embeddings_of_other_pairs():
    with pytest.raises(SelhnError):
        Probe(torch.nn.Linear(2, 2))(torch.rand(4, 4), images=torch.rand(4, 2), texts=torch.rand(3, 2))


def test_a_single_pair_is_no_stall():
    watch = Watch(every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [watch(torch.rand(1, 1), 0.2) for _ in range(300)] == [None] * 300
    with pytest.raises(SelhnError):
        watch.verdict()


def test_it_warns_once_of_a_stall():
    probe, scores = Probe(torch.nn.Linear(2, 2)), 0.7 + 1e-4 * torch.rand(8, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(1000):
            probe(scores)
    assert [str(one.message) for one in caught] == [probe.alarm.said]
    assert "stalled" in probe.alarm.said


@given(kind=KINDS, batch=st.integers(2, 12), seed=st.integers(0, 1000), with_ids=st.booleans())
def test_tangent_and_radial_are_those_of_autograd(kind, batch, seed, with_ids):
    """Decision by measurement: the gradient of one triplet at a time, its parts across and along the anchor."""
    images, texts = make_embeddings(kind, batch, 5, seed, torch.float32)
    ids = make_ids(batch, seed) if with_ids else None
    numbers = probe_embeddings(images, texts, ids)
    parts = {"distance": [], "tangent": [], "radial": [], "tangent_n": [], "tangent_p": [], "paper": []}
    for anchors, others in ((images, texts), (texts, images)):
        for i in range(batch):
            negatives = [j for j in range(batch) if (j != i if ids is None else ids[j] != ids[i])]
            if not negatives:
                continue
            v, t = (x[i].detach().double().requires_grad_() for x in (anchors, others))
            hardest = max(negatives, key=lambda j: float(anchors[i].detach() @ others[j].detach()))
            n = others[hardest].detach().double().requires_grad_()
            (v @ n - v @ t).backward()
            unit = {x: x.detach() / x.detach().norm() for x in (v, t, n)}
            across = {x: (x.grad - (x.grad @ unit[x]) * unit[x]).norm().item() for x in (v, t, n)}
            parts["tangent"].append(across[v])
            parts["tangent_p"].append(across[t])
            parts["tangent_n"].append(across[n])
            parts["radial"].append(abs(v.grad @ unit[v]).item())
            parts["distance"].append((n - t).norm().item())
            parts["paper"].append(parts["distance"][-1] * parts["radial"][-1])
    for name, values in parts.items():
        expected = sum(values) / max(1, len(values))
        assert numbers[name].item() == pytest.approx(expected, rel=1e-3, abs=2e-3), name


def test_the_tangent_does_not_vanish_with_delta_s_but_with_the_embeddings():
    """Decision 2: t and t^ at equal angles from v, far from each other and then near."""
    for angle in (0.7, 1e-3):
        t = torch.tensor([[math.cos(angle), math.sin(angle)], [math.cos(angle), -math.sin(angle)]])
        v = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        numbers = probe_embeddings(v, t, None)
        assert numbers["radial"] < 1e-6
        assert numbers["paper"] < 1e-6, "zero in the paper's formula, whatever the distance"
        # 2 sin for the images; for the texts, whose images are one and the same, 0.
        assert numbers["tangent"].item() == pytest.approx(math.sin(angle), rel=1e-3)


@given(batch=st.integers(2, 10), seed=st.integers(0, 1000))
def test_effective_rank(batch, seed):
    directions = torch.eye(batch)
    numbers = probe_embeddings(directions, directions)
    assert numbers["rank_images"].item() == pytest.approx(batch - 1, rel=1e-3), (
        "all directions but the mean's"
    )
    assert numbers["spread_images"].item() == pytest.approx(math.sqrt(1 - 1 / batch), rel=1e-4)
    line = torch.randn(batch, 1, generator=torch.Generator().manual_seed(seed)).sign() * torch.ones(1, 3)
    rank = probe_embeddings(line, line)["rank_texts"].item()
    assert rank == pytest.approx(1, rel=1e-3) if line.unique().numel() == 2 else rank == 0
    alike = probe_embeddings(torch.ones(batch, 3), torch.ones(batch, 3))
    assert alike["rank_images"] == 0
    assert alike["spread_images"] < 1e-5


def test_false_negatives_by_hand():
    ids = torch.tensor([5, 5, 6])
    scores = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.9, 0.3], [0.1, 0.0, 0.9]])
    # Image 0 mines text 1 of its own image, image 1 text 2, image 2 text 0; texts 0, 1, 2 mine images 1, 0, 1.
    assert false_negatives(scores, ids).item() == pytest.approx(3 / 6)
    assert false_negatives(scores, torch.arange(3)) == 0
    assert false_negatives(torch.ones(1, 1), torch.tensor([3])) == 0


@pytest.mark.parametrize("name", ["rvse", "scan_t2i_avg"])
def test_probe_of_a_split_leaves_all_as_it_was(name):
    data = load_data("world", images=100)
    model = create_model(
        name,
        tokenizer=Vocabulary.build(data.train.captions),
        feature_dim=data.feature_dim,
        dim=16,
        word_dim=12,
    ).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    row = probe_split(model, data.dev, pairs=10)
    assert row == probe_split(model, data.dev, pairs=10)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert ("rank_images" in row) == (name == "rvse")
    regions, mask = data.dev.features.gather(torch.arange(10))
    texts = model.tokenize([data.dev.captions[data.dev.image_of_text.tolist().index(i)] for i in range(10)])
    with torch.no_grad():
        scores = model.eval().score(model.encode_images(regions, mask), model.encode_texts(*texts))
    assert row["delta_s"] == pytest.approx(probe_scores(scores)["delta_s"].item(), rel=1e-4)
    late = replace(data.dev, image_of_text=data.dev.image_of_text % 5 + 20, given_side={})
    assert probe_split(model, late, pairs=10)["spread"] > 0, "the first images may have no texts"
    model.tokenizer = None
    with pytest.raises(SelhnError):
        probe_split(model, data.dev)
