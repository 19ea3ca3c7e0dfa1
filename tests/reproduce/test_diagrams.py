import numpy as np
import pytest

from selhn.reproduce.diagrams import _unit, draw_encoders, draw_gradients, draw_mlp

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("draw", [draw_encoders, draw_gradients, draw_mlp])
def test_a_diagram_is_drawn(draw, tmp_path):
    assert draw(tmp_path / "diagram.png").stat().st_size > 15_000


def test_directions():
    np.testing.assert_allclose(_unit(90), [0, 1], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(_unit(57)), 1)
