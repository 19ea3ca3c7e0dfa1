import torch

from selhn.data.world.scenes import RELATIONS, SETTINGS, SHAPES, SceneSource, relations


def test_scene_in_words_agrees_with_the_tensors():
    scenes = SceneSource(0, "train", (3, 5)).draw(torch.arange(40))
    for row in range(40):
        scene = scenes.scene(row, "somewhere")
        assert scene.setting == SETTINGS[scenes.setting[row]]
        assert [thing.shape for thing in scene.things] == [
            SHAPES[s] for s in scenes.shape[row][scenes.present[row]]
        ]
        assert 3 <= len(scene.things) <= 5


def test_boxes_lie_in_the_picture_and_things_do_not_pile_up():
    scenes = SceneSource(3, "train").draw(torch.arange(2000))
    boxes = scenes.boxes[scenes.present]
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    assert (boxes[:, 2:] - boxes[:, :2]).min() > 0.05
    assert scenes.boxes[~scenes.present].abs().max() == 0
    closest = (scenes.x[:, :, None] - scenes.x[:, None]).abs() + torch.eye(6)
    assert closest.min() > 0.02


def test_twins_differ_in_one_attribute():
    alone, paired = (SceneSource(0, "train", twins=share).draw(torch.arange(400)) for share in (0.0, 1.0))
    assert torch.equal(alone.shape[::2], paired.shape[::2])
    kinds = ("shape", "colour", "size", "material")
    changes = sum((getattr(paired, k)[::2] != getattr(paired, k)[1::2]).sum(dim=1) for k in kinds)
    assert (changes == 1).all()
    assert torch.equal(paired.depth[::2], paired.depth[1::2])
    seen = torch.stack(
        [(getattr(paired, k)[::2] != getattr(paired, k)[1::2]).any(dim=1).sum() for k in kinds]
    )
    assert (seen > 20).all(), "every attribute changes somewhere"
    changed = [(getattr(paired, k)[::2] != getattr(paired, k)[1::2]) & ~paired.present[::2] for k in kinds]
    assert not torch.stack(changed).any(), "what changes can be seen"


def test_opposite_relations():
    scenes = SceneSource(1, "train").draw(torch.arange(500))
    first, second = (scenes.pick(torch.full((500,), k)) for k in (0, 1))
    there, back = relations(first, second), relations(second, first)
    opposite = {"left of": "right of", "above": "below", "in front of": "behind", "next to": "next to"}
    for name, other in opposite.items():
        assert torch.equal(there[:, RELATIONS.index(name)], back[:, RELATIONS.index(other)])
    assert (there.float().mean(dim=0) > 0.05).all(), "every relation occurs"
    assert there.any(dim=1).float().mean() > 0.8
