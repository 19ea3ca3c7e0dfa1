"""What the tests over the table of losses run over: every loss, in every form it has."""

import torch

from selhn.losses import (
    AOQ,
    NCR,
    SCT,
    SSP,
    TAL,
    InfoNCE,
    MetaSPN,
    MultiPositiveInfoNCE,
    SigLIP,
    Triplet,
    TripletHN,
    TripletSelHN,
    TripletSHN,
    TripletWarmUp,
)


def warmed_up():
    loss_fn = TripletWarmUp(warmup_epochs=2)
    loss_fn.set_epoch(2)
    return loss_fn


CASES = {
    "triplet": ("triplet", Triplet),
    "hn": ("hn", TripletHN),
    "hn-nca": ("hn", lambda: TripletHN(variant="nca")),
    "selhn": ("selhn", TripletSelHN),
    "selhn-wide": ("selhn", lambda: TripletSelHN(epsilon=0.15)),
    "selhn-paper": ("selhn", TripletSelHN.paper),
    "selhn-official": ("selhn", TripletSelHN.official),
    "shn": ("shn", TripletSHN),
    "shn-nca": ("shn", TripletSHN.official),
    "sct": ("sct", SCT),
    "sct-nca": ("sct", lambda: SCT(variant="nca", weight=0.7, hard_threshold=0.4)),
    "warmup": ("warmup", TripletWarmUp),
    "warmup-over": ("warmup", warmed_up),
    "infonce": ("infonce", InfoNCE),
    "infonce-soft": ("infonce", lambda: InfoNCE(temperature=0.5, reduction="sum")),
    "siglip": ("siglip", SigLIP),
    "siglip-even": ("siglip", lambda: SigLIP(temperature=0.25, bias=0.5)),
    "multi_positive": ("multi_positive", MultiPositiveInfoNCE),
    "multi_positive-soft": ("multi_positive", lambda: MultiPositiveInfoNCE(temperature=0.5, reduction="sum")),
    "tal": ("tal", TAL),
    "tal-soft": ("tal", lambda: TAL.official(margin=0.2, temperature=0.3)),
    "ssp": ("ssp", SSP),
    "ssp-official": ("ssp", SSP.official),
    "ssp-average": ("ssp", lambda: SSP(mining="average")),
    "ssp-cubic": ("ssp", lambda: SSP.official(mining="average", negative=(0.1, -0.2, 0.3, 0.4))),
    "ncr": ("ncr", NCR),
    "ncr-warming": ("ncr", lambda: NCR(warmup_epochs=1)),
    "ncr-official": ("ncr", lambda: NCR.official(warmup_epochs=1)),
    "aoq": ("aoq", AOQ),
    "meta_spn": ("meta_spn", MetaSPN),
}

PULLS_POSITIVES_TOGETHER = ("multi_positive", "multi_positive-soft")
"""Losses in which pairs of one image are more than no negatives of each other."""

KINDS = ("spread", "collapsed", "trained", "ties", "large")


def make_scores(kind, batch, seed, dtype=torch.float64):
    """A B x B matrix as it is met before, during and after training; "large" is no cosine."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch, batch, generator=generator, dtype=torch.float64)
    scores = {
        "spread": 0.3 * noise,
        "collapsed": 0.9 + 0.002 * noise,
        "trained": 0.1 + 0.1 * noise + 0.4 * torch.eye(batch, dtype=torch.float64),
        "ties": (4 * noise).round() / 16,
        "large": 30 * noise - 100,
    }[kind]
    return scores.to(dtype)


def make_embeddings(kind, batch, width, seed, dtype=torch.float64):
    """Two B x d matrices whose products look like `make_scores`; "ties" repeats rows of exact binary fractions."""
    generator = torch.Generator().manual_seed(seed)
    images, texts = torch.randn(2, batch, width, generator=generator, dtype=torch.float64)
    if kind == "collapsed":
        images, texts = 1 + 0.02 * images, 1 + 0.02 * texts
    if kind == "trained":
        texts = images + texts
    if kind == "ties":
        images, texts = (images.round() / 4, texts.round() / 4)
        texts[batch // 2 :] = texts[: batch - batch // 2].clone()
    else:
        images, texts = torch.nn.functional.normalize(images, dim=1), torch.nn.functional.normalize(texts, dim=1)
    return images.to(dtype).requires_grad_(), texts.to(dtype).requires_grad_()


def make_ids(batch, seed):
    """Image ids with repeats, not in order."""
    return torch.randint(0, max(1, 2 * batch // 3), (batch,), generator=torch.Generator().manual_seed(seed)) * 7 - 3
