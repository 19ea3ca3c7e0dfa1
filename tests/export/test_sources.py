"""What `selhn export towers` takes, and which vision model it finds."""

import json

import numpy as np
import pytest
from model_cases import make_model
from picture_cases import encoded, photo
from tower_cases import write_towers

from selhn.base.errors import SelhnError
from selhn.export import export_source, sources
from selhn.pictures import import_pictures, load_extractor
from selhn.pictures.ready import load_ready_projection
from selhn.towers import Description, Towers


@pytest.fixture
def called(tmp_path, monkeypatch):
    calls, description = [], Description.read(write_towers(tmp_path / "any"))

    def export(model, out, *how, **more):
        calls.append((model, how, more))
        return description

    monkeypatch.setattr(sources, "export_towers", export)
    return calls


def of(monkeypatch, **settings):
    """A run whose model has these settings."""
    model = make_model("vsepp")
    model.settings = settings
    monkeypatch.setattr(sources, "load_model", lambda source: model)
    return model


def trained_on(folder, data):
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(f"data: {data}\n")
    return str(folder)


def test_towers_are_copied(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_towers(tmp_path / "towers")
    written = export_source(str(folder), tmp_path / "copy")
    assert written.sha256 == Towers.open(folder).description.sha256
    assert Towers.open(tmp_path / "copy").description == written
    with pytest.raises(SelhnError, match="already"):
        export_source(str(folder), tmp_path / "other", extractor="ready")


def test_imported_pictures_say_what_made_their_features(tmp_path, monkeypatch, called):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    (folder / "captions.csv").write_text("image,caption\n" + "".join(f"{n}.png,a dog\n" for n in range(12)))
    extractor = load_extractor("pixels_16_8")
    import_pictures(folder, tmp_path / "data", extractor, folder / "captions.csv", quiet=True)
    assert json.loads((tmp_path / "data" / "pictures.json").read_text())["extractor"] == "pixels_16_8"
    of(monkeypatch, feature_dim=192)
    run = trained_on(tmp_path / "run", tmp_path / "data")
    export_source(run, tmp_path / "out")
    assert called[-1][1][0].identity == extractor.identity
    export_source(run, tmp_path / "out", extractor="none")
    assert called[-1][1:] == ((), {})
    export_source(str(tmp_path / "none"), tmp_path / "out", data=str(tmp_path / "data"))
    assert called[-1][1][0].identity == extractor.identity


def test_a_name_in_a_file_starts_no_download(tmp_path, monkeypatch, called):
    data = tmp_path / "data"
    data.mkdir()
    (data / "data.json").write_text("{}")
    (data / "pictures.json").write_text(json.dumps({"extractor": "timm:vit_large"}))
    of(monkeypatch, feature_dim=8)
    monkeypatch.setattr(sources, "load_extractor", lambda name: f"loaded {name}")
    run = trained_on(tmp_path / "run", data)
    export_source(run, tmp_path / "out")
    assert called[-1][1:] == ((), {"vision": "timm:vit_large"})
    export_source(run, tmp_path / "out", extractor="timm:vit_large")
    assert called[-1][1] == ("loaded timm:vit_large",)


def test_features_of_the_ready_model(tmp_path, monkeypatch):
    projection = load_ready_projection()
    model = of(monkeypatch, feature_dim=len(projection.mean))
    arrays = {name: value.numpy() for name, value in vars(projection).items()}
    for folder, change in (("same", 0.0), ("other", 0.5)):
        (tmp_path / folder).mkdir()
        np.savez(
            tmp_path / folder / "projection.npz", **arrays | {"mean": arrays["mean"] + np.float32(change)}
        )
    run = tmp_path / "run"
    assert sources.extractor_of_data(model, run, str(tmp_path / "same")) == "ready"
    assert sources.extractor_of_data(model, run, str(tmp_path / "other")) is None


def test_models_that_see_pixels_know_their_extractor(tmp_path, monkeypatch):
    model = of(monkeypatch, feature_dim=192, num_regions=5, vision={})
    assert sources.extractor_of_data(model, tmp_path) == "pixels_16_8"


def test_a_run_without_pictures(tmp_path, monkeypatch, called):
    of(monkeypatch, feature_dim=8)
    for data in ("world", "f30k", tmp_path / "nothing", "a" * 5000):
        export_source(trained_on(tmp_path / "run", data), tmp_path / "out")
        assert called[-1][1:] == ((), {})
    make_model("vsepp").save(tmp_path / "model")
    export_source(str(tmp_path / "model"), tmp_path / "out")
    assert called[-1][1:] == ((), {})


def test_a_model_of_another_library_brings_its_own(tmp_path, monkeypatch, called):
    of(monkeypatch).source = "transformers:clip"
    export_source("transformers:clip", tmp_path / "out")
    assert called[-1][1:] == ((), {})
