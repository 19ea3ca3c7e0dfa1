"""`selhn index`, `selhn search` and `selhn serve`."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from selhn.cli.train import stoppable

URI_HELP = (
    "Address of a server instead of a folder: Milvus (http://host:19530, or a Milvus Lite file such as pictures.db) "
    "or PostgreSQL (postgresql://host/database). Append #NAME to choose one of several indices there."
)
EXTRACTOR_HELP = "The extractor that the index names, to allow its download."
INDEX_HELP = "Folder of the index; default selhn.index here or, for pictures, in ~/.local/share/selhn."
ShownFolders = Annotated[
    list[Path] | None,
    Option(
        "--folder",
        help="A folder whose pictures may be shown, if the index was made elsewhere; may be repeated.",
    ),
]
GivenToken = Annotated[
    str | None, Option(help="Token that clients must send; also SELHN_TOKEN; default is a new one.")
]
NoToken = Annotated[bool, Option("--no-token", help="Let every user of this machine in, without a token.")]

_UNWANTED = re.compile(r"-[^\W\d_]{2}\S*")


class Words(TyperCommand):
    """A command whose words may begin with a minus (`dog -snow`): long options begin with two."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hide such words from the option parser, then add them to the others."""
        found = super().parse_args(ctx, [word for word in args if not _UNWANTED.fullmatch(word)])
        ctx.params["words"] = [*(ctx.params["words"] or []), *filter(_UNWANTED.fullmatch, args)]
        return found


