"""The kernels against the formula in float64, on a GPU; or anywhere that has Triton, in its interpreter:

TRITON_INTERPRET=1 pytest -W ignore tests/ops/test_differences.py
"""

import os
from dataclasses import replace

import pytest
import torch
from model_cases import make_batch, make_model, score_batch
from torch.nn.functional import leaky_relu, linear

from selhn.models import cmcan, encode_batch, sgraf
from selhn.ops import Fragments, Pairing, differences, unit
from selhn.ops.differences import LinearWeights, attended_nodes, compared_nodes, node_precision

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_gpu = pytest.mark.gpu
fused = pytest.mark.usefixtures("interpreter") if INTERPRETED else on_gpu
# The interpreter has no products in bfloat16.
HALVES = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]
# Images, regions, texts, words, channels, size of a node: one of everything, odd ones, more rows than a program takes.
SIZES = [
    (1, 1, 1, 1, 64, 16),
    (2, 20, 3, 7, 64, 32),
    (2, 36, 6, 23, 64, 16),
    (3, 5, 19, 9, 128, 64),
    (1, 100, 1, 40, 64, 16),
    (2, 36, 2, 5, 1024, 256),
]
SMOOTH = 9.0


@pytest.fixture
def interpreter(monkeypatch):
    monkeypatch.setattr("selhn.ops.gpu.fusable", lambda *tensors: True)
    monkeypatch.setattr("selhn.ops.reasoning.fusable", lambda *tensors: True)
    for module in ("differences", "reasoning"):
        monkeypatch.setattr(f"selhn.kernels.hopper.{module}.wide_product", lambda a, b: a.float() @ b.float())
    monkeypatch.setattr(differences, "_shared_bytes", lambda device: differences.SHARED_BYTES)


def make(size, seed=0):
    """Regions and words, pooled vectors, two layers; and a mask. Some are padding.

    They have much in common: the slopes of a region that is orthogonal to all words have no bounds.
    """
    num_images, regions, num_texts, words, dim, sim_dim = size
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    images, texts = unit(draw(num_images, regions, dim) + 1), unit(draw(num_texts, words, dim) + 1)
    mask = torch.ones(num_images, regions, dtype=torch.bool)
    mask[-1, 3:] = False
    images[-1, 3:], texts[-1, 2:] = 0, 0
    layers = [
        0.04 * draw(sim_dim, dim),
        0.01 * draw(sim_dim),
        0.04 * draw(sim_dim, dim),
        0.01 * draw(sim_dim),
    ]
    leaves = [images, texts, unit(draw(num_images, dim)), unit(draw(num_texts, dim)), *layers]
    return [leaf.to(DEVICE) for leaf in leaves], mask.to(DEVICE)


def by_kernel(leaves, mask, half, everywhere=False):
    images, texts, image_whole, text_whole, *layers = leaves
    local, whole = LinearWeights(*layers[:2]), LinearWeights(*layers[2:])
    words = Fragments(texts, texts.new_ones(texts.shape[:2], dtype=torch.bool), text_whole)
    pairing = Pairing(Fragments(images, mask, image_whole), words)
    return compared_nodes(pairing, local, whole, SMOOTH, half, everywhere)


def by_loop(leaves, mask):
    """Image by image, text by text, as the paper has it."""
    images, texts, image_whole, text_whole, local, local_bias, whole, whole_bias = leaves
    rows = []
    for regions, real, image in zip(images, mask, image_whole):
        for words, text in zip(texts, text_whole):
            active = leaky_relu(regions @ words.T, 0.1)
            active = active / (active.square().sum(1, keepdim=True).clamp(min=1e-30).sqrt() + 1e-8)
            seen = real | ~real.any()
            attended = unit((SMOOTH * active).masked_fill(~seen[:, None], -torch.inf).softmax(0).T @ regions)
            nodes = (attended - words).square() @ local.T + local_bias
            rows.append(unit(torch.cat([((image - text).square() @ whole.T + whole_bias)[None], nodes])))
    return torch.stack(rows).view(len(images), len(texts), *rows[0].shape)


