"""The names users build on."""

import importlib
import subprocess
import sys

import pytest

import selhn

EXPORTS = {
    "selhn": ["Metrics", "TripletSelHN", "__version__", "create_loss", "list_losses", "recall"],
    "selhn.losses": [
        "LOSSES",
        "SCT",
        "AbstractLoss",
        "LossEntry",
        "Triplet",
        "TripletHN",
        "TripletSHN",
        "TripletSelHN",
        "TripletWarmUp",
        "create_loss",
        "list_losses",
    ],
    "selhn.eval": [
        "Comparison",
        "DirectionMetrics",
        "Metrics",
        "Ranks",
        "ensemble",
        "folds",
        "paired_bootstrap",
        "ranks",
        "recall",
        "recall_from_embeddings",
    ],
    "selhn.kernels": ["AnchorStatistics", "Statistic", "dense_statistics", "tiled_statistics"],
}


@pytest.mark.parametrize("module", EXPORTS)
def test_exported_names(module):
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted(EXPORTS[module])
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None


def test_dir_lists_them():
    assert dir(selhn) == sorted(EXPORTS["selhn"])


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'selhn' has no attribute 'nonsense'"):
        selhn.nonsense  # noqa: B018


def test_import_does_not_wait_for_torch():
    code = "import sys, selhn; selhn.__version__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_loss_can_be_compiled_in_one_graph():
    # In a process of its own: the shape checks of this test run and the compiler do not go together.
    code = """
import torch
from selhn.losses import LOSSES, create_loss
for name in LOSSES:
    torch.compiler.reset()  # a loss is compiled on its own, not as the eighth version of another
    loss_fn, scores = create_loss(name), torch.rand(6, 6, requires_grad=True)
    compiled = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    compiled(scores, image_ids=torch.arange(6)).backward()
    assert torch.equal(compiled(scores), loss_fn(scores)), name
print("compiled")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
