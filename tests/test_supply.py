"""What is installed: every package pinned with hashes, bounds that end where testing ends, a true list of each extra.

`python tests/test_supply.py` writes constraints.txt, locked.txt and the list in docs/install.md from pyproject.toml and
keeps the versions pinned before where they still fit; with `--upgrade` (`make lock`) it takes the newest.
"""

import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from textwrap import fill

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CONSTRAINTS, LOCKED, PAGE = ROOT / "constraints.txt", ROOT / "locked.txt", ROOT / "docs" / "install.md"
MARKS = ("<!-- written by tests/test_supply.py: from here -->", "<!-- to here -->")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
USES = {
    "export": "`selhn embed`, `selhn export embeddings`: Parquet",
    "faiss": "approximate search in a folder",
    "milvus": "an index in Milvus",
    "onnx": "`selhn export towers`",
    "plot": "figures",
    "postgres": "an index in PostgreSQL",
    "raw": "RAW pictures of cameras",
    "ray": "`selhn embed --ray`: many machines",
    "search": "the ready model: search your own pictures",
    "serve": "the service and its page",
    "text": "word pieces, as BERT has them",
    "track": "TensorBoard",
    "video": "moments of videos, found like pictures",
    "dev": "work on selhn itself; `make` installs it from `locked.txt`",
}
# These may change what we depend on in a minor release; pyproject.toml has the reasons.
ENDS_AT_MINOR = {"torch", "jaxtyping", "milvus-lite", "onnxscript"}
# torch is built for one kind of device, with packages of its own: no one hash is right everywhere.
OF_TORCH = re.compile(r"torch$|triton|nvidia-|cuda-")
UNUSED = {"sentence-transformers", "scikit-learn", "scipy"}
"""What packages with MiniLM's weights ask for, about 400 MB."""


def pins(path):
    """(name, marker) -> (version, hashes) of a requirements file."""
    found = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement, *hashes = line.split("--hash=")
            parsed = Requirement(requirement)
            (one,) = parsed.specifier
            assert one.operator == "==", f"{path.name}: {line} pins nothing"
            found[parsed.name, str(parsed.marker)] = one.version, [text.strip() for text in hashes]
    return found


def newest(name):
    """The newest version that constraints.txt pins, over all Pythons."""
    return max(Version(version) for (other, _), (version, _) in pins(CONSTRAINTS).items() if other == name)


def parsed(requirements):
    return [Requirement(text) for text in requirements]


def closure(requirements):
    """What is installed for these requirements here and now; None if a part of it is not installed."""
    names, todo = set(), [(one, "") for one in parsed(requirements)]
    while todo:
        one, extra = todo.pop()
        name = canonicalize_name(one.name)
        if one.marker and not one.marker.evaluate({"extra": extra}):
            continue
        inner = {*one.extras, ""}
        if name == "selhn":
            todo += [(each, "") for asked in one.extras for each in parsed(EXTRAS[asked])]
        elif not OF_TORCH.match(name) and (name, *sorted(inner)) not in names:
            names.add((name, *sorted(inner)))
            try:
                todo += [(each, asked) for each in parsed(requires(name) or ()) for asked in inner]
            except PackageNotFoundError:
                return None
    return {name for name, *_ in names}


def test_everything_is_locked_by_hash_and_no_host_is_named():
    for path in (CONSTRAINTS, LOCKED):
        assert "://" not in path.read_text(), f"{path.name}: no host"
        assert not re.search(r"^\s*-(?!-hash)", path.read_text(), re.M), f"{path.name}: no options but hashes"
    locked, constrained = pins(LOCKED), pins(CONSTRAINTS)
    assert not [name for name, _ in locked if OF_TORCH.match(name)]
    assert not {name for name, _ in (*locked, *constrained)} & UNUSED
    for (name, marker), (version, hashes) in locked.items():
        assert hashes, f"{name} has no hash"
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", text) for text in hashes), name
        versions = {other for (same, _), (other, _) in constrained.items() if same == name}
        assert version in versions, f"{name} ; {marker}: locked.txt and constraints.txt differ: make lock"


def test_the_lock_is_complete():
    asked = [*PROJECT["dependencies"], *EXTRAS["dev"]]
    locked = {name for name, _ in pins(LOCKED)}
    direct = {canonicalize_name(one.name) for one in parsed(asked)} - {"selhn", "torch"}
    assert direct <= locked, f"not locked: {direct - locked}: python tests/test_supply.py"
    present = closure(asked) or set()
    assert present <= locked, f"not locked: {present - locked}: python tests/test_supply.py"


def test_upper_bounds_end_where_testing_ends():
    users = [each for name, group in EXTRAS.items() if name != "dev" for each in group]
    for one in parsed([*PROJECT["dependencies"], *users]):
        name = canonicalize_name(one.name)
        operators = {each.operator: Version(each.version) for each in one.specifier}
        if name == "selhn" or "==" in operators:
            continue
        tested = newest(name)
        end = f"{tested.major}.{tested.minor + 1}" if name in ENDS_AT_MINOR else f"{tested.major + 1}"
        assert operators.get("<") == Version(end), f"{one}: {tested} is tested, so the range ends at <{end}"
        assert operators[">="] <= tested


