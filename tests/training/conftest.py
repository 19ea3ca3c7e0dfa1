import signal

import pytest
from run_cases import few_held_out

from selhn.data import load_data
from selhn.models import create_model
from selhn.text import Vocabulary
from selhn.training.config import TrainConfig


@pytest.fixture(scope="module", autouse=True)
def small_everywhere(small_dev_and_test):
    """Of every generated world here."""


@pytest.fixture(scope="session")
def tiny_data():
    with few_held_out():
        return load_data("world", images=100)


@pytest.fixture
def tiny_model(tiny_data):
    """A function that makes the same small model every time."""
    import torch

    vocabulary = Vocabulary.build(tiny_data.train.captions)

    def make(name="rvse", **settings):
        torch.manual_seed(0)
        sizes = {"feature_dim": tiny_data.feature_dim, "dim": 16, "word_dim": 12}
        return create_model(name, tokenizer=vocabulary, **sizes, **settings)

    return make


@pytest.fixture
def tiny_config():
    return TrainConfig(epochs=2, batch_size=64, device="cpu")


@pytest.fixture
def default_signals():
    """As in a terminal: a program that was started with nohup ignores SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
