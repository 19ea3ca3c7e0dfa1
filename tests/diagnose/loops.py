"""A plain loop of someone's own: two small encoders on pairs whose features share a large mean."""

from functools import cache

import torch
from torch.nn.functional import normalize

from selhn.diagnose import Probe
from selhn.eval import recall
from selhn.losses import create_loss

BATCH = 64


def make_pairs(number, generator):
    world = torch.Generator().manual_seed(0)
    looks, names = torch.randn(40, 64, generator=world), torch.randn(40, 48, generator=world)
    concepts = torch.rand(number, 40, generator=generator).topk(5, dim=1).indices
    images = (2 + looks[concepts].mean(1) + 0.2 * torch.randn(number, 64, generator=generator)).relu()
    return images, 2 + names[concepts[:, :4]].mean(1) + 0.2 * torch.randn(number, 48, generator=generator)


@cache
def train(loss, steps=700, lr=2e-3, pairs=2000, seed=0):
    """Rows of the log, with RSUM on other pairs every 70 steps; each kind of run is trained once."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    images, texts = make_pairs(pairs, generator)
    held_out = make_pairs(200, generator)
    model = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)) for width in (64, 48)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    loss_fn, probe, rows = create_loss(loss), Probe(model, every=5), []
    probe.alarm.patience = 10**9  # what it says is for a person at the screen
    for step in range(1, steps + 1):
        chosen = torch.randint(pairs, (BATCH,), generator=generator)
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
            rsum = recall(scores, torch.arange(200)).rsum
            rows.append({"step": step, "rsum": rsum, "val_loss": loss_fn(scores[:BATCH, :BATCH]).item()})
    return [row for row in rows if row]
