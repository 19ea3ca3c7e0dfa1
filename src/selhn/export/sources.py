"""What `selhn export towers` takes: a run, a saved model, a model of another library, or towers, which are copied."""

from pathlib import Path

import torch

from selhn.base.errors import SelhnError
from selhn.base.names import NAMED_TOWERS
from selhn.base.untrusted import read_json
from selhn.data import Projection
from selhn.data.formats import find_format
from selhn.data.formats.pocket import read_projection
from selhn.export.towers import export_towers
from selhn.models import AbstractMatcher, load_model
from selhn.models.pixels import sides
from selhn.pictures.backbones import is_foreign
from selhn.pictures.extractor import load_extractor
from selhn.pictures.picture_report import REPORT_FILE
from selhn.pictures.ready import load_ready_projection
from selhn.runs import RunFolder
from selhn.towers import Description, open_towers
from selhn.towers.description import DESCRIPTION_FILE
from selhn.towers.ready import READY

NO_EXTRACTOR = "none"


def export_source(
    source: str, out: Path, extractor: str | None = None, data: str | None = None
) -> Description:
    """Write a towers folder.

    Args:
        source: a run, a saved model, a model of another library, or towers (a folder, or "ready").
        extractor: the name of what made the regions that the model was trained on, for towers that take pictures;
            "none" for towers that take regions. By default that of the data of the run, if it is known and part of
            selhn.
        data: the data of the run, if the run does not say.
    """
    if (Path(source) / DESCRIPTION_FILE).is_file() or (source in NAMED_TOWERS and not Path(source).exists()):
        if extractor is not None or data is not None:
            raise SelhnError(
                f"{source} already has its towers, which are copied: leave --extractor and --data out"
            )
        open_towers(source).save(out)
        return Description.read(out)
    model = load_model(source)
    if model.source is not None:
        return export_towers(model, out)
    known = extractor or extractor_of_data(model, Path(source), data)
    if known in (None, NO_EXTRACTOR):
        return export_towers(model, out)
    assert known is not None
    if extractor is None and is_foreign(known):  # a name in a file never starts a download
        return export_towers(model, out, vision=known)
    return export_towers(model, out, load_extractor(known))


def extractor_of_data(model: AbstractMatcher, run: Path, data: str | None = None) -> str | None:
    """The name of what made the regions of the data that a model was trained on, if that is known."""
    settings = model.settings
    if settings.get("num_regions") and settings.get("vision") is not None:  # it sees pixels
        grid, patch = sides(settings["feature_dim"], settings["num_regions"])
        return f"pixels_{grid * patch}_{patch}"
    named = data or (RunFolder(run).config or {}).get("data")
    try:
        folder, _ = find_format(str(named))
    except (SelhnError, OSError):  # none, or a folder of someone else's, or no path at all
        return None
    found = read_json(folder / REPORT_FILE, optional=True).get("extractor")
    if isinstance(found, str) and len(found) < 1000:
        return found
    if (folder / "projection.npz").is_file() and settings.get("feature_dim") == len(
        load_ready_projection().mean
    ):
        return READY if _are_of_ready(read_projection(folder / "projection.npz")) else None
    return None


def _are_of_ready(projection: Projection) -> bool:
    """Whether features were packed with the projection of the ready model."""
    pairs = zip(vars(projection).values(), vars(load_ready_projection()).values())
    return all(own.shape == ready.shape and torch.equal(own, ready) for own, ready in pairs)
