"""Two processes with half of a batch each have the gradients of the plain loop with all of it, in every library."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from integrations import two_processes
from integrations.cases import Towers, gradients, pairs, plain_gradients, same, sentences, small_clip
from selhn.losses import TripletSelHN

LIBRARIES = (
    "accelerate",
    "datasets",
    "lightning",
    "open_clip",
    "pytorch_metric_learning",
    "sentence_transformers",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    there |= {"LOCAL_WORLD_SIZE": "2", "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, two_processes.__file__, folder], stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.STDOUT, env={**os.environ, **there, "RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    ]  # fmt: skip
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "".join(said)
    return torch.load(Path(folder) / "found.pt", weights_only=True)


def expected(name):
    if name in ("sentence_transformers", "cached"):
        model, columns = sentences(two_processes.PAIRS)
        both = [model(model.tokenize(one))["sentence_embedding"] for one in columns]
    elif name == "open_clip":
        model, batch = small_clip(two_processes.PAIRS)
        outputs = model(*batch)
        both = [outputs["image_features"], outputs["text_features"]]
    else:
        return plain_gradients(Towers(), TripletSelHN(), *pairs(two_processes.PAIRS), two_processes.IDS)
    images, texts = (normalize(one, dim=1) for one in both)
    TripletSelHN()(images @ texts.T).backward()
    return gradients(model)


@pytest.mark.parametrize("name", [one.__name__ for one in two_processes.EACH])
def test_the_gradients_are_those_of_the_whole_batch(name, library, request):
    library(*LIBRARIES)
    ours, theirs = request.getfixturevalue("found")[name], expected(name)
    ours = {weight: gradient for weight, gradient in ours.items() if weight in theirs or gradient.any()}
    same(ours, theirs)


def test_halves_alone_would_have_others():
    images, texts = pairs(two_processes.PAIRS)
    halves = [
        plain_gradients(Towers(), TripletSelHN(), images[rank::2], texts[rank::2], two_processes.IDS[rank::2])
        for rank in range(2)
    ]
    with pytest.raises(AssertionError):
        same({name: (one + halves[1][name]) / 2 for name, one in halves[0].items()}, expected("accelerate"))
