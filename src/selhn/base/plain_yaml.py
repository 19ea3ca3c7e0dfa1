"""YAML of others: settings with plain values, and nothing that grows or runs."""

from typing import Any

import yaml

from selhn.base.errors import Damaged

MAX_YAML_BYTES = 2**16
"""Settings of a run are 1 kB; the parser takes about a second for this many."""


class _PlainYaml(yaml.SafeLoader):
    """Refuses references (*): a few hundred bytes of them can expand to 10^9 values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it uses references (*), which are not supported: write the values out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if not all(isinstance(name, str) for name in found):
            raise yaml.YAMLError("it has a key that is not text")
        return found

    def construct_yaml_int(self, node: Any) -> int:
        value = super().construct_yaml_int(node)
        if abs(value) >= 2**63:  # Python refuses to print the longest ones
            raise yaml.YAMLError("it has a whole number of more than 64 bits")
        return value


_PlainYaml.add_constructor("tag:yaml.org,2002:int", _PlainYaml.construct_yaml_int)


def parse_yaml(text: str, place: str) -> dict[str, Any]:
    """Names with values, as YAML."""
    if len(text) > MAX_YAML_BYTES:
        raise Damaged(f"{place} has {len(text):,} characters, too many for settings: check which file it is")
    try:
        content = yaml.load(text, _PlainYaml)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, LookupError) as wrong:
        why = " ".join(str(wrong).split())[:120]
        raise Damaged(f"{place} is not YAML ({why}): write it again, or copy it again") from None
    if not isinstance(content, dict):
        raise Damaged(
            f"{place} should hold names with values, not a {type(content).__name__}: check the file"
        )
    return content