def nodes_and_grads(leaves, mask, pulls, half=None, everywhere=False):
    """By the kernels in half precision, or by the loop in float64."""
    leaves = [
        leaf.detach().to(torch.float64 if half is None else torch.float32).requires_grad_() for leaf in leaves
    ]
    nodes = by_loop(leaves, mask) if half is None else by_kernel(leaves, mask, half, everywhere)
    return nodes, *torch.autograd.grad(nodes, leaves, pulls.to(nodes.dtype))


def assert_like_float64(leaves, mask, pulls, half, everywhere=False):
    nodes, *grads = nodes_and_grads(leaves, mask, pulls, half, everywhere)
    expected, *expected_grads = nodes_and_grads(leaves, mask, pulls.to(half))
    rounding = torch.finfo(half).eps
    assert nodes.dtype == half
    torch.testing.assert_close(nodes.double(), expected, rtol=0, atol=rounding)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.float32
        assert (grad.double() - expected_grad).norm() <= 3 * rounding * expected_grad.norm()


@fused
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("everywhere", [False, True])
def test_equals_a_loop_written_from_the_paper(size, half, everywhere):
    num_images, _, num_texts, words, _, sim_dim = size
    torch.manual_seed(0)
    pulls = torch.randn(num_images, num_texts, 1 + words, sim_dim).to(DEVICE)
    assert_like_float64(*make(size), pulls, half, everywhere)


@fused
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_in_the_precision_asked_for(dtype):
    leaves, mask = make((2, 4, 3, 5, 64, 16))
    with torch.no_grad():
        nodes, expected = by_kernel(leaves, mask, dtype), by_loop([leaf.double() for leaf in leaves], mask)
    assert nodes.dtype == dtype
    torch.testing.assert_close(nodes.double(), expected, rtol=0, atol=max(torch.finfo(dtype).eps, 1e-3))


@fused
@pytest.mark.parametrize("everywhere", [False, True])
def test_words_without_a_gradient_add_nothing(everywhere):
    # As where negatives are mined: one pair of many has a gradient.
    leaves, mask = make((2, 6, 40, 7, 64, 16))
    pulls = torch.zeros(2, 40, 8, 16, device=DEVICE)
    pulls[1, 21] = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert_like_float64(leaves, mask, pulls, HALVES[-1], everywhere)
    grads = nodes_and_grads(leaves, mask, pulls, HALVES[-1], everywhere)[1:]
    assert not grads[0][0].any()
    assert not grads[1][:21].any()


@fused
def test_nothing_to_see():
    leaves, mask = make((3, 4, 3, 5, 64, 16))
    mask[1], leaves[0][1], leaves[1][2] = False, 0, 0
    nodes, *grads = nodes_and_grads(leaves, mask, torch.ones(3, 3, 6, 16, device=DEVICE), torch.float16)
    with torch.no_grad():
        expected = by_loop([leaf.double() for leaf in leaves], mask)
    torch.testing.assert_close(nodes.double(), expected, rtol=0, atol=1e-3)
    assert all(grad.isfinite().all() for grad in grads)


@fused
def test_nan_shows():
    leaves, mask = make((2, 4, 3, 5, 64, 16))
    leaves[0][0, 1, 5] = torch.nan
    nodes, *grads = nodes_and_grads(leaves, mask, torch.ones(2, 3, 6, 16, device=DEVICE), torch.float16)
    assert nodes[0, :, 1:].isnan().all()
    assert nodes[1].isfinite().all()
    assert grads[0][0].isnan().any()


