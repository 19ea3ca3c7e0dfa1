import json
import os
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import PLANTED, make_outside, plant
from programs import run
from read_only import content_of, read_only

from selhn.base.errors import Damaged, Linked, Locked, SelhnError
from selhn.data import load_data
from selhn.eval import evaluate, recall, score_split
from selhn.eval.stored import StoredScores, for_scores
from selhn.models import create_model
from selhn.text import Vocabulary

BLOCK = 24
KILLS = {
    "while it scores": "model.encode_texts = lambda *text: (kill_at(4), encode(*text))[1]",
    "before the columns count": """
write_state = stored.StoredScores._write_state
stored.StoredScores._write_state = lambda self, done=0: (kill_at(5), write_state(self, done))""",
    "before the file has its name": """
replace = os.replace
stored.os.replace = lambda old, new: (kill_at(1) if old.name == "scores.partial.npy" else 0, replace(old, new))""",
}
ACCIDENTS = {
    **{when: (when, script) for when, script in KILLS.items()},
    "no room": (
        "no room",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); model.encode_images = None",
    ),
    "killed first": ("full", KILLS["while it scores"]),
    "then full": ("full", "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))"),
}
"""The folder in which each happens, and how."""
# The same model and split as the fixtures make, scored once for each accident, in processes that may be killed.
CHILD = """
import json, os, resource, signal, sys, torch
torch.set_num_threads(1)
from selhn.data import load_data
from selhn.eval import score_split, stored
from selhn.models import load_model
model, split = load_model("model"), load_data("world", images=100).test.first(40)
encode, calls, ends = model.encode_texts, [], {}
def kill_at(number):
    calls.append(number)
    if len(calls) == number:
        os.kill(os.getpid(), signal.SIGKILL)
for name, (folder, script) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        exec(script)
        try:
            score_split(model, split, 24, path=folder)
        except OSError as error:
            open(name + ".txt", "w").write(str(error))
        os._exit(0)
    ends[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def split():
    return load_data("world", images=100).test.first(40)


@pytest.fixture(scope="module")
def model(split):
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(split.captions)
    sizes = {"feature_dim": split.features.width, "dim": 16, "word_dim": 8, "sim_dim": 8, "num_regions": 12}
    return create_model("saf", tokenizer=vocabulary, **sizes).eval()


@pytest.fixture(scope="module")
def accidents(model, tmp_path_factory):
    """A folder in which all accidents have happened, and how each process ended."""
    place = tmp_path_factory.mktemp("accidents")
    model.save(place / "model")
    done = run("-W", "ignore", "-c", CHILD, json.dumps(ACCIDENTS), cwd=place)
    assert done.returncode == 0, done.stderr
    return place, json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected(model, split):
    return score_split(model, split, BLOCK)


def test_the_file_is_the_matrix(model, split, expected, tmp_path):
    scores = score_split(model, split, BLOCK, path=tmp_path / "new" / "scores")
    assert torch.equal(scores, expected)
    opened = np.load(tmp_path / "new" / "scores" / "scores.npy", mmap_mode="r")
    assert opened.shape == (split.num_images, split.num_texts)
    assert opened.dtype == np.float32
    assert np.array_equal(opened, expected.numpy())
    assert sorted(path.name for path in (tmp_path / "new" / "scores").iterdir()) == [
        "lock",
        "scores.json",
        "scores.npy",
    ]
    assert recall(opened, split.image_of_text) == recall(expected, split.image_of_text)
    scores[0, 0] = 7
    assert np.load(tmp_path / "new" / "scores" / "scores.npy")[0, 0] != 7


def test_what_is_done_is_not_scored_again(model, split, expected, tmp_path, monkeypatch):
    score_split(model, split, BLOCK, path=tmp_path)
    monkeypatch.setattr(model, "encode_images", None)
    assert torch.equal(score_split(model, split, 1000, path=tmp_path), expected)


def test_evaluate_from_the_disk(model, split, tmp_path):
    metrics = evaluate(model, split)
    assert evaluate(model, split, path=tmp_path) == metrics
    assert evaluate(model, split, path=tmp_path) == metrics


@pytest.mark.parametrize("when", KILLS)
def test_killed_and_taken_up_again_it_is_the_same(when, accidents, model, split, expected, monkeypatch):
    folder = accidents[0] / when
    assert accidents[1][when] == -signal.SIGKILL
    assert not (folder / "scores.npy").exists(), "a matrix with holes has another name"
    done = json.loads((folder / "scores.json").read_text())["done"]
    num_blocks = -(-split.num_texts // BLOCK)
    assert done == (num_blocks if when == "before the file has its name" else 3)
    encode, encoded = model.encode_texts, []
    monkeypatch.setattr(model, "encode_texts", lambda *text: (encoded.append(len(text[0])), encode(*text))[1])
    assert torch.equal(score_split(model, split, 100, path=folder), expected), (
        "and in the blocks it began with"
    )
    assert len(encoded) == num_blocks - done


def test_ctrl_c(model, split, expected, tmp_path, monkeypatch):
    write = StoredScores.write

    def stop_at_the_third(self, texts, columns):
        if self.done == 2:
            signal.raise_signal(signal.SIGINT)
        write(self, texts, columns)

    monkeypatch.setattr(StoredScores, "write", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        score_split(model, split, BLOCK, path=tmp_path)
    monkeypatch.undo()
    assert json.loads((tmp_path / "scores.json").read_text())["done"] == 2
    assert torch.equal(score_split(model, split, BLOCK, path=tmp_path), expected)


def test_a_disk_without_room_says_so_before_anything_is_scored(accidents, split):
    place, size = accidents[0], 4 * split.num_images * split.num_texts
    said = (place / "no room.txt").read_text()
    assert said.startswith(f"no room has no space for the scores, {size:,} bytes (File too large): free")
    assert not list((place / "no room").glob("*.npy"))


def test_a_disk_that_fills_up_loses_nothing(accidents, model, split, expected):
    place = accidents[0]
    said = (place / "then full.txt").read_text()
    assert "(File too large); the 72 texts scored before are kept: free some disk space" in said
    assert torch.equal(score_split(model, split, path=place / "full"), expected)


def test_other_things_are_refused(model, split, tmp_path):
    score_split(model, split, BLOCK, path=tmp_path)

    def refused(changed, *arguments, **settings):
        with pytest.raises(SelhnError, match=changed):
            score_split(*arguments, path=tmp_path, **settings)

    refused("kind of scores", model, split, for_ranking=True)
    refused("texts", model, replace(split, captions=["a red ball", *split.captions[1:]]))
    noisier = load_data("world", images=100, noise=1.1).test.first(40)
    refused("images", model, noisier)
    refused("images, texts", model, load_data("world", images=100).dev.first(40))
    smoother = create_model("saf", tokenizer=model.tokenizer, **{**model.settings, "smooth": 8.0})
    smoother.load_state_dict(model.state_dict())
    refused("settings", smoother, split)
    smoother = create_model("saf", tokenizer=model.tokenizer, **model.settings)
    refused("weights", smoother, split)
    assert torch.equal(score_split(model, split, path=tmp_path), score_split(model, split, BLOCK))


def test_damaged_folders_say_what_to_do(model, split, tmp_path):
    def score():
        score_split(model, split, BLOCK, path=tmp_path / "scores")

    (tmp_path / "scores").write_text("")
    with pytest.raises(SelhnError, match="is a file"):
        score()
    (tmp_path / "scores").unlink()
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "scores.npy").write_text("mine")
    with pytest.raises(SelhnError, match="written by selhn"):
        score()
    (tmp_path / "scores" / "scores.npy").unlink()
    score()
    state = (tmp_path / "scores" / "scores.json").read_text()
    os.truncate(tmp_path / "scores" / "scores.npy", 1000)
    with pytest.raises(Damaged, match="cut off"):
        score()
    (tmp_path / "scores" / "scores.npy").unlink()
    with pytest.raises(Damaged, match="cut off"):
        score()
    for changed in (
        state[:-20],
        state.replace('"format": 2', '"format": 9'),
        "{}",
        '{"block": 0.5}',
        "[" * 9999,
    ):
        (tmp_path / "scores" / "scores.json").write_text(changed)
        with pytest.raises(Damaged):
            score()


def test_scores_that_are_not_what_was_written(model, split, tmp_path):
    score_split(model, split, BLOCK, path=tmp_path)
    state, matrix = (tmp_path / "scores.json").read_text(), (tmp_path / "scores.npy").read_bytes()
    done = json.loads(state)["done"]
    (tmp_path / "scores.json").write_text(state.replace(f'"done": {done}', f'"done": {done - 1}'))
    with pytest.raises(Damaged, match="scores.json"):
        score_split(model, split, BLOCK, path=tmp_path)
    (tmp_path / "scores.json").write_text(state)
    for at, value in (
        (-1, matrix[-1] ^ 1),
        (matrix.index(b"<f4"), ord(">")),
        (matrix.index(b"True"), ord("t")),
    ):
        changed = bytearray(matrix)
        changed[at] = value
        (tmp_path / "scores.npy").write_bytes(changed)
        with pytest.raises(Damaged, match="scores.npy"):
            score_split(model, split, BLOCK, path=tmp_path)


def test_one_process_at_a_time_fills_a_folder(tmp_path):
    with _opened(tmp_path) as scores:
        scores.write(torch.tensor([0, 1]), torch.ones(2, 2))
        with pytest.raises(Locked), _opened(tmp_path):
            pass
        scores.write(torch.tensor([2, 3]), torch.ones(2, 2))
    with _opened(tmp_path) as first, _opened(tmp_path) as second:
        assert first.complete
        assert torch.equal(second.matrix, torch.ones(2, 4))


@contextmanager
def _opened(folder):
    with for_scores(folder / "scores"):
        yield StoredScores(folder / "scores", {"model": "x"}, (2, 4), 2, torch.arange(4))


@pytest.fixture(scope="module")
def half_done(split, tmp_path_factory):
    stored = opened(tmp_path_factory.mktemp("half") / "scores", split)
    stored.write(torch.arange(BLOCK), torch.zeros(split.num_images, BLOCK))
    return stored.folder


def opened(folder, split):
    order, shape = torch.arange(split.num_texts), (split.num_images, split.num_texts)
    with for_scores(folder):
        return StoredScores(folder, {"model": "saf"}, shape, BLOCK, order)


@pytest.mark.parametrize(
    ("name", "kind"), list(zip(["scores.npy", "scores.partial.npy", "scores.json", "lock", "lock"], PLANTED))
)
@pytest.mark.parametrize("started", [True, False])
def test_scores_are_never_written_or_read_elsewhere(half_done, split, tmp_path, started, kind, name):
    folder, outside = tmp_path / "scores", make_outside(tmp_path / "outside")
    if started:
        shutil.copytree(half_done, folder)
    before = content_of(outside)
    plant(folder / name, kind, outside)
    with pytest.raises(Linked, match=name):
        opened(folder, split)
    assert content_of(outside) == before


@pytest.mark.parametrize("name", ["scores.partial.npy", "lock"])
def test_what_is_written_in_place_has_no_other_name(split, tmp_path, name):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "scores").mkdir()
    os.link(tmp_path / "mine.txt", tmp_path / "scores" / name)
    with pytest.raises(Linked, match=name):
        opened(tmp_path / "scores", split)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_finished_scores_are_read_on_a_read_only_disk(model, split, expected, tmp_path):
    score_split(model, split, BLOCK, path=tmp_path)
    before = content_of(tmp_path)
    with read_only(tmp_path):
        assert torch.equal(score_split(model, split, BLOCK, path=tmp_path), expected)
    assert content_of(tmp_path) == before
