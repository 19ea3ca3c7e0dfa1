"""Pictures that people removed from an index, not from the disk: `selhn photos` does not add them again."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from selhn.base.errors import Damaged
from selhn.pictures.plans import Plan
from selhn.search import Index, Record
from selhn.search.stores.checked_files import read_checked_json, write_checked_json

REMOVED_FILE = "removed.json"
PATIENCE = 60.0
"""Seconds to wait for another process that writes to the index."""


class Removed:
    """The ids of such pictures, in a small file of an index in a folder; an index on a server has none.

    The size and time of change of each file are stored too: a file that has changed since is another picture.
    """

    def __init__(self, index: Index):
        self.index = index
        self.path = index.path / REMOVED_FILE if isinstance(index.path, Path) else None

    def add(self, record: Record) -> None:
        """Keep a picture out from now on. Call it while this process writes the index."""
        if self.path is not None:
            write_checked_json(self.path, {**self._read(), record.id: _file_state(record.metadata)})

    def kept_out(self, plan: Plan) -> Plan:
        """A plan that does not add them. Those that somebody has added again are forgotten."""
        if self.path is None or not self.path.exists():
            return plan
        with self.index.writing(PATIENCE):
            removed = self._read()
            if back := self.index.store.get(removed):
                removed = {name: state for name, state in removed.items() if name not in back}
                write_checked_json(self.path, removed)
        return replace(
            plan, add=[one for one in plan.add if removed.get(one.id) != _file_state(one.metadata)]
        )

    def _read(self) -> dict[str, str]:
        assert self.path is not None
        try:
            return read_checked_json(self.path) if self.path.exists() else {}
        except Damaged as wrong:
            raise Damaged(f"{self.path} is damaged ({wrong}): restore a copy, or remove it") from None


def _file_state(metadata: Mapping[str, Any]) -> str:
    return f"{metadata.get('bytes')} {metadata.get('modified')}"
