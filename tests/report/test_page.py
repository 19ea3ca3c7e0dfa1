import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageColor
from run_cases import rows

from selhn.base.errors import NotFound, SelhnError
from selhn.data import Data, Split, load_data, write_native
from selhn.report import write_report
from selhn.report.records import read_runs

COLOURS = 6
EMPTY = {"meta", "img", "br", "link"}
OUTSIDE = re.compile(
    r"""(?:src|href|action|xlink:href)\s*=|url\(|@import|fetch\(|XMLHttpRequest|import\s*\("""
)


class Reader(HTMLParser):
    """What a browser makes of a page: elements that open and close, ids, scripts and addresses."""

    def __init__(self, content):
        super().__init__()
        self.open, self.ids, self.addresses, self.elements, self.handlers, self.text = [], [], [], [], [], []
        self.feed(content)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        if tag not in EMPTY:
            self.open.append(tag)
        for name, value in attributes:
            self.handlers += [name] if name.startswith("on") else []
            self.ids += [value] if name == "id" else []
            self.addresses += [value] if name in ("src", "href", "action", "srcset", "data") else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.text.append(text)


def read(path):
    return Reader(path.read_text("utf-8"))


def test_the_whole_page_of_two_runs(trained):
    page = write_report([trained / "hn", trained / "selhn"], device="cpu")
    assert page == trained.resolve() / "report.html"
    assert page.stat().st_size < 700_000
    reader, text = read(page), " ".join(read(page).text)
    for title in ("Verdict", "Results", "Curves", "Examples", "Settings", "Environment"):
        assert title in reader.text
        assert f"#{title.lower()}" in reader.addresses
        assert title.lower() in reader.ids
    assert len(set(reader.ids)) == len(reader.ids)
    assert reader.elements.count("figure") == 6
    assert reader.elements.count("img") > 20
    assert "by their places alone" in text


def test_nothing_is_loaded_from_anywhere(trained):
    page = write_report([trained / "selhn"], trained / "alone" / "page.html", device="cpu")
    content, reader = page.read_text("utf-8"), read(page)
    assert {address.split(":")[0] for address in reader.addresses if not address.startswith("#")} == {"data"}
    assert not {"link", "iframe", "object", "embed", "form"} & set(reader.elements)
    assert not reader.handlers
    assert not OUTSIDE.findall(re.sub(r'(src="data:|href="#)[^"]*"', "", content))
    assert "default-src 'none'" in content


def test_only_its_own_script_and_style_are_obeyed(trained):
    content = write_report([trained / "selhn"], examples=0).read_text("utf-8")
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}(?: type=\"module\")?>(.*?)</{kind}>", content, flags=re.DOTALL)
        own = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{own}'" in content
    assert "style=" not in content, "a style on an element would be refused"


