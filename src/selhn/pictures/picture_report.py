"""What happened to each file of a folder of pictures: as text, and as a JSON file."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from selhn.base.files import write_whole
from selhn.base.names import printable

REPORT_FILE = "pictures.json"
SHOWN = 20
"""Most files that a printed report names."""


@dataclass
class PictureReport:
    """What happened to each file."""

    used: int = 0
    computed: int = 0
    """Pictures whose features were not in the cache."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Pictures that are used, and how they were changed."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Files that are not used, and why."""

    def describe(self, where: Path | str = "") -> str:
        """The numbers and the first files; `where` is the file that names all."""
        lines = [f"  left out: {printable(name)}: {printable(why)}" for name, why in self.refused]
        lines += [f"  note: {printable(name)}: {printable(what)}" for name, what in self.notes]
        if len(lines) > SHOWN:
            lines[SHOWN:] = [f"  and {len(lines) - SHOWN:,} more{f' in {where}' if where else ''}"]
        used = f"{self.used:,} pictures used ({self.computed:,} computed now)"
        return "\n".join([f"{used}, {len(self.refused):,} files left out", *lines])

    __str__ = describe

    def write(self, pictures: Path, out: Path | None, extractor: str | None = None) -> Path | None:
        """Write the report on a folder of pictures into the folder `out`, if there is one; returns the new file.

        Args:
            extractor: the name of what made the features, if it has one; `selhn export towers` asks for it.
        """
        if out is None:
            return None
        about = {"folder": str(pictures.resolve()), "used": self.used, "notes": self.notes}
        if extractor is not None:
            about["extractor"] = extractor
        text = json.dumps({**about, "left out": self.refused}, indent=1, ensure_ascii=False)
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / REPORT_FILE, text + "\n")
        return out / REPORT_FILE
