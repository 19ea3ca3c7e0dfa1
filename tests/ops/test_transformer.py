import pytest
import torch
from torch.nn import functional as F

from selhn.ops import transformer
from selhn.ops.transformer import LayerSettings, LayerWeights, transformer_layers

SETTINGS = LayerSettings(heads=2, eps=1e-12, dropout=0.0, attention_dropout=0.0)


def make_weights(width=32, inner=80, seed=0, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, around=0.0):
        values = around + width**-0.5 * torch.randn(*shape, generator=generator, dtype=dtype)
        return values.to(device).requires_grad_()

    def dense(output_dim, input_dim):
        return draw(output_dim, input_dim), draw(output_dim)

    norms = [(draw(width, around=1.0), draw(width)) for _ in range(2)]
    heads = [weight for _ in range(3) for weight in dense(width, width)]
    return LayerWeights(
        *heads, *dense(width, width), *norms[0], *dense(inner, width), *dense(width, inner), *norms[1]
    )


def make_texts(lengths, tokens, width=32, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(len(lengths))
    states = torch.randn(len(lengths), tokens, width, generator=generator, dtype=dtype)
    return states.to(device), (torch.arange(tokens) < torch.tensor(lengths)[:, None]).to(device)


def one_by_one(states, mask, w, heads, eps, drop=lambda values, which: values):
    """A layer text by text and head by head, from the equations."""
    texts, tokens, width = states.shape
    size = width // heads
    context = torch.zeros_like(states)
    for text in range(texts):
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            q, k, v = (
                states[text] @ weight[part].T + bias[part]
                for weight, bias in ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
            )
            weights = ((q @ k.T) / size**0.5 + torch.where(mask[text], 0.0, -1e30)).softmax(1)
            context[text, :, part] = drop(weights, (2, text * heads + head)) @ v
    a = drop(context @ w.project.T + w.project_bias, (0, ...)) + states
    a = F.layer_norm(a, (width,), w.middle_gamma, w.middle_beta, eps)
    y = a @ w.inner.T + w.inner_bias
    y = drop((y * 0.5 * (1 + torch.erf(y / 2**0.5))) @ w.outer.T + w.outer_bias, (1, ...)) + a
    return F.layer_norm(y, (width,), w.gamma, w.beta, eps)


def relative_error(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def test_layers_follow_the_equations():
    states, mask = make_texts([5, 2, 3], 5, dtype=torch.float64)
    layers = [make_weights(seed=seed, dtype=torch.float64) for seed in range(2)]
    expected = states
    for weights in layers:
        expected = one_by_one(expected, mask, weights, SETTINGS.heads, SETTINGS.eps)
    torch.testing.assert_close(transformer_layers(states, mask, layers, SETTINGS), expected)


def test_no_token_sees_a_masked_one():
    states, mask = make_texts([5, 2, 3], 5)
    other = states.masked_fill(~mask[:, :, None], 7.0)
    first, second = (transformer_layers(x, mask, [make_weights()], SETTINGS)[mask] for x in (states, other))
    torch.testing.assert_close(first, second)


def test_a_text_without_tokens_gives_numbers():
    states, mask = make_texts([0, 3], 4)
    assert transformer_layers(states, mask, [make_weights()], SETTINGS).isfinite().all()


@pytest.mark.parametrize("which", ["dropout", "attention_dropout"])
def test_each_dropout_is_used(which):
    states, mask = make_texts([5, 4], 5)
    settings = SETTINGS._replace(**{which: 0.5})
    torch.manual_seed(0)
    first, second = (transformer_layers(states, mask, [make_weights()], settings) for _ in range(2))
    assert not torch.equal(first, second)


def test_random_bits_are_even():
    torch.manual_seed(0)
    bits = transformer._random_bits(100_003, torch.device("cpu")).int() + 2**15
    assert bits.shape == (100_003,)
    shares = torch.stack([(bits >> place & 1).double().mean() for place in range(16)])
    assert (shares - 0.5).abs().max() < 0.01


def test_dropout_keeps_the_mean():
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for chance in (0.1, 0.5):
        drawn, threshold, scale = transformer._dropouts([bits] * 3, LayerSettings(2, 1e-12, chance, chance))[
            0
        ]
        kept = (drawn.int() >= threshold).double()
        assert abs(1 - kept.mean().item() - chance) < 1e-5
        assert (kept * scale).mean().item() == pytest.approx(1)


FUSED = [
    ([23, 8, 15], 23, 12, 768),
    ([1, 16, 0], 16, 2, 32),
    ([64, 40], 64, 3, 192),
    ([33] * 300, 33, 4, 128),
]


@pytest.mark.gpu
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chance", [0.0, 0.1])
@pytest.mark.parametrize("case", FUSED, ids=lambda case: f"{len(case[0])}-{case[1]}-{case[2]}-{case[3]}")
def test_the_kernels_follow_the_equations(case, chance, half):
    lengths, tokens, heads, width = case
    settings = LayerSettings(heads, 1e-12, chance, chance)
    states, mask = make_texts(lengths, tokens, width, device="cuda")
    weights = make_weights(width, 4 * width, device="cuda")
    hidden, pairs = states.numel() * (chance > 0), len(lengths) * heads * tokens**2 * (chance > 0)
    bits = transformer._random_bits(2 * hidden + pairs, states.device).split([hidden, hidden, pairs])
    upstream = torch.randn_like(states)

    def drop(values, place):
        if chance == 0:
            return values
        which, row = place
        drawn, threshold, scale = transformer._dropouts(bits, settings)[which]
        drawn = drawn.view(-1, tokens, tokens)[row] if which == 2 else drawn.view(states.shape)
        return values * (drawn.int() >= threshold) * scale

    exact = LayerWeights(*(weight.detach().double().requires_grad_() for weight in weights))
    exact_states = states.double().requires_grad_()
    expected = one_by_one(exact_states, mask, exact, heads, settings.eps, drop)
    expected.backward(upstream.double())

    rows = states.flatten(0, 1).to(half).requires_grad_()
    halves = transformer._halves([weights], half)[0]
    actual = transformer._FusedLayer.apply(rows, mask, bits, settings, halves, *weights)
    actual.backward(upstream.flatten(0, 1).to(half))

    tolerance = 2e-2 if half == torch.bfloat16 else 3e-3
    assert relative_error(actual.view(states.shape), expected) < tolerance
    assert relative_error(rows.grad.view(states.shape), exact_states.grad) < tolerance
    for name, own, true in zip(LayerWeights._fields, weights, exact):
        assert own.grad.dtype == torch.float32
        if (
            name == "key_bias"
        ):  # moves all scores of a query alike, so that its gradient is 0 but for rounding
            assert own.grad.norm() < tolerance * weights.query_bias.grad.norm()
        else:
            assert relative_error(own.grad, true.grad) < tolerance, name


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "heads"), [(24, 2), (65, 2), (24, 4)])
def test_autocast_takes_the_kernels_where_it_can(tokens, heads):
    states, mask = make_texts([tokens, 9], tokens, device="cuda")
    weights, settings = make_weights(device="cuda"), SETTINGS._replace(heads=heads)
    expected = transformer_layers(states, mask, [weights] * 2, settings)
    with torch.autocast("cuda", torch.bfloat16):
        actual = transformer_layers(states, mask, [weights] * 2, settings)
    made_by = type(actual.grad_fn.next_functions[0][0]).__name__
    fits = tokens <= transformer.MOST_TOKENS and 32 // heads in transformer.HEAD_WIDTHS
    assert ("_FusedLayer" in made_by) == fits
    assert relative_error(actual[mask], expected[mask]) < 3e-2


@pytest.mark.gpu
def test_a_recording_draws_anew_whenever_it_is_replayed():
    states, mask = make_texts([24, 9], 24, device="cuda")
    weights, settings = make_weights(device="cuda"), SETTINGS._replace(dropout=0.5, attention_dropout=0.5)

    def run():
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            return transformer_layers(states, mask, [weights], settings)

    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        with torch.cuda.graph(graph, stream=stream):
            result = run()
        torch.cuda.manual_seed(1)
        replays = []
        for _ in range(2):
            graph.replay()
            replays.append(result.clone())
        torch.cuda.manual_seed(1)
        expected = run()
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(replays[0], expected)
    assert not torch.equal(replays[1], expected)