@fused
@pytest.mark.parametrize("name", ["sgr", "saf", "cmcan"])
def test_models_score_by_the_kernels(name, monkeypatch):
    model, batch = make_model(name, dim=64, sim_dim=32), make_batch(9)
    batch.region_mask.fill_(True)
    module, kernel = (cmcan, attended_nodes) if name == "cmcan" else (sgraf, compared_nodes)
    made = []

    def watched(*given, **how):
        made.append(kernel(*given, **how))
        return made[-1]

    monkeypatch.setattr(module, kernel.__name__, watched)
    with torch.no_grad():
        expected = score_batch(make_model(name, dim=64, sim_dim=32).double(), make_double(batch))
        assert not made
        scores = score_batch(model.to(DEVICE), batch.to(DEVICE))
    assert made
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.cpu().double(), expected, rtol=0, atol=1e-3)


def make_weighted(size, seed=0):
    """Weights as attention makes them, contexts, queries, and a layer with a ReLU that is often at zero."""
    num_contexts, fragments, num_queries, length, dim, sim_dim = size
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    weights = (2 * draw(num_contexts, fragments, length, num_queries)).softmax(1)
    leaves = [weights, unit(draw(num_contexts, fragments, dim)), unit(draw(num_queries, length, dim) + 1)]
    leaves[1][-1, 3:], leaves[2][-1, 2:] = 0, 0
    leaves = [leaf.to(DEVICE) for leaf in (*leaves, 0.04 * draw(sim_dim, dim), 0.01 * draw(sim_dim))]
    return leaves, draw(num_contexts, num_queries, length, sim_dim).to(DEVICE)


def projected(look, contexts, queries, layer):
    return linear((look @ contexts[:, None] - queries).square(), *layer)


def attended_and_grads(leaves, pulls, half=None):
    """By the kernels in half precision, or by the formula in float64; weights are permuted, as a model's are."""
    leaves = [
        leaf.detach().to(torch.float64 if half is None else torch.float32).requires_grad_() for leaf in leaves
    ]
    look, contexts, queries, *layer = leaves[0].permute(0, 3, 2, 1), *leaves[1:]
    if half is None:
        nodes = unit(projected(look, contexts, queries, layer).relu())
    else:
        nodes = attended_nodes(look, contexts, queries, LinearWeights(*layer), half)
    return nodes, *torch.autograd.grad(nodes, leaves, pulls.to(nodes.dtype))


@fused
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("half", HALVES)
def test_nodes_of_given_weights_behind_a_relu(size, half):
    leaves, pulls = make_weighted(size)
    look, contexts, queries, *layer = (leaf.double() for leaf in leaves)
    # At a number that is nearly 0, rounding decides whether there is a slope.
    before = unit(projected(look.permute(0, 3, 2, 1), contexts, queries, layer))
    pulls *= before.abs() > 4 * torch.finfo(half).eps
    nodes, *grads = attended_and_grads(leaves, pulls, half)
    expected, *expected_grads = attended_and_grads(leaves, pulls.to(half))
    rounding = torch.finfo(half).eps
    assert nodes.dtype == half
    assert (expected == 0).any()
    torch.testing.assert_close(nodes.double(), expected, rtol=0, atol=2 * rounding)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.float32
        assert (grad.double() - expected_grad).norm() <= 5 * rounding * expected_grad.norm()


@fused
def test_nodes_behind_a_relu_that_lets_nothing_through():
    (*leaves, bias), pulls = make_weighted((2, 4, 3, 5, 64, 16))
    nodes, *grads = attended_and_grads([*leaves, bias - 9], pulls, torch.float16)
    assert not nodes.any()
    assert not any(grad.any() for grad in grads)
    leaves[1][0, 1, 5] = torch.nan
    nodes, *grads = attended_and_grads([*leaves, bias], pulls, torch.float16)
    assert nodes[0].isnan().all()
    assert nodes[1].isfinite().all()
    assert grads[0][0].isnan().any()


def make_double(batch):
    return replace(batch, regions=batch.regions.double())