def index(
    source: Annotated[
        str | None,
        Argument(
            help="A folder of pictures and videos or of embeddings, or a data set; default is that of --model's run."
        ),
    ] = None,
    folder: Annotated[Path | None, Option("--index", help=INDEX_HELP)] = None,
    uri: Annotated[str | None, Option(help=URI_HELP)] = None,
    model: Annotated[
        Path | None,
        Option(
            help="A towers folder, run, saved model or transformers:FOLDER; for pictures, default is the shipped one."
        ),
    ] = None,
    split: Annotated[str, Option(help="Split of the data: train, dev or test.")] = "test",
    precision: Annotated[
        str, Option(help="Number format of a new index: float32, float16 or int8.")
    ] = "float32",
    captions: Annotated[Path | None, Option(help="Captions of pictures; see selhn data import.")] = None,
    extractor: Annotated[str | None, Option(help="Vision model for pictures; see selhn data import.")] = None,
    device: Annotated[str, Option(help="Device for pictures: cpu or cuda.")] = "cpu",
    delete: Annotated[list[str] | None, Option(help="Remove an item; may be given several times.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="For pictures: only say what would change.")] = False,
    remove_missing: Annotated[
        bool, Option("--remove-missing", help="Remove all pictures of a folder that is empty or gone.")
    ] = False,
    compact: Annotated[bool, Option("--compact", help="Free the space of removed items.")] = False,
    check: Annotated[bool, Option("--check", help="Read every file and compare checksums.")] = False,
    approximate: Annotated[
        str | None,
        Option(
            help="Approximate search: auto, hnsw, ivf or ivf_int8; on a server auto or hnsw; exact turns it off."
        ),
    ] = None,
) -> None:
    """Make, update or change an index. If it was stopped, the same command continues."""
    from selhn.cli.search import fill_index, index_path
    from selhn.pictures.picture_folders import found_index, picture_id
    from selhn.search import Index

    path = index_path(folder, uri)
    changes = bool(delete or compact or check or approximate)
    if source is not None or model is not None or not changes:
        with stoppable():
            done = fill_index(
                source,
                path,
                model,
                split,
                precision,  # type: ignore[arg-type]
                captions=captions,
                extractor=extractor,
                device=device,
                dry_run=dry_run,
                remove_missing=remove_missing,
            )
            typer.echo(done)
    if changes:
        changed = Index.load(found_index(path))
        if delete:
            paths = {name: picture_id(name) for name in delete if name not in changed}
            changed.delete([paths[name] if paths.get(name, "") in changed else name for name in delete])
        if compact:
            changed.compact()
        if approximate is not None:
            changed.approximate(approximate)  # type: ignore[arg-type]
        if check:
            changed.check()
        typer.echo(str(changed) + ("; every file matches its checksum" if check else ""))


def search(
    words: Annotated[
        list[str] | None,
        Argument(help="A sentence, such as: dog -snow. The folder of an index or a run may come before it."),
    ] = None,
    folder: Annotated[Path | None, Option("--index", help=INDEX_HELP)] = None,
    uri: Annotated[str | None, Option(help=URI_HELP)] = None,
    model: Annotated[
        Path | None,
        Option(
            help="Model, if the index has none: a towers folder, a run, a saved model or transformers:FOLDER."
        ),
    ] = None,
    k: Annotated[int, Option("--k", "-k", help="Number of answers.")] = 5,
    where: Annotated[
        str | None, Option(help='A filter such as: taken >= 2019-06 and folder = "trip".')
    ] = None,
    order: Annotated[
        str | None, Option(help="By date: newest or oldest first. Without a sentence, list the pictures.")
    ] = None,
    like: Annotated[
        str | None, Option(help="A picture file or the id of an item; can be combined with a sentence.")
    ] = None,
    find: Annotated[str, Option(help="What to find: image, or text for captions.")] = "image",
    text_weight: Annotated[float, Option(help="Weight of the sentence; that of --like is 1.")] = 2.0,
    sheet: Annotated[Path | None, Option(help="Image file to draw the pictures found into.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the answers as JSON.")] = False,
    data: Annotated[str | None, Option(help="Data to search; default is that of the run.")] = None,
    split: Annotated[str, Option(help="Split of the data: train, dev or test.")] = "test",
    extractor: Annotated[str | None, Option(help=EXTRACTOR_HELP)] = None,
    shown: ShownFolders = None,
) -> None:
    """Find pictures by a sentence, a picture, or both. Without either, --order lists them by date."""
    from selhn.base.device import one_thread
    from selhn.cli.answers import answer_tiles, answers, contact_sheet, require_sheet, save_picture
    from selhn.cli.search import find_hits, index_path, open_asked
    from selhn.pictures.how_far import HowFar
    from selhn.pictures.named_folders import name_folders, offer_folders, require_folders

    named = require_folders(shown or ())
    if sheet is not None:
        require_sheet(sheet)
    with one_thread():  # one query is little work
        library, sentence = open_asked(words or [], index_path(folder, uri), model, data, split, extractor)
        query = None if (sentence or like) is None else library.query(sentence, like, text_weight)
        found = find_hits(library.index, query, k, find, where, order)  # type: ignore[arg-type]
    far = HowFar.read(library.index.path)
    if found or as_json or far is None:
        typer.echo(answers(found, as_json))
    if far is not None:
        typer.echo(f"selhn: this index is being made: {far}", err=True)
    name_folders(library.index, named)
    if sheet is not None:
        offer_folders(library.index, "selhn search --index {index} {folders}")
        title = " + ".join(filter(None, [sentence, like and Path(like).name, where, order]))
        save_picture(contact_sheet([(title, answer_tiles(library, found))]), sheet)


def serve(
    folder: Annotated[
        Path | None, Argument(help="Folder of an index; default is that of your pictures.")
    ] = None,
    uri: Annotated[str | None, Option(help=URI_HELP)] = None,
    model: Annotated[
        Path | None,
        Option(
            help="Model, if the index has none: a towers folder, a run, a saved model or transformers:FOLDER."
        ),
    ] = None,
    examples: Annotated[bool, Option("--examples", help="Serve the examples, indexed on first use.")] = False,
    runs: Annotated[Path | None, Option(help="Folder of training runs to show while they train.")] = None,
    host: Annotated[
        str, Option(help="Address to listen on; any other than loopback needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="Port; 0 picks a free one.")] = 8000,
    token: GivenToken = None,
    no_token: NoToken = False,
    hostname: Annotated[
        list[str] | None, Option(help="Host name of the service, besides localhost; may be repeated.")
    ] = None,
    attention: Annotated[
        Path | None, Option(help="A run with attention over regions, to show what each word looks at.")
    ] = None,
    writable: Annotated[bool, Option("--writable", help="Let clients add, change and delete items.")] = False,
    extractor: Annotated[str | None, Option(help=EXTRACTOR_HELP)] = None,
    shown: ShownFolders = None,
) -> None:
    """Search in the browser and over HTTP."""
    from selhn.cli.search import index_path
    from selhn.serve import serve

    serve(
        index_path(folder, uri),
        examples=examples,
        runs=runs,
        host=host,
        port=port,
        token=token,
        no_token=no_token,
        hostnames=hostname,
        attention=attention,
        writable=writable,
        model=model,
        extractor=extractor,
        folders=shown or (),
    )
