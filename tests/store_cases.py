"""Where an index can be, and values that try to become part of what is asked there."""

import pytest

SERVERS = ["milvus_lite", "postgres", pytest.param("milvus", marks=pytest.mark.milvus)]
HOSTILE = [
    'x" or key != "',
    "x' or 'a' == 'a",
    "\\",
    '\\"',
    '"',
    '"]',
    '") or exists record["metadata"]["other"] or (key == "',
    "a\nb",
    "a\x00b",
    "tab\tbed",
    "100%",
    "_",
    "%",
    "{key}",
    "{{x}}",
    "$meta",
    "é 中文 😀",
    "\u202eevil",
    " ",
    "",
    "null",
    "true",
    "//",
    "/* */",
]
