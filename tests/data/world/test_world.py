import pytest
import torch
from torch.nn.functional import normalize

from selhn.base.errors import NotFound, SelhnError
from selhn.data import DenseFeatures, Features, Split
from selhn.data.world import WorldFeatures, make_world, world_scene


@pytest.fixture(scope="module")
def data():
    return make_world(600)


def features_of(split, rows):
    return split.features.gather(torch.as_tensor(rows))[0]


def test_sizes(data):
    assert [split.num_images for split in (data.train, data.dev, data.test)] == [600, 100, 100]
    assert [make_world(images).dev.num_images for images in (100, 3000, 7000)] == [100, 500, 1000]
    assert data.feature_dim == 256
    for split in (data.train, data.dev, data.test):
        assert isinstance(split.features, Features)
        assert split.num_texts == 5 * split.num_images
        assert torch.equal(split.image_of_text, torch.arange(split.num_texts) // 5)
        assert split.boxes.shape == (split.num_images, 12, 4)
    assert data.train.image_names[123] == "train-scene-000123"
    assert data.train.image_names[-2:] == ["train-scene-000598", "train-scene-000599"]
    regions, mask = data.dev.features.gather(torch.tensor([3, 3, 7]))
    assert regions.shape == (3, 12, 256)
    assert mask.shape == (3, 12)
    assert mask.all()


def test_the_same_settings_give_the_same_data(data):
    again = make_world(600)
    assert torch.equal(features_of(again.train, range(50)), features_of(data.train, range(50)))
    assert again.train.captions[:] == data.train.captions[:]
    assert torch.equal(again.test.boxes, data.test.boxes)


def test_more_images_keep_the_earlier_ones(data):
    more = make_world(900)
    assert more.train.captions[:3000] == data.train.captions[:]
    torch.testing.assert_close(features_of(more.train, range(600)), features_of(data.train, range(600)))


def test_seeds_and_splits_are_different_samples_of_one_world(data):
    other = make_world(600, seed=1)
    texts = [split.captions[:500] for split in (data.train, data.dev, data.test, other.train)]
    for i, first in enumerate(texts):
        for second in texts[:i]:
            assert sum(a == b for a, b in zip(first, second)) < 5
    means = [
        features_of(split, range(100)).mean(dim=(0, 1)) for split in (data.train, other.train, data.test)
    ]
    assert torch.corrcoef(torch.stack(means)).min() > 0.9


def test_gather_does_not_depend_on_the_batch(data):
    features = data.train.features
    every = features.gather(torch.arange(600))[0]
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:100]
    torch.testing.assert_close(features.gather(order)[0], every[order])
    torch.testing.assert_close(features.gather(torch.tensor([17]))[0][0], every[17])
    torch.testing.assert_close(features.gather(order.int())[0], every[order])
    assert features.gather(order[:0])[0].shape == (0, 12, 256)


def test_to_a_device(data):
    moved = data.train.features.to("cpu")
    assert isinstance(moved, WorldFeatures)
    assert torch.equal(moved.gather(torch.arange(5))[0], data.train.features.gather(torch.arange(5))[0])
    assert moved.num_bytes == data.train.features.num_bytes < 2**20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_makes_the_same_features(data):
    rows = torch.arange(64)
    regions, mask = data.train.features.to("cuda").gather(rows.cuda())
    assert mask.is_cuda
    torch.testing.assert_close(regions.cpu(), data.train.features.gather(rows)[0], rtol=1e-3, atol=2e-3)


