"""`selhn data`: what lies in a folder, what is wrong with it, and how it becomes a data set."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from selhn.base.errors import SelhnError
from selhn.base.names import require_settings

data_app = typer.Typer(help="Look at data sets, check and convert them.", no_args_is_help=True, rich_markup_mode=None)
Settings = Annotated[
    list[str] | None, typer.Argument(help="key=value, such as epochs=5 model.dim=512 loss.epsilon=0.02")
]


@data_app.command("check")
def data_check(folder: Path) -> None:
    """Say in plain words what is in a data folder and what is wrong with it."""
    from selhn.data import check

    report = check(folder)
    typer.echo(str(report))
    raise typer.Exit(0 if report.ok else 1)


@data_app.command("import")
def data_import(
    source: Annotated[
        str, typer.Argument(help="A folder of pictures, a folder or file in any format that can be read, or world.")
    ],
    destination: Annotated[
        Path | None, typer.Argument(help="A new folder; of pictures, by default their folder's name and _data.")
    ] = None,
    settings: Settings = None,
    half: Annotated[bool, typer.Option("--half", help="Store features as float16.")] = False,
    captions: Annotated[
        Path | None, typer.Option(help="Of pictures: CSV, JSON lines, token.txt, or JSON by Karpathy or COCO.")
    ] = None,
    extractor: Annotated[
        str,
        typer.Option(
            help="Of pictures: ready, efficientnet_lite2, timm:MODEL, transformers:MODEL, open_clip:MODEL/WEIGHTS; "
            "or files: one .npy or .npz a picture."
        ),
    ] = "ready",
    device: Annotated[str, typer.Option(help="Of pictures: cpu or cuda.")] = "cpu",
) -> None:
    """Convert a data set, or a folder of pictures, into the simple format of selhn."""
    from selhn.data import check, import_data
    from selhn.pictures.library import holds_pictures
    from selhn.training.config import key_values

    dtype: Literal["float32", "float16"] = "float16" if half else "float32"
    options = key_values(settings or [])
    if captions is not None or extractor == "files" or holds_pictures(source):
        from selhn.pictures.dataset import describe_report, import_pictures
        from selhn.pictures.ready import load_extractor

        destination = destination or Path(f"{Path(source).resolve().name}_data")
        options = {"dtype": dtype, **options}
        require_settings("an import of pictures", import_pictures, options, only_optional=True)
        vision = None if extractor == "files" else load_extractor(extractor, device)
        found = import_pictures(source, destination, vision, captions, **options)
        typer.echo(describe_report(found))
        typer.echo(str(check(destination)))
        return
    if destination is None:
        raise SelhnError("where to? Name a new folder after the source")
    typer.echo(str(check(import_data(source, destination, precision=dtype, **options))))


@data_app.command("show")
def data_show(
    source: str,
    settings: Settings = None,
    split: str = "test",
    number: Annotated[int, typer.Option(help="How many images.")] = 3,
    pictures: Annotated[Path | None, typer.Option(help="Folder for pictures, where the data can draw them.")] = None,
) -> None:
    """Print the texts of some images; for a generated world, draw them too."""
    from selhn.cli.demo import show_split
    from selhn.training.config import key_values

    show_split(source, key_values(settings or []), split, number, pictures)
