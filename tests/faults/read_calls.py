"""Which functions of the package open or parse a file, found in its source, and which of them a row enters."""

import ast
import sys
import threading
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "selhn"
CALLS = {
    # of base/untrusted.py
    *(
        "open_array",
        "read_archive",
        "read_text",
        "read_lines",
        "read_integers",
        "parse_json",
        "read_json",
        "read_json_lines",
    ),
    # of base/sealed.py and base/tensor_files.py
    *("verify", "read_sealed_json", "read_sealed_text", "parse_yaml", "read_tensors"),
    # of Python and of libraries, whoever they are called on
    *("read_bytes", "load_file", "safe_open", "memmap", "fromfile", "safe_load", "from_buffer", "from_file"),
    *(
        "BertWordPieceTokenizer",
        "ParquetFile",
        "deserialize_index",
        "from_pretrained",
        "literal_eval",
        "ZipFile",
        "DictReader",
        "read_magic",
    ),
}
OWNED = {
    *(
        ("json", "loads"),
        ("json", "load"),
        ("torch", "load"),
        ("np", "load"),
        ("Image", "open"),
        ("os", "open"),
    ),
    *(("csv", "reader"), ("sqlite3", "connect"), ("yaml", "load"), ("pickle", "load"), ("pickle", "loads")),
    *(("tarfile", "open"), ("gzip", "open")),
}


def is_reading(call):
    """Whether a call opens or parses a file."""
    target = call.func
    if isinstance(target, ast.Name):
        return target.id in CALLS or (target.id == "open" and not _writes(call.args[1:2]))
    if not isinstance(target, ast.Attribute):
        return False
    owner = target.value.id if isinstance(target.value, ast.Name) else ""
    if (owner, target.attr) in OWNED or target.attr in CALLS:
        return True
    # `path.open("rb")`: other things that are opened have no mode and no encoding.
    told = any(word.arg in ("encoding", "newline", "mode") for word in call.keywords)
    mode = call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    return target.attr == "open" and bool(told or mode) and not _writes(call.args[:1])


def _writes(mode):
    return bool(mode) and isinstance(mode[0], ast.Constant) and set(str(mode[0].value)) & set("wax") != set()


def reading_functions():
    """`{("data/formats/tsv.py", 108): "_index_lines"}`: file, first line and name of every function that reads."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in _functions(ast.parse(path.read_text())):
            if any(isinstance(node, ast.Call) and is_reading(node) for node in _own_nodes(function)):
                first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
                found[path.relative_to(PACKAGE).as_posix(), first] = function.name
    return found


def _functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _own_nodes(function):
    """What is in a function without the functions inside it."""
    left = [*function.body]
    while left:
        node = left.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
            left += ast.iter_child_nodes(node)


class Entered:
    """The functions of the package that are called in a block, as `reading_functions` names them."""

    def __init__(self):
        self.found = set()

    def _note(self, frame, event, _):
        code = frame.f_code
        if event == "call" and "/selhn/" in code.co_filename:
            self.found.add((code.co_filename, code.co_firstlineno))

    def __enter__(self):
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)
        inside = [(Path(file), line) for file, line in self.found]
        self.found = {
            (file.relative_to(PACKAGE).as_posix(), line)
            for file, line in inside
            if file.is_relative_to(PACKAGE)
        }
