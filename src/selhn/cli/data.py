"""`selhn data`: what a folder holds, what is wrong with it, and how it becomes a data set."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from selhn.base.errors import SelhnError
from selhn.base.names import printable, require_settings

data_app = typer.Typer(help="Check, convert and show data sets.", no_args_is_help=True, rich_markup_mode=None)
Settings = Annotated[
    list[str] | None, typer.Argument(help="key=value: settings of the format, such as images=100 for world.")
]


@data_app.command("check")
def data_check(folder: Annotated[Path, typer.Argument(help="Folder of a data set, or world.")]) -> None:
    """Say what is in a data folder, and what is wrong with it."""
    from selhn.data import check

    report = check(folder)
    typer.echo(str(report))
    raise typer.Exit(0 if report.ok else 1)


@data_app.command("import")
def data_import(
    source: Annotated[str, typer.Argument(help="A folder of pictures, a data set, or world.")],
    out: Annotated[Path | None, typer.Argument(help="New folder; for pictures, default NAME_data.")] = None,
    settings: Settings = None,
    half: Annotated[bool, typer.Option("--half", help="Store features as float16.")] = False,
    captions: Annotated[
        Path | None, typer.Option(help="For pictures: CSV, JSON lines, token.txt, Karpathy's or COCO's JSON.")
    ] = None,
    extractor: Annotated[
        str,
        typer.Option(
            help="For pictures: ready, efficientnet_lite2, timm:MODEL, transformers:MODEL, "
            "open_clip:MODEL/WEIGHTS; pixels_224_16 for models that see pixels; or files: one .npy or .npz per picture."
        ),
    ] = "ready",
    device: Annotated[str, typer.Option(help="Device for pictures: cpu or cuda.")] = "cpu",
) -> None:
    """Convert data or pictures to selhn's own format."""
    from selhn.base.device import choose_device
    from selhn.data import check, import_data
    from selhn.pictures.indexing import pictures_in
    from selhn.training.config import key_values

    precision: Literal["float32", "float16"] = "float16" if half else "float32"
    options = key_values(settings or [])
    pictures = pictures_in(source)
    if captions is not None or extractor == "files" or pictures is not None:
        from selhn.pictures import import_pictures, load_extractor
        from selhn.pictures.picture_report import REPORT_FILE

        out = out or Path(f"{Path(source).resolve().name}_data")
        options = {"precision": precision, **options}
        require_settings("an import of pictures", import_pictures, options, only_optional=True)
        vision = None if extractor == "files" else load_extractor(extractor, choose_device(device))
        found = import_pictures(source if pictures is None else pictures, out, vision, captions, **options)
        typer.echo(found.describe(out / REPORT_FILE))
        typer.echo(str(check(out)))
        return
    if out is None:
        raise SelhnError("missing destination: selhn data import SOURCE OUT")
    typer.echo(str(check(import_data(source, out, precision=precision, **options))))


@data_app.command("concepts")
def data_concepts(
    source: Annotated[str, typer.Argument(help="A data set.")],
    out: Annotated[
        Path | None, typer.Argument(help="Folder for concepts.json; default is the data set's.")
    ] = None,
    number: Annotated[int, typer.Option(help="How many concepts.")] = 300,
) -> None:
    """Write the concepts of the training captions, for cvse. Also counts how often they occur together."""
    from selhn.data.concepts import write_concepts

    graph, written = write_concepts(source, out, number)
    shown = ", ".join(forms[0] for forms in graph.words[:10])
    links = int((graph.adjacency() > 0).sum()) - len(graph.words)
    typer.echo(
        f"{len(graph.words)} concepts ({shown}, ...) with {links:,} links: {', '.join(map(str, written))}"
    )


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="Folder of a data set, or world.")],
    settings: Settings = None,
    split: Annotated[str, typer.Option(help="Split of the data: train, dev or test.")] = "test",
    number: Annotated[int, typer.Option(help="How many images.")] = 3,
    pictures: Annotated[Path | None, typer.Option(help="Folder for drawings of a generated world.")] = None,
) -> None:
    """Print texts of some images. With --pictures, draw scenes of a generated world and write their captions."""
    from selhn.base.files import write_whole
    from selhn.cli.answers import save_picture
    from selhn.data import load_data
    from selhn.data.world import WorldFeatures, world_scene
    from selhn.data.world.render import render
    from selhn.training.config import key_values

    shown = load_data(source, **key_values(settings or []))[split]
    if pictures is not None and not isinstance(shown.features, WorldFeatures):
        raise SelhnError("only scenes of the generated world can be drawn: leave out --pictures")
    lines = []
    for image in range(min(number, shown.num_images)):
        name = shown.image_names[image]
        texts = [shown.captions[text] for text in (shown.image_of_text == image).nonzero()[:, 0].tolist()]
        typer.echo("\n    ".join(map(printable, [name, *texts])))
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            save_picture(render(world_scene(shown, image)), pictures / f"{name}.png")
            lines.append(json.dumps({"image": f"{name}.png", "captions": texts}))
    if pictures is not None:
        write_whole(pictures / "captions.jsonl", "\n".join(lines) + "\n")
