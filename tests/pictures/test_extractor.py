from dataclasses import replace

import pytest
import torch
from picture_cases import TinyBackbone, photo

from selhn.data import Projection
from selhn.pictures import Extractor


def projection(width=4, kept=2, seed=0):
    torch.manual_seed(seed)
    components = torch.linalg.qr(torch.randn(width, kept)).Q
    return Projection(torch.rand(width), components, torch.full((kept,), 0.01))


def test_raw_features_are_means_over_the_boxes():
    extractor = Extractor(TinyBackbone())
    features = extractor([photo(1), photo(2)])
    maps = TinyBackbone().maps(torch.stack([TinyBackbone().prepare(photo(n)) for n in (1, 2)]))
    assert features.shape == (2, 10, 4)
    assert torch.allclose(features[:, 0], maps.mean((2, 3)), atol=1e-6)
    assert torch.allclose(features[:, 9], maps[:, :, 8:, 8:].mean((2, 3)), atol=1e-6)


def test_forms_follow_the_equations():
    raw = Extractor(TinyBackbone())([photo(1)])
    kept = projection()
    z = ((raw.sqrt() - kept.mean) @ kept.components).clamp(-1.27, 1.27)
    pca, full = (Extractor(TinyBackbone(), form=form, projection=kept) for form in ("pca", "full"))
    assert (pca.width, full.width) == (2, 4)
    assert torch.allclose(pca([photo(1)]), z, atol=1e-6)
    assert torch.allclose(full([photo(1)]), (kept.mean + z @ kept.components.T).relu(), atol=1e-6)


def test_coordinates_beyond_the_codes_are_cut():
    kept = replace(projection(), scale=torch.full((2,), 1e-4))
    features = Extractor(TinyBackbone(), form="pca", projection=kept)([photo(1)])
    assert features.abs().max().item() == pytest.approx(127e-4)


def test_boxes_of_a_detector_come_after_the_grid():
    def right_half(image):
        assert image.size == (40, 30)
        return torch.tensor([[0.5, 0.0, 1.0, 1.0]])

    extractor = Extractor(TinyBackbone(), cells=2, detector=right_half, detector_name="right half")
    features = extractor([photo(1)])
    assert features.shape == (1, 6, 4)
    assert torch.allclose(features[:, 5], features[:, [2, 4]].mean(1), atol=1e-6)


def test_the_identity_tells_what_changes_features():
    one, other = projection(seed=0), projection(seed=1)
    tiny = TinyBackbone()
    extractors = [
        Extractor(tiny),
        Extractor(tiny, cells=2),
        Extractor(tiny, detector=lambda image: torch.rand(1, 4), detector_name="x"),
        Extractor(tiny, form="full", projection=one),
        Extractor(tiny, form="pca", projection=one),
        Extractor(tiny, form="pca", projection=other),
    ]
    assert len({extractor.identity for extractor in extractors}) == len(extractors)
    assert Extractor(TinyBackbone()).identity == Extractor(tiny).identity


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"form": "half"}, "form is 'half'"),
        ({"form": "pca"}, "needs a projection"),
        ({"form": "pca", "projection": projection(width=5)}, "for 5 channels and tiny has 4"),
        ({"detector_name": "x"}, "go together"),
    ],
)
def test_settings_that_do_not_fit(settings, reason, as_a_user):
    with pytest.raises(ValueError, match=reason):
        Extractor(TinyBackbone(), **settings)
