"""A training loop as anyone writes it: two small encoders on pairs whose features share a large mean.

Other benchmarks and the tests train with it, for logs that are not of the library's own loop. T-HN stalls in it within
a hundred steps, since the features are never far from their mean; a run takes a few seconds.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from selhn.diagnose import Probe
from selhn.eval import recall
from selhn.losses import create_loss

BATCH, IMAGE_WIDTH, TEXT_WIDTH, CONCEPTS = 64, 64, 48, 40
Rows = list[dict[str, float]]


def make_pairs(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of five concepts each, and texts that name four of them."""
    world = torch.Generator().manual_seed(0)  # what concepts look like does not change with the split
    looks, names = (
        torch.randn(CONCEPTS, IMAGE_WIDTH, generator=world),
        torch.randn(CONCEPTS, TEXT_WIDTH, generator=world),
    )
    concepts = torch.rand(number, CONCEPTS, generator=generator).topk(5, dim=1).indices
    images = (
        2 + looks[concepts].mean(1) + 0.2 * torch.randn(number, IMAGE_WIDTH, generator=generator)
    ).relu()
    return images, 2 + names[concepts[:, :4]].mean(1) + 0.2 * torch.randn(
        number, TEXT_WIDTH, generator=generator
    )


def plain_run(
    loss: str, steps: int = 700, lr: float = 2e-3, pairs: int = 2000, seed: int = 0, reduction: str = "mean",
    batch: int = BATCH,
) -> Rows:  # fmt: skip
    """The rows of a probe every 5 steps, and every 70 steps RSUM and the loss on other pairs."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    images, texts = make_pairs(pairs, generator)
    held_out = make_pairs(200, generator)
    model = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32))
        for width in (IMAGE_WIDTH, TEXT_WIDTH)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    loss_fn, probe, rows = create_loss(loss, reduction=reduction), Probe(model, every=5), []
    probe.alarm.patience = steps  # the verdict comes afterwards
    for step in range(1, steps + 1):
        chosen = torch.randint(pairs, (batch,), generator=generator)
        image_emb, text_emb = (normalize(tower(x[chosen]), dim=1) for tower, x in zip(model, (images, texts)))
        scores = image_emb @ text_emb.T
        value = loss_fn(scores, image_ids=chosen)
        optimizer.zero_grad()
        value.backward()
        rows.append(probe(scores, loss=value, image_ids=chosen, images=image_emb, texts=text_emb))
        optimizer.step()
        if step % 70 == 0:
            with torch.no_grad():
                tested = [normalize(tower(x), dim=1) for tower, x in zip(model, held_out)]
                scores = tested[0] @ tested[1].T
                rsum = recall(scores, torch.arange(len(scores))).rsum
                rows.append({"step": step, "rsum": rsum, "val_loss": loss_fn(scores[:batch, :batch]).item()})
    return [row for row in rows if row]
