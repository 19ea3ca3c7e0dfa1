"""`selhn export`: vectors and towers for programs that do not use selhn."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from selhn.base.errors import SelhnError

export_app = typer.Typer(
    help="Export embeddings, or a model as towers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@export_app.command("embeddings")
def embeddings(
    source: Annotated[Path, typer.Argument(help="An index, or a run or saved model that encodes its data.")],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    layout: Annotated[str, typer.Option(help="Layout of the files: clip-retrieval.")] = "clip-retrieval",
    rows: Annotated[
        str, typer.Option(help="image: one per image, with its first caption; pair: one per caption.")
    ] = "image",
    data: Annotated[str | None, typer.Option(help="Data to embed; default is that of the run.")] = None,
    split: Annotated[str, typer.Option(help="Split of a run's data.")] = "test",
    model: Annotated[
        Path | None, typer.Option(help="Model, if the index has none or cannot find it.")
    ] = None,
) -> None:
    """Write vectors of images and texts, with their metadata."""
    from selhn.export import embeddings_of_index, embeddings_of_split, write_clip_retrieval
    from selhn.search import Index
    from selhn.search.embedded import Rows
    from selhn.towers import open_towers
    from selhn.training import open_run

    if layout != "clip-retrieval":
        raise SelhnError(f"unknown --layout {layout!r}: use clip-retrieval")
    if rows not in get_args(Rows):
        raise SelhnError(f"--rows is {rows!r}: choose {' or '.join(get_args(Rows))}")
    if Index.exists(source):
        parts = embeddings_of_index(Index.load(source, None if model is None else open_towers(model)))
    else:
        own_model, dataset = open_run(source, data)
        parts = embeddings_of_split(own_model, dataset[split])
    number = write_clip_retrieval(parts, out, rows)  # type: ignore[arg-type]
    folders = "img_emb, text_emb, metadata" if (out / "text_emb").is_dir() else "img_emb, metadata"
    typer.echo(f"{number:,} rows in {out}: {folders}")


@export_app.command("towers")
def towers(
    source: Annotated[
        str,
        typer.Argument(help="A run, a saved model, transformers:FOLDER, or ready; towers are copied."),
    ],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    extractor: Annotated[
        str | None,
        typer.Option(
            help="What made the regions that the model was trained on; see selhn data import. Default is that of its "
            "data, if it is known. none: the towers take regions."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data it was trained on, if the run does not say.")] = None,
) -> None:
    """Write a model as ONNX files that need no torch. Checks that their vectors equal the model's."""
    from selhn.export import export_source

    written = export_source(source, out, extractor, data)
    files = ", ".join(sorted(path.name for path in out.iterdir()))
    typer.echo(f"{written.name}, {written.width:,} numbers, from {written.image.input}: {files} in {out}")
    if written.image.input == "regions":
        name = written.image.vision or "NAME"
        typer.echo(
            "only regions can be indexed with these towers, not pictures; for pictures, export the model with "
            f"--extractor {name}, the vision model that its features come from"
        )


@export_app.command("onnx", hidden=True)
def onnx(source: str, out: Path) -> None:
    """The name that `selhn export towers` had."""
    raise SelhnError(f"selhn export onnx is now called: selhn export towers {source} {out}")
