import pytest
from tower_cases import write_towers


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What passed the checks in one test is unknown in the next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def trusted(monkeypatch):
    """The first run in another process takes a second; it has tests of its own."""
    monkeypatch.setattr("selhn.towers.towers.first_run", lambda folder, size: None)


@pytest.fixture
def folder(tmp_path, trusted):
    return write_towers(tmp_path / "towers", parts=True, bank=True)
