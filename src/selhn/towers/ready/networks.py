"""The two networks of the ready model as ONNX graphs, from its weights in numpy.

pixels -> EfficientNet-Lite2 -> means of regions -> PCA -> f = FC -> f + mlp(f) -> GPO -> unit vector
tokens -> BERT -> FC -> GPO -> unit vector

They compute what `selhn.load_model("ready")` computes in torch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from selhn.towers.efficientnet_lite import SIZES, add_network
from selhn.towers.graph import BOOL, FLOAT, INT64, Graph, Value

CELLS = 3
"""Cells of the grid along each side of a picture."""
CODES = 127
"""Coordinates of the PCA are clipped to so many steps."""
NORM_EPSILON, UNIT_EPSILON = np.float32(1e-5), 1e-8
TEMPERATURE = 0.1
LEAST = float(np.finfo(np.float32).min)
PIXELS, IMAGE, PARTS = "pixels", "image_vector", "part_vectors"
TOKENS, TEXT = ("tokens", "token_mask"), "text_vector"

Weights = Mapping[str, Shaped[np.ndarray, "..."]]


def image_model(graph: Graph, backbone: Weights, projection: Weights, heads: Weights) -> bytes:
    """From pixels (B, 3, 260, 260) to the vector of each picture, and to those of its parts alone (B, 9, d)."""
    maps = add_network(graph, PIXELS, 2, backbone)
    side, width = SIZES[2].side, len(heads["image.fc.bias"])
    regions = _coordinates(graph, _regions(graph, maps, -(-side // 32)), projection)
    features = _linear(graph, regions, heads["image.fc.weight"], heads["image.fc.bias"])
    gamma, beta, mean, variance = (
        heads[f"image.mlp.bns.0.{kind}"] for kind in ("weight", "bias", "running_mean", "running_var")
    )
    factor = gamma / np.sqrt(variance + NORM_EPSILON)
    first, second = (f"image.mlp.layers.{number}" for number in (0, 1))
    inner_bias = (heads[f"{first}.bias"] - mean) * factor + beta
    inner = graph.node(
        "Relu", _linear(graph, features, heads[f"{first}.weight"] * factor[:, None], inner_bias)
    )
    further = _linear(graph, inner, heads[f"{second}.weight"], heads[f"{second}.bias"])
    features = graph.node("Add", features, further)
    number = 1 + CELLS**2
    weights = gpo_weights(heads, "image.gpo.", number)[number]
    _unit(graph, _pooled(graph, features, graph.weight([number]), graph.weight(weights[:, None])), IMAGE)
    parts = graph.node("Slice", features, *map(graph.weight, ([1], [number], [1])))
    _unit(graph, parts, PARTS)
    inputs: list[Value] = [(PIXELS, FLOAT, ["pictures", 3, side, side])]
    outputs: list[Value] = [
        (IMAGE, FLOAT, ["pictures", width]),
        (PARTS, FLOAT, ["pictures", number - 1, width]),
    ]
    return graph.model(inputs, outputs)


def grid_boxes(cells: int = CELLS) -> Float[np.ndarray, "M 4"]:
    """The whole picture, then cells x cells of it row by row: x1, y1, x2, y2 from 0 to 1."""
    edges = np.arange(cells + 1) / max(1, cells)
    grid = [[edges[x], edges[y], edges[x + 1], edges[y + 1]] for y in range(cells) for x in range(cells)]
    return np.array([[0.0, 0, 1, 1], *grid])


def _regions(graph: Graph, maps: str, side: int) -> str:
    """The mean of the map over each box of the grid (B, M, C); a cell counts by the area it shares with the box."""
    x1, y1, x2, y2 = grid_boxes().T[..., None]
    edges = np.arange(side + 1) / side
    of_rows, of_columns = (
        (np.minimum(high, edges[1:]) - np.maximum(low, edges[:-1])).clip(0) / (high - low)
        for low, high in ((y1, y2), (x1, x2))
    )
    shares = np.einsum("mh,mw->mhw", of_rows, of_columns).reshape(len(x1), -1)
    flat = graph.node("Reshape", maps, graph.weight([0, 0, -1]))
    return graph.node("Transpose", graph.node("MatMul", flat, graph.weight(shares.T)), perm=(0, 2, 1))


def _coordinates(graph: Graph, means: str, projection: Weights) -> str:
    """`relu(mean + clip((sqrt(x) - mean) @ components) @ components')`: regions in the form of training."""
    mean, components = graph.weight(projection["mean"]), projection["components"]
    bound = CODES * projection["scale"]
    roots = graph.node("Sub", graph.node("Sqrt", graph.node("Relu", means)), mean)
    inner = graph.node("MatMul", roots, graph.weight(components))
    inner = graph.node("Max", graph.node("Min", inner, graph.weight(bound)), graph.weight(-bound))
    outer = graph.node("Add", graph.node("MatMul", inner, graph.weight(components.T)), mean)
    return graph.node("Relu", outer)


def text_model(graph: Graph, bert: Weights, heads: Weights, attention_heads: int, epsilon: float) -> bytes:
    """From tokens (T, N) and their mask to the vector of each text."""
    hidden, width = bert["embeddings.LayerNorm.weight"].shape[0], len(heads["text.fc.bias"])
    tokens, mask = TOKENS
    length = graph.node("Gather", graph.node("Shape", tokens), graph.weight([1]))
    x = _embedded(graph, tokens, length, bert, epsilon)
    unseen = graph.node("Where", mask, graph.weight(0.0), graph.weight(LEAST))
    unseen = graph.node("Unsqueeze", unseen, graph.weight([1, 2]))
    number = len({name.split(".")[2] for name in bert if name.startswith("encoder.layer.")})
    for layer in range(number):
        own = _Layer(graph, bert, f"encoder.layer.{layer}.", epsilon)
        x = own.norm("attention.output", own.attention(x, unseen, attention_heads, hidden), x)
        x = own.norm("output", own.linear("output", own.gelu(own.linear("intermediate", x))), x)
    features = _linear(graph, x, heads["text.fc.weight"], heads["text.fc.bias"])
    shown = graph.node(
        "Where", graph.node("Unsqueeze", mask, graph.weight([2])), features, graph.weight(LEAST)
    )
    table = graph.weight(gpo_weights(heads, "text.gpo.", len(bert["embeddings.position_embeddings.weight"])))
    lengths = graph.node("ReduceSum", graph.node("Cast", mask, to=INT64), graph.weight([1]), keepdims=0)
    weights = graph.node("Gather", table, lengths)
    weights = graph.node("Slice", weights, graph.weight([0]), length, graph.weight([1]))
    pooled = _pooled(graph, shown, length, graph.node("Unsqueeze", weights, graph.weight([2])))
    _unit(graph, pooled, TEXT)
    sizes = ["texts", "tokens_of_text"]
    return graph.model([(tokens, INT64, sizes), (mask, BOOL, sizes)], [(TEXT, FLOAT, ["texts", width])])


def _embedded(graph: Graph, tokens: str, length: str, bert: Weights, epsilon: float) -> str:
    words = graph.node("Gather", graph.weight(bert["embeddings.word_embeddings.weight"]), tokens)
    # A text is a single one, so every token has segment 0.
    places = (
        bert["embeddings.position_embeddings.weight"] + bert["embeddings.token_type_embeddings.weight"][0]
    )
    places_of_text = graph.node("Slice", graph.weight(places), graph.weight([0]), length, graph.weight([0]))
    return _Layer(graph, bert, "embeddings.", epsilon).norm("", graph.node("Add", words, places_of_text))


class _Layer:
    """A layer of BERT, whose weights have their published names."""

    def __init__(self, graph: Graph, weights: Weights, place: str, epsilon: float):
        self.graph, self.place, self.epsilon = graph, place, epsilon
        self.weights = {
            name.removeprefix(place): own for name, own in weights.items() if name.startswith(place)
        }

    def linear(self, name: str, x: str) -> str:
        return _linear(
            self.graph, x, self.weights[f"{name}.dense.weight"], self.weights[f"{name}.dense.bias"]
        )

    def norm(self, name: str, x: str, before: str = "") -> str:
        x = self.graph.node("Add", x, before) if before else x
        place = f"{name}.LayerNorm" if name else "LayerNorm"
        about = (self.graph.weight(self.weights[f"{place}.{kind}"]) for kind in ("weight", "bias"))
        return self.graph.node("LayerNormalization", x, *about, epsilon=self.epsilon)

    def gelu(self, x: str) -> str:
        """`x / 2 (1 + erf(x / sqrt(2)))`."""
        graph = self.graph
        inner = graph.node("Erf", graph.node("Div", x, graph.weight(float(np.sqrt(2)))))
        outer = graph.node("Mul", x, graph.node("Add", inner, graph.weight(1.0)))
        return graph.node("Mul", outer, graph.weight(0.5))

    def attention(self, x: str, unseen: str, heads: int, hidden: int) -> str:
        """`softmax(q k' / sqrt(width) + unseen) v`, projected; queries, keys and values by one product."""
        graph, width = self.graph, hidden // heads
        names = [f"attention.self.{name}" for name in ("query", "key", "value")]
        scale = [np.float32(width**-0.5), np.float32(1), np.float32(1)]
        weight, bias = (
            np.concatenate([own * self.weights[f"{name}.{kind}"] for name, own in zip(names, scale)])
            for kind in ("weight", "bias")
        )
        together = graph.node(
            "Reshape", _linear(graph, x, weight, bias), graph.weight([0, 0, 3, heads, width])
        )
        apart = graph.node("Transpose", together, perm=(2, 0, 3, 1, 4))
        query, key, value = (
            graph.node("Gather", apart, graph.weight(np.int64(row)), axis=0) for row in range(3)
        )
        scores = graph.node("MatMul", query, graph.node("Transpose", key, perm=(0, 1, 3, 2)))
        shares = graph.node("Softmax", graph.node("Add", scores, unseen), axis=-1)
        context = graph.node("Transpose", graph.node("MatMul", shares, value), perm=(0, 2, 1, 3))
        return self.linear("attention.output", graph.node("Reshape", context, graph.weight([0, 0, hidden])))


def _linear(graph: Graph, x: str, weight: Float[np.ndarray, "o i"], bias: Float[np.ndarray, " o"]) -> str:
    return graph.node("Add", graph.node("MatMul", x, graph.weight(weight.T)), graph.weight(bias))


def _pooled(graph: Graph, features: str, number: str, weights: str) -> str:
    """`sum_k w_k * (k-th largest value of channel c)`: (B, M, d) and weights (B, M, 1) or (M, 1) to (B, d)."""
    channels = graph.node("Transpose", features, perm=(0, 2, 1))
    ordered, _ = graph.nodes("TopK", channels, number, outputs=2, axis=-1)
    return graph.node("Squeeze", graph.node("MatMul", ordered, weights), graph.weight([2]))


def _unit(graph: Graph, x: str, output: str) -> None:
    """`x / (|x| + 1e-8)`."""
    length = graph.node("ReduceL2", x, axes=(-1,), keepdims=1)
    graph.node("Div", x, graph.node("Add", length, graph.weight(UNIT_EPSILON)), output=output)


def gpo_weights(heads: Weights, place: str, longest: int) -> Float[np.ndarray, "L M"]:
    """The pooling weights of sets of 0, 1, ... `longest` members; 0 behind the last member.

    softmax(linear((GRU(p_0 .. p_n) + GRU(p_L-1 .. p_n)) / 2) / 0.1), where p_n is the code of position n.
    """
    own: dict[str, Any] = {
        name.removeprefix(place): weight.astype(np.float64)
        for name, weight in heads.items()
        if name.startswith(place)
    }
    codes = _positions(longest, own["gru.ahead.weight_ih_l0"].shape[1])
    ahead = _scores(own, "gru.ahead.", codes, np.arange(longest)[None])
    lengths = np.arange(longest + 1)[:, None]
    mirror = (lengths - 1 - np.arange(longest)) % longest
    back = _scores(own, "gru.back.", codes, mirror)
    scores = (ahead + np.take_along_axis(back, mirror, 1)) / 2 / TEMPERATURE
    members = np.arange(longest) < lengths
    largest = scores.max(1, where=members, initial=-np.inf, keepdims=True)
    shares = np.exp(np.where(members, scores - np.where(lengths > 0, largest, 0), -np.inf))
    return shares / np.maximum(shares.sum(1, keepdims=True), 1e-30)


def _scores(
    own: Weights, place: str, codes: Float[np.ndarray, "M p"], order: Int[np.ndarray, "L M"]
) -> Float[np.ndarray, "L M"]:
    """What the linear layer makes of a GRU's state after each code, read in several orders.

    The gates are in the order of torch: reset, update, new.
    """
    w, u, b, c = (own[place + name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    given, state, scores = codes @ w.T + b, np.zeros((len(order), u.shape[1])), []
    for rows in order.T:
        x, y = np.split(given[rows], 3, axis=1), np.split(state @ u.T + c, 3, axis=1)
        reset, update = (1 / (1 + np.exp(-(x[gate] + y[gate]))) for gate in (0, 1))
        state = (1 - update) * np.tanh(x[2] + reset * y[2]) + update * state
        scores.append(state @ own["linear.weight"][0])
    return np.stack(scores, axis=1)


def _positions(number: int, width: int) -> Float[np.ndarray, "M p"]:
    """PE(k, 2j) = sin(k / 10000^(2j/p)), PE(k, 2j+1) = cos of the same."""
    angles = np.arange(number)[:, None] * np.exp(-np.log(10000.0) * np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(number, -1)
