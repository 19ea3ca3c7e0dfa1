"""Graphs that are written without the onnx package are those of its library, and run."""

import numpy as np
import pytest

from selhn.towers.graph import BOOL, FLOAT, INT64, Graph

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def small(graph):
    table = np.arange(600, dtype=np.float32).reshape(100, 6) / 100
    rows = graph.node("Gather", graph.weight(table), "tokens", axis=0)
    shown = graph.node("Where", graph.node("Unsqueeze", "mask", graph.weight([1])), rows, graph.weight(0.0))
    first, order = graph.nodes("TopK", shown, graph.weight([2]), outputs=["first", "order"], axis=-1)
    scaled = graph.node("LayerNormalization", first, graph.weight(np.ones(2)), epsilon=1e-5, output="scaled")
    assert (first, order, scaled) == ("first", "order", "scaled")
    outputs = [("scaled", FLOAT, ["N", 2]), ("order", INT64, ["N", 2])]
    return graph.model([("tokens", INT64, ["N"]), ("mask", BOOL, ["N"])], outputs), table


@pytest.mark.parametrize("beside", [False, True])
def test_a_graph_is_valid_and_runs(tmp_path, beside):
    if beside:
        with (tmp_path / "g.weights").open("wb") as file:
            file.write(b"before")
            content, table = small(Graph(file, "g.weights"))
        assert (tmp_path / "g.weights").stat().st_size == 4096 + table.nbytes
    else:
        content, table = small(Graph())
    path = tmp_path / "g.onnx"
    path.write_bytes(content)
    assert (path.stat().st_size < table.nbytes) == beside, "large weights are beside it"
    onnx.checker.check_model(str(path), full_check=True)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tokens, mask = np.array([3, 99, 0]), np.array([True, False, True])
    scaled, order = session.run(None, {"tokens": tokens, "mask": mask})
    best = np.sort(table[tokens] * mask[:, None])[:, :-3:-1]
    wanted = (best - best.mean(1, keepdims=True)) / np.sqrt(best.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(scaled, wanted, atol=1e-4)
    assert order[[0, 2]].tolist() == [[5, 4], [5, 4]]


def test_equal_small_weights_are_stored_once():
    graph = Graph()
    assert graph.weight(1.0) == graph.weight(np.float32(1))
    assert len({graph.weight(1.0), graph.weight([1.0]), graph.weight(1), graph.weight(2.0)}) == 4
