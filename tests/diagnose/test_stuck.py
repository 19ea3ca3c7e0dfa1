"""docs/integrations/stuck.md: every plateau that it names is computed here, from losses of equal scores."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from selhn.diagnose import diagnose, plateaus
from selhn.losses import InfoNCE, SigLIP, Triplet, TripletHN

PAGE = (Path(__file__).parents[2] / "docs" / "integrations" / "stuck.md").read_text()
ROWS = re.findall(r"^\| ([\d.]+) \| (\d+|any) \| (.+?) \|$", PAGE, flags=re.MULTILINE)


def equal(batch):
    return torch.full((batch, batch), 0.3, dtype=torch.float64)


def summed(batch):
    return TripletHN(reduction="sum")(equal(batch))


def one_direction(batch):
    return TripletHN(reduction="none")(equal(batch))[0].sum()


def ln(batch):
    """Of large batches by the plateau, with which small ones are compared."""
    value = InfoNCE(0.07).plateau(batch)
    if batch <= 256:
        assert float(InfoNCE(0.07)(equal(batch))) == pytest.approx(value)
    return value


def best_siglip(batch):
    """Of one image, with the bias that is best for equal scores."""
    best = -math.log(batch - 1)
    least, *others = (
        float(SigLIP(bias=bias, learn=False)(torch.zeros(batch, batch).double()))
        for bias in (best, best - 0.1, best + 0.1)
    )
    assert least < min(others)
    return least


def head(false_pairs):
    """Binary cross-entropy of the best constant answer."""
    labels = torch.tensor([1.0] + [0.0] * false_pairs)
    logit = math.log(1 / false_pairs)
    return binary_cross_entropy_with_logits(torch.full_like(labels, logit), labels)


def hardest_of_distances(batch):
    """Batch-hard triplets with a margin of 5: furthest positive, nearest negative, all embeddings equal."""
    distances = torch.cdist(torch.ones(batch, 4), torch.ones(batch, 4))
    return (distances.amax(dim=1) - distances.amin(dim=1) + 5).relu().mean()


COMPUTED = {
    "the margin": lambda b: TripletHN()(equal(b)),
    "2 margin": lambda b: TripletHN(reduction="none")(equal(b)).mean(dim=1).sum(),
    "B margin": one_direction,
    "2 B margin": summed,
    "2 B (B - 1) margin": lambda b: Triplet(reduction="sum")(equal(b)),
    "ln B": ln,
    "2 ln B": lambda b: InfoNCE(0.07, reduction="none")(equal(b)).mean(dim=1).sum(),
    "ln B + (B - 1) ln(B / (B - 1)), about ln B + 1": best_siglip,
    "ln 2": lambda b: softplus(torch.zeros(())),
    "the same head with two false pairs for each true one, as ALBEF and BLIP sample them": lambda b: head(2),
    "`torch.nn.TripletMarginLoss()` with its default margin": lambda b: torch.nn.TripletMarginLoss()(
        *torch.ones(3, b, 4)
    ),
    "`BatchHardTripletLoss` and `TripletLoss` of sentence-transformers with their default margin": hardest_of_distances,
}


def test_every_row_is_computed():
    assert len(ROWS) == len(re.findall(r"^\| [\d]", PAGE, flags=re.MULTILINE)) > 20
    assert {words.split(":")[0] for *_, words in ROWS} == set(COMPUTED)
    for named in ("0.2", "51.2"):
        assert named in {value for value, *_ in ROWS}
    assert head(1) == pytest.approx(math.log(2)), "the other meaning of its row"


@pytest.mark.parametrize(("value", "batch", "words"), ROWS)
def test_a_row(value, batch, words):
    sizes = [4, 16] if batch == "any" else [int(batch)]
    for size in sizes:
        found = float(COMPUTED[words.split(":")[0]](size))
        assert f"{found:.4g}" == f"{float(value):.4g}", words


def test_selhn_diagnose_knows_them():
    """The plateaus of our losses are those that `selhn diagnose --batch` looks for."""
    for value, batch, words in ROWS:
        if batch != "any" and "SigLIP" not in words and "all negatives" not in words:
            assert any(
                abs(one.value - float(value)) < 1e-3 * one.value for one in plateaus(batch=int(batch))
            ), words


def test_a_log_of_infonce_whose_batch_is_not_known(tmp_path):
    """4.852 is in the table: `selhn diagnose` names it too, and says with `--batch` what the table says."""
    log = tmp_path / "log.csv"
    log.write_text("".join(["step,train_loss\n", *(f"{step},4.85{2 + step % 2}\n" for step in range(600))]))
    alone, with_batch = diagnose(log).verdict, diagnose(log, batch=128).verdict
    assert (alone.kind, with_batch.kind) == ("unclear", "stalled")
    assert "InfoNCE (CLIP's loss) with a batch of 128" in alone.evidence[1]
    assert "temperature" in with_batch.remedy
    assert "TripletSelHN" not in with_batch.remedy
