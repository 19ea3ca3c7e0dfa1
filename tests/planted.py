"""What a stranger may plant in a folder, in place of a file or a folder: each leads out of it, or to nothing."""

import os


def plant(path, kind, outside):
    """Replace `path`; `outside` is a folder with `secret.txt`, to which a link or a hard link leads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        path.rename(path.with_name(f"{path.name}.replaced"))
    PLANTED[kind](path, outside)


PLANTED = {
    "link to a file": lambda path, outside: path.symlink_to(outside / "secret.txt"),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "loop": lambda path, outside: path.symlink_to(path.name),
    "pipe": lambda path, outside: os.mkfifo(path),
}


def make_outside(folder):
    """The folder of a victim; `is_untouched` tells whether it is still what it was."""
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    for name in ("new", "ready", "previous"):
        (folder / name).mkdir()
        (folder / name / "thesis.txt").write_text("years")
    return folder