def test_the_page_lists_what_each_extra_brings():
    rows = dict(re.findall(r"^\*\*`(\w+)`\*\*(.+?)(?:\n\n|\Z)", written(), re.M | re.S))
    assert set(rows) == set(USES) | {"selhn"}, "USES has one line for each extra"
    assert set(EXTRAS) == set(USES)
    named = re.search(
        r"^Extras install what single features need: (.+?)\.$", (ROOT / "README.md").read_text(), re.M
    )
    assert set(re.findall(r"`(\w+)`", named[1])) == set(USES) - {"dev"}
    core = listed(rows["selhn"], "Brings")
    for name, asked in {"selhn": PROJECT["dependencies"], **EXTRAS}.items():
        assert listed(rows[name], "Asks for") == set(asked), f"{name}: python tests/test_supply.py"
        here = closure(asked) if sys.platform == "linux" and sys.version_info[:2] == (3, 11) else None
        if here is not None and name not in ("selhn", "dev"):
            assert listed(rows[name], "Brings") == here - core, f"{name}: python tests/test_supply.py"


def listed(row, what):
    found = re.search(rf"{what}(?: \d+ packages?)?:(.+?)(?:\.\n|\.\Z)", row, re.S)
    return set(re.findall(r"`([^`]+)`", found[1])) if found else set()


def written():
    return PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0].strip()


def wheel(folder, line):
    path = folder / "innocent-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("innocent.py", line)
        archive.writestr(
            "innocent-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: innocent\nVersion: 1.0\n"
        )
        archive.writestr(
            "innocent-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("innocent-1.0.dist-info/RECORD", "")
    return path


def test_a_tampered_wheel_is_refused(tmp_path):
    options = re.search(r"pip install (.+) --requirement locked\.txt", (ROOT / "Makefile").read_text())[
        1
    ].split()
    assert {"--require-hashes", "--no-deps"} <= set(options)
    tested = sha256(wheel(tmp_path, "x = 1\n").read_bytes()).hexdigest()
    lock = tmp_path / "locked.txt"
    lock.write_text(f"innocent==1.0 --hash=sha256:{tested}\n")
    wheel(tmp_path, "x = 2\n")  # the same name, version and size
    where = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "site")]
    command = [sys.executable, "-m", "pip", "install", *options, *where, "--requirement", str(lock)]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not (tmp_path / "site").exists()


def resolve(out, *options, leave_out, asked=()):
    """Let uv pin what pyproject.toml and `asked` need."""
    excluded, more = ROOT / ".lock_excluded", ROOT / ".lock_asked.in"
    excluded.write_text("\n".join(leave_out))
    more.write_text("\n".join(asked))
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "pyproject.toml",
        *(["--output-file", out] if out else ()),
        more.name,
    ]
    try:
        return subprocess.run(
            [*command, "--quiet", "--no-config", "--no-header", "--no-annotate", "--excludes", excluded.name, *options],
            cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE,
        ).stdout  # fmt: skip
    finally:
        excluded.unlink()
        more.unlink()


def write(upgrade):
    torch = f"torch=={newest('torch')}"
    of_torch = [each for each in requires("torch") if "extra ==" not in each and not OF_TORCH.match(each)]
    everywhere = ("--universal", "--python-version", "3.10")
    resolve(CONSTRAINTS.name, "--all-extras", *everywhere, *upgrade, leave_out=["torch"], asked=of_torch)
    note = "# The versions that are tested, for all extras: pip install --constraint constraints.txt '.[search]'\n"
    how = "# Written by `make lock`; only the line of torch is written by hand.\n"
    CONSTRAINTS.write_text(f"{note}{how}{torch}\n{CONSTRAINTS.read_text()}")
    options = ("--extra", "dev", "--constraint", CONSTRAINTS.name, "--generate-hashes", *everywhere, *upgrade)
    resolve(LOCKED.name, *options, leave_out=["torch"], asked=of_torch)
    note = "# What `make` installs: the files of each package for all platforms by their hashes. torch is apart, its\n"
    how = "# builds differ; constraints.txt has its version. Written by `make lock`.\n"
    LOCKED.write_text(note + how + LOCKED.read_text())
    before, _, behind = PAGE.read_text().replace(MARKS[1], MARKS[0]).split(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{extras_list(of_torch)}\n\n{MARKS[1]}{behind}")


def extras_list(of_torch):
    """Each extra: what it asks for, and what comes with that on Linux with Python 3.11, beyond the core."""

    def brings(*options):
        here = ("--python-version", "3.11", "--python-platform", "linux", "--constraint", CONSTRAINTS.name)
        text = resolve(None, *options, *here, leave_out=["torch"], asked=of_torch)
        return {line.split("==")[0] for line in text.splitlines() if "==" in line}

    core = brings()
    rows = [row("selhn", "the core, without an extra", PROJECT["dependencies"], core)]
    return "\n\n".join(
        rows + [row(name, USES[name], EXTRAS[name], brings("--extra", name) - core) for name in USES]
    )


def row(name, use, asked, brought):
    def quoted(names):
        return ", ".join(f"`{each}`" for each in names)

    noun = "package" if len(brought) == 1 else "packages"
    names = "those of locked.txt" if name == "dev" else quoted(sorted(brought))
    lines = (
        f"**`{name}`**: {use}.",
        f"- Asks for: {quoted(asked)}.",
        f"- Brings {len(brought)} {noun}: {names}.",
    )
    return "\n".join(fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


if __name__ == "__main__":
    write(sys.argv[1:])


def test_every_extra_that_a_message_names_exists():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    asked = [names for source in sources for names in re.findall(r"pip_install\('([\w,]+)'\)", source)]
    assert len(asked) > 10
    assert {name for names in asked for name in names.split(",")} <= set(EXTRAS)
