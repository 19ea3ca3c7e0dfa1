"""`selhn photos`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from selhn.cli.index import GivenToken, NoToken
from selhn.cli.train import stoppable


def photos(
    folders: Annotated[
        list[Path] | None,
        Argument(help="Folders of pictures and videos; default is what is indexed, or ~/Pictures."),
    ] = None,
    watch: Annotated[bool, Option("--watch", help="Index again whenever pictures change.")] = False,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    index: Annotated[
        Path | None, Option(help="Folder of the index; default in ~/.local/share/selhn.")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            help="A towers folder, a run, a saved model or transformers:FOLDER; default is the shipped one."
        ),
    ] = None,
    host: Annotated[
        str, Option(help="Address to listen on; any other than loopback needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int | None, Option(help="Port; default 8000 or the next free one.")] = None,
    token: GivenToken = None,
    no_token: NoToken = False,
    writable: Annotated[
        bool, Option("--writable", help="Favourites, albums, adding and removing in the page.")
    ] = False,
) -> None:
    """Search your photographs in the browser. Indexes them, serves them, and keeps them up to date."""
    from selhn.serve.photos import photos

    with stoppable():
        photos(
            folders or (),
            index,
            model=model,
            watch=watch,
            browser=browser,
            host=host,
            port=port,
            token=token,
            no_token=no_token,
            writable=writable,
        )
