"""A training loop as anyone writes it: two small encoders on pairs whose features share a large mean.

Other benchmarks and the tests train with it, for logs that are not of the library's own loop. T-HN stalls in it within
a hundred steps, since the features are never far from their mean; a run takes a few seconds.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from selhn.diagnose import Probe
from selhn.eval import recall
from selhn.losses import create_loss

BATCH, IMAGE_WIDTH, TEXT_WIDTH, CONCEPTS = 64, 64, 48, 40
Rows = list[dict[str, Any]]


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


def spoilt(images: Tensor, texts: Tensor, fault: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs in which something is wrong."""
    if fault == "shuffled":
        return images, texts[torch.randperm(len(texts), generator=generator)]
    if fault == "zeros":
        return torch.zeros_like(images), texts
    if fault == "one caption":
        return images, texts[:1].expand_as(texts)
    if fault == "noise":
        return torch.randn(images.shape, generator=generator), texts
    return images, texts


def plain_run(
    loss: str, steps: int = 700, lr: float = 2e-3, pairs: int = 2000, seed: int = 0, reduction: str = "mean",
    batch: int = BATCH, *, fault: str = "", scale: float = 1.0, held_out: int = 200, **settings: float,
) -> Rows:  # fmt: skip
    """The rows of a probe every 5 steps, and every 70 steps recalls and the loss on other pairs.

    `fault` names what is wrong with the pairs; `scale` multiplies the scores, as in programs that train on logits.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    images, texts = make_pairs(pairs, generator)
    others = make_pairs(held_out, generator)
    images, texts = spoilt(images, texts, fault, generator)
    others = others if fault == "shuffled" else spoilt(*others, fault, generator)
    model = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 32))
        for width in (IMAGE_WIDTH, TEXT_WIDTH)
    )
    loss_fn = create_loss(loss, reduction=reduction, **settings)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss_fn.parameters()], lr=lr)
    probe, rows = Probe(model, every=5), []
    probe.alarm.patience = steps  # the verdict comes afterwards
    for step in range(1, steps + 1):
        chosen = torch.randint(pairs, (batch,), generator=generator)
        image_emb, text_emb = (normalize(tower(x[chosen]), dim=1) for tower, x in zip(model, (images, texts)))
        scores = scale * image_emb @ text_emb.T
        value = loss_fn(scores, image_ids=chosen)
        optimizer.zero_grad()
        value.backward()
        rows.append(probe(scores, loss=value, image_ids=chosen, images=image_emb, texts=text_emb))
        optimizer.step()
        if step % 70 == 0:
            with torch.no_grad():
                tested = [normalize(tower(x), dim=1) for tower, x in zip(model, others)]
                scores = scale * tested[0] @ tested[1].T
                dev = recall(scores, torch.arange(len(scores))).to_dict()
                rows.append({"step": step, "dev": dev, "val_loss": loss_fn(scores[:batch, :batch]).item()})
    return [row for row in rows if row]