def test_statistics_are_those_of_real_features(data):
    """Bands around the column Flickr8k of docs/world.md: in other features nothing would stall."""
    regions = features_of(data.train, range(400))
    assert regions.dtype == torch.float32
    assert regions.min() == 0
    mean = regions.mean(dim=(0, 1))
    centred = regions - mean
    variance = centred.square().sum(dim=2).mean()
    spread = torch.linalg.eigvalsh(centred.flatten(0, 1).T @ centred.flatten(0, 1))
    units = normalize(regions, dim=2)
    others = torch.eye(12) == 0
    measured = {
        "zeros": ((regions == 0).float().mean(), 0.237),
        "mean": (regions.mean(), 0.301),
        "deviation": (regions.std(), 0.366),
        "mean to deviation": (mean.norm() / variance.sqrt(), 0.857),
        "cosine, same image": ((units @ units.mT)[:, others].mean(), 0.724),
        "cosine, two images": ((units @ units.roll(1, 0).mT).mean(), 0.472),
        "between images": (centred.mean(dim=1).square().sum(dim=1).mean() / variance, 0.460),
        "first direction": (spread[-1] / spread.sum(), 0.190),
        "effective rank": (spread.sum() ** 2 / spread.square().sum(), 23.5),
    }
    for name, (world, real) in measured.items():
        assert 0.8 * real < world < 1.25 * real, f"{name}: {world:.3f}, real features have {real}"


def test_noise_and_width_are_settings():
    quiet, loud = (features_of(make_world(100, noise=noise).train, range(100)) for noise in (0.0, 2.0))
    assert loud.std() > 1.3 * quiet.std()
    assert features_of(make_world(100, width=32, regions=9).train, [0]).shape == (1, 9, 32)
    wide = features_of(make_world(100, width=1024).train, range(100))
    assert 0.2 < (wide == 0).float().mean() < 0.35, "the statistics do not change with the width"


def test_boxes_and_scenes(data):
    boxes = data.train.boxes
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    assert (boxes[..., 2:] > boxes[..., :2]).all()
    assert boxes[:, 0].tolist() == [[0, 0, 1, 1]] * 600
    for image in (0, 17, 599):
        scene = world_scene(data.train, image)
        assert scene.name == data.train.image_names[image]
        for thing, box in zip(scene.things, boxes[image, 1:].tolist()):
            assert box[0] < thing.x < box[2]
            assert box[1] < thing.y < box[3]


def test_a_region_shows_what_lies_in_its_box(data):
    """Regions of things of the same shape and colour look more alike than others, without any training."""
    regions = features_of(data.train, range(600))
    scenes = data.train.features.source.draw(torch.arange(600))
    looks = (regions - regions.mean(dim=(0, 1)))[:, 1:7][scenes.present]
    kinds = (scenes.shape * 10 + scenes.colour)[scenes.present]
    prototypes = [looks[kinds == kind] for kind in range(100) if (kinds == kind).sum() >= 10]
    halves = [normalize(torch.stack([v[i::2].mean(dim=0) for v in prototypes]), dim=1) for i in (0, 1)]
    nearest = (halves[0] @ halves[1].T).argmax(dim=1)
    assert (nearest == torch.arange(len(nearest))).float().mean() > 0.7


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"images": 0}, "images=0"),
        ({"images": 10**8}, "10,000,000"),
        ({"objects": (2, 5)}, "fewest"),
        ({"objects": (5, 4)}, "fewest"),
        ({"objects": (3, 9)}, "fewest"),
        ({"regions": 6}, "at least 7"),
        ({"width": 0}, "width=0"),
        ({"noise": -1.0}, "noise=-1"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"twins": 1.5}, "between 0 and 1"),
    ],
)
def test_wrong_settings(settings, says):
    with pytest.raises(SelhnError, match=says):
        make_world(**settings)


def test_wrong_rows(data):
    with pytest.raises(IndexError, match="600 images"):
        data.train.features.gather(torch.tensor([600]))
    with pytest.raises(NotFound, match="600"):
        world_scene(data.train, 600)
    with pytest.raises(SelhnError, match="generated"):
        world_scene(
            Split("real", DenseFeatures(torch.zeros(0, 1, 1)), [], torch.zeros(0, dtype=torch.int64), []), 0
        )


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("objects", [(3,), [3, "a"], (3, 4, 5)])
def test_two_numbers_of_objects(objects):
    with pytest.raises(SelhnError):
        make_world(10, objects=objects)