@fused
@pytest.mark.parametrize("name", ["sgr", "saf", "cmcan"])
@pytest.mark.parametrize("half", HALVES)
def test_models_learn_by_the_kernels_as_by_torch_in_half_precision(name, half, monkeypatch):
    batch = make_batch(5)
    batch.region_mask.fill_(True)
    pulls = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))

    def grads(used, precise=False):
        monkeypatch.setattr(differences, "USED", used)
        model = make_model(name, dim=64, sim_dim=32, dropout=0.0).train()
        model = model.double() if precise else model.to(DEVICE)
        given = make_double(batch) if precise else batch.to(DEVICE)
        images, texts = encode_batch(model, given)
        with torch.autocast(DEVICE, half, enabled=not precise):
            assert (model.head._precision(Pairing(images, texts)) == half) == used
            numbers = model.logits(images, texts)
        (numbers * pulls.to(numbers)).sum().backward()
        return {key: p.grad.cpu().double() for key, p in model.named_parameters() if p.grad is not None}

    ours, by_torch, expected = grads(True), grads(False), grads(False, precise=True)
    assert ours.keys() == expected.keys()
    for key, grad in expected.items():
        error, allowed = ((some[key] - grad).norm() for some in (ours, by_torch))
        # A sum whose terms cancel, as all do for a bias before a batch norm, is as exact as its neighbours are.
        part = ".".join(key.split(".")[:2])
        near = torch.stack([other.norm() for name, other in expected.items() if name.startswith(part)]).norm()
        assert error <= 2 * allowed + 2 * torch.finfo(half).eps * (grad.norm() + near) + 2e-5, key


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_repeatable_and_without_waiting_for_the_device():
    leaves, mask = make((20, 36, 30, 23, 256, 128))
    pulls = torch.randn(20, 30, 24, 128, device="cuda")
    first = nodes_and_grads(leaves, mask, pulls, torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = nodes_and_grads(leaves, mask, pulls, torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@on_gpu
@pytest.mark.parametrize("name", ["sgr", "saf", "cmcan"])
def test_the_step_of_a_model_in_a_cuda_graph(name):
    model, batch = make_model(name, dim=64, sim_dim=32, dropout=0.0).train().cuda(), make_batch(20)
    batch.region_mask.fill_(True)
    batch = batch.to("cuda")
    with torch.no_grad():
        images, texts = encode_batch(model, batch)
    leaves = [images.vectors.requires_grad_(), texts.vectors.requires_grad_()]

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            assert model.head._precision(Pairing(images, texts)) == torch.bfloat16
            numbers = model.logits(images, texts)
        return numbers.detach(), *torch.autograd.grad(numbers.square().sum(), leaves)

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for ours, theirs in zip(captured, expected):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-2 * theirs.abs().max().item())


def paired(images, texts, aligned=False):
    return Pairing(*(Fragments(side, side[..., 0] == 0) for side in (images, texts)), aligned)


@on_gpu
def test_where_nodes_are_made_by_the_kernels(monkeypatch):
    images, texts = torch.zeros(2, 36, 64, device="cuda"), torch.zeros(2, 23, 64, device="cuda")
    layer = LinearWeights(torch.zeros(16, 64, device="cuda"), torch.zeros(16, device="cuda"))
    assert node_precision(paired(images, texts), layer) is None
    with torch.no_grad():
        assert node_precision(paired(images, texts), layer) == torch.float16
        assert node_precision(paired(images, texts[:2], aligned=True), layer) is None
        assert node_precision(paired(images.double(), texts.double()), layer) is None
        assert node_precision(paired(images[:, :, :16], texts[:, :, :16]), layer) is None
        assert node_precision(paired(images, texts), LinearWeights(*(part[:12] for part in layer))) is None
        assert node_precision(paired(images.cpu(), texts.cpu()), layer) is None
    with torch.autocast("cuda", torch.bfloat16):
        assert node_precision(paired(images, texts), layer) == torch.bfloat16
        monkeypatch.setattr(differences, "_shared_bytes", lambda device: 100 * 2**10)
        assert node_precision(paired(images, texts), layer) is None