def test_captions_of_strangers_stay_text(trained, tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \ud83d"
    data = load_data("world", images=100, width=32)
    names = [f'"><script>{row}</script>' for row in range(data.test.num_images)]
    captions = [f"{evil} {caption}" for caption in data.test.captions]
    test = Split("test", data.test.features, captions, data.test.image_of_text, names)
    write_native(Data("evil", data.train, data.dev, test), tmp_path / "data")
    page = write_report(
        [trained / "selhn"], tmp_path / "page.html", data=str(tmp_path / "data"), device="cpu"
    )
    reader = read(page)
    assert reader.elements.count("script") == 2, "the data of the curves, and the script of the page"
    assert "img" not in reader.elements, "features alone have no pictures"
    assert not reader.handlers
    assert any("<img src=x onerror=alert(2)>" in text for text in reader.text)


def test_names_and_settings_of_strangers_stay_text(write_run):
    name = "<script>alert(1)<"
    folder = write_run(name, "data=<b>bold</b>")
    (folder / "env.json").write_text(json.dumps({"<i>": "</table><script>"}))
    reader = read(write_report([folder]))
    assert reader.elements.count("script") == 2
    assert not {"i", "b"} & set(reader.elements)
    assert name in reader.text


@pytest.mark.parametrize("log", [1, 7, 15])
def test_a_short_log_is_a_page(write_run, log):
    folder = write_run("short", log=list(rows(log)), finished=False)
    reader = read(write_report([folder]))
    assert "figure" in reader.elements
    assert any("kept no weights" in text for text in reader.text)


def test_a_run_with_broken_numbers_is_a_page(write_run):
    broken = [
        {**row, "loss": float("nan"), "loss_per_anchor": float("nan"), "delta_s": float("inf")}
        for row in rows()
    ]
    page = write_report(
        [write_run("nan", log=broken[5:]), write_run("half", log=[*list(rows())[:5], *broken[5:]])]
    )
    assert any("no longer a number" in text for text in read(page).text)
    assert any("values are not finite numbers" in text for text in read(page).text)


def test_many_long_runs_stay_small(write_run):
    folders = [write_run(f"run{number}", log=list(rows(2000))) for number in range(4)]
    page = write_report(folders, examples=0)
    assert page.stat().st_size < 450_000
    (content,) = re.findall(r'id="curve-data">(.*?)</script>', page.read_text())
    assert max(len(curve["line"]) for panel in json.loads(content) for curve in panel["curves"]) <= 240


def test_it_is_the_same_every_time(write_run, tmp_path):
    folder = write_run("run")
    first, second = (write_report([folder], tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_what_cannot_be_done(write_run, tmp_path):
    run = write_run("run")
    with pytest.raises(SelhnError, match="one run"):
        write_report([])
    with pytest.raises(SelhnError, match="examples"):
        write_report([run], examples=-1)
    with pytest.raises(SelhnError, match="is a folder"):
        write_report([run], tmp_path)
    with pytest.raises(NotFound, match="did you mean 'test'"):
        write_report([run], split="tests")
    with pytest.raises(NotFound, match="nowhere"):
        write_report([run], pictures=tmp_path / "nowhere")


STYLE = files("selhn.report").joinpath("templates/page.css").read_text("utf-8")
SCREENS = [
    dict(re.findall(r"--([\w-]+): (#\w+)", colours))
    for colours in re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
]
SCREEN = pytest.mark.parametrize("colours", SCREENS, ids=["light", "dark", "print"])
SEEN = {  # what is seen of red, green and blue light, after Machado, Oliveira and Fernandes (2009)
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def light(colour):
    """Red, green and blue as amounts of light."""
    shares = np.array(ImageColor.getrgb(colour)) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def lab(amounts):
    """The colour space in which distances are about what an eye makes of them."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116
               for v in to_xyz @ amounts.clip(0, 1) / [0.9505, 1, 1.089])  # fmt: skip
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@SCREEN
def test_words_and_lines_stand_out(colours):
    words = {"paper": "ink quiet accent", "card": "ink quiet good bad odd right", "grid": "ink quiet",
             "right-paper": "ink right", "remedy": "ink"}  # fmt: skip
    pairs = [(word, behind, 4.5) for behind, over in words.items() for word in over.split()]
    for over, behind, enough in [*pairs, *((f"c{number}", "card", 3) for number in range(COLOURS))]:
        low, high = sorted(float(light(colours[name]) @ [0.2126, 0.7152, 0.0722]) for name in (over, behind))
        assert (high + 0.05) / (low + 0.05) >= enough, f"{over} on {behind}"


@SCREEN
@pytest.mark.parametrize("eye", SEEN)
def test_lines_are_told_apart_by_every_eye(colours, eye):
    seen = [lab(np.array(SEEN[eye]) @ light(colours[f"c{number}"])) for number in range(COLOURS)]
    near = min(np.linalg.norm(one - other) for one, other in combinations(seen, 2))
    assert near > 15, "2 is the least that is seen side by side"


def test_where_it_is_written(write_run, tmp_path, monkeypatch):
    one, two = write_run("a/seed0"), write_run("b/seed0")
    assert write_report([one]) == one / "report.html"
    assert write_report([one, two]) == (tmp_path / "runs").resolve() / "report.html"
    monkeypatch.chdir(tmp_path)
    assert write_report([one, two]) == Path("runs/report.html")
    assert [run.name for run in read_runs([one, two])] == ["a/seed0", "b/seed0"]
