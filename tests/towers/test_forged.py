"""Towers of a stranger: every kind of forgery is refused once, before anything runs or in the first run."""

import base64
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tower_cases import (
    SIDE,
    WIDTH,
    WORDS,
    change_description,
    floats,
    of_pixels,
    of_tokens,
    sums,
    weights,
    with_graph,
    write_towers,
)  # fmt: skip

from selhn.base.errors import Damaged, Linked, SelhnError
from selhn.towers import Towers, first_run, onnx_check
from selhn.towers.graph import _field, _integer
from selhn.towers.tokenizer import read_tokenizer
from selhn.towers.words import word_tokenizer


def refused(folder, words=None):
    with pytest.raises(Damaged, match=words):
        Towers.open(folder)


def set_at(*path):
    *outer, (name, value) = path

    def change(content):
        for key in outer:
            content = content[key]
        content[name] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_at(("format", 1)), set_at(("format", "2")), set_at(("width", 0)), set_at(("width", 2**40)),
        set_at(("width", True)), set_at(("score", "cosine")), set_at(("name", None)), set_at(("name", "n" * 999)),
        set_at(("sha256", [])), set_at(("sha256", {"image.onnx": "0"})), set_at(("bank", "../bank.npy")),
        set_at(("bank", "unlisted.npy")), set_at(("pictures", None)), set_at(("cutoff", {"counts": {"a": 1}})),
        set_at(("cutoff", {"counts": {"a": 0.5}, "offset": [1] * 4, "slope": [1] * 4})),
        set_at(("cutoff", {"counts": {}, "offset": [1] * 4, "slope": [float("nan")] * 4})),
        set_at(("name", "a\x1b[2Jb")), set_at(("name", "\udcff")), set_at("image", ("features", "\udcff")),
        set_at("image", ("file", "/etc/passwd")), set_at("image", ("file", "towers.json")),
        set_at("image", ("input", "sound")), set_at("image", ("inputs", ["a", "b"])), set_at("image", ("mirror", True)),
        set_at("image", ("parts", {"output": "p", "boxes": [[0, 0, 2, 1]]})),
        set_at("image", ("parts", {"output": "p", "boxes": [[0, 0, 10**400, 1]]})),
        set_at("image", ("parts", {"output": "p", "boxes": []})),
        set_at("pictures", ("size", [8])), set_at("pictures", ("size", [8, 10**6])),
        set_at("pictures", ("mean", [10**400] * 3)), set_at("pictures", ("deviation", [0, 1, 1])),
        set_at("pictures", ("resampling", "sharp")), set_at("pictures", ("rotate", 90)),
        set_at("text", ("special", [-1])), set_at("text", ("special", [2**40])), set_at("text", ("max_length", 0)),
        set_at("text", ("pad_to", 2**20)), set_at("text", ("pad_id", -1)), set_at("text", ("inputs", [1, 2])),
        set_at("text", ("tokenizer", ["t"])),
    ],
)  # fmt: skip
def test_values_are_checked(folder, change):
    change_description(folder, change)
    refused(folder)


@pytest.mark.parametrize("side", ["image", "text"])
def test_networks_are_onnx(folder, side):
    """onnxruntime chooses by the name how it reads a file, and one file can be valid in both ways."""
    (folder / f"{side}.onnx").rename(folder / f"{side}.ort")
    change_description(folder, lambda content: content.update(sha256=sums(folder)))
    change_description(folder, set_at(side, ("file", f"{side}.ort")))
    refused(folder, "onnx")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2}', "[" * 10**5, "\udcff"])
def test_what_is_no_description(folder, text):
    (folder / "towers.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(folder)


def test_a_description_has_a_size(folder, monkeypatch):
    monkeypatch.setattr("selhn.towers.description.MOST_BYTES", 100)
    refused(folder, "too many")


@pytest.mark.parametrize("name", ["towers.json", "image.onnx", "tokenizer.json", "bank.npy"])
@pytest.mark.parametrize("kind", ["link", "pipe", "missing", "changed"])
def test_files_are_plain_and_what_was_written(folder, tmp_path, name, kind):
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        (tmp_path / "outside").write_bytes(content)
        path.symlink_to(tmp_path / "outside")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    if kind in ("link", "pipe"):
        with pytest.raises(Linked):
            Towers.open(folder)
    else:
        with pytest.raises(SelhnError):
            Towers.open(folder)


def test_files_that_are_not_listed_are_not_opened(folder):
    (folder / "notes.txt").symlink_to("/etc/passwd")
    assert Towers.open(folder).embed_texts(["a dog"]).shape == (1, WIDTH)


def test_a_folder_has_a_size(folder, monkeypatch):
    monkeypatch.setattr("selhn.towers.towers.MOST_FOLDER_BYTES", 100)
    refused(folder, "too many")


def node(*words, **attributes):
    return helper.make_node(*words, **attributes)


def with_branch():
    inner = helper.make_graph(
        [node("Identity", ["image_vector"], ["y"])], "inner", [], [floats("y", "B", WIDTH)]
    )
    return of_pixels(extra=[node("If", ["yes"], ["chosen"], then_branch=inner, else_branch=inner)])


def with_function():
    function = helper.make_function(
        "mine", "Twice", ["x"], ["y"], [node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    return of_pixels(functions=[function])


def of_large_tensor(change):
    def alter(model):
        change(model.graph.initializer[0])

    return with_graph(of_pixels(), alter)


def with_sparse(model):
    model.graph.sparse_initializer.add().dims.extend([10**9])


def external(location="image.data", length=None, offset="0"):
    def change(tensor):
        size = len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": location, "offset": offset, "length": str(size if length is None else length)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)

    return of_large_tensor(change)


def constant(**tensor):
    return of_pixels(extra=[node("Constant", [], ["more"], value=TensorProto(**tensor))])


def above_32_bits(number):
    """The key of a field with bytes, which readers of 32 bits see in another way than those of 64."""
    return _integer((number << 3 | 2) + 2**32)


def hidden_domain():
    run = node("Gelu", ["image_vector"], ["y"]).SerializeToString() + above_32_bits(7) + b"\x0dcom.microsoft"
    model = onnx.load_model_from_string(of_pixels())
    network = model.graph.SerializeToString() + _field(1, run)
    model.ClearField("graph")
    return model.SerializeToString() + _field(7, network)


def hidden_axes():
    """No number for this check, 10^9 for others, to whom a fixed number of 32 bits is no axis."""
    tensor = TensorProto(data_type=1, dims=[10**9], name="more").SerializeToString() + b"\x0d" + bytes(4)
    model = onnx.load_model_from_string(of_pixels())
    network = model.graph.SerializeToString() + _field(5, tensor)
    model.ClearField("graph")
    return model.SerializeToString() + _field(7, network)


def hidden_place():
    entry = _field(1, "location") + _field(2, "../outside")
    tensor = (
        _field(1, 1)
        + _field(2, 1)
        + _field(8, "W")
        + _field(13, entry)
        + _field(14, 2**32 + 1)
        + _field(5, 7)
    )
    model = onnx.load_model_from_string(of_pixels())
    del model.graph.initializer[0]
    network = model.graph.SerializeToString() + _field(5, tensor)
    model.ClearField("graph")
    return model.SerializeToString() + _field(7, network)


def twice_the_value():
    """Readers of protocol buffers put two values of one field together: 10^5 x 10^5 numbers."""
    one = helper.make_attribute("value", TensorProto(data_type=1, dims=[10**5], raw_data=bytes(4 * 10**5)))
    both = onnx.AttributeProto()
    both.ParseFromString(one.SerializeToString())
    return both.SerializeToString() + one.SerializeToString()


FORGED = {
    "operators of others": lambda: of_pixels(extra=[node("Run", ["image_vector"], ["y"], domain="com.evil")]),
    "operators of onnxruntime's own": lambda: of_pixels(
        extra=[node("Gelu", ["image_vector"], ["y"], domain="com.microsoft")]
    ),
    "operators of others, only named": lambda: of_pixels(domains=("", "com.evil")),
    "operators of another time": lambda: with_graph(
        of_pixels(), lambda model: setattr(model.opset_import[0], "version", 99)
    ),
    "no operators": lambda: with_graph(of_pixels(), lambda model: model.ClearField("opset_import")),
    "another format": lambda: with_graph(of_pixels(), lambda model: setattr(model, "ir_version", 99)),
    "a network in a node": with_branch,
    "a function": with_function,
    "no network": lambda: with_graph(of_pixels(), lambda model: model.ClearField("graph")),
    "two networks": lambda: of_pixels() + of_pixels(),
    "more declared than held": lambda: of_large_tensor(lambda tensor: tensor.dims.__setitem__(0, 10**9)),
    "more numbers declared than held": lambda: constant(data_type=1, dims=[10**9], float_data=[1.0]),
    "nothing held": lambda: constant(data_type=1, dims=[10**9]),
    "negative axes": lambda: constant(data_type=1, dims=[-1, -1], raw_data=bytes(4)),
    "too many axes": lambda: constant(data_type=1, dims=[1] * 99, raw_data=bytes(4)),
    "texts": lambda: constant(data_type=8, dims=[1], string_data=[b"a"]),
    "an unknown type": lambda: constant(data_type=99, dims=[1], raw_data=bytes(4)),
    "sparse weights": lambda: with_graph(of_pixels(), with_sparse),
    "weights in a file outside": lambda: external("../../outside"),
    "weights in a file that is not listed": lambda: external("image.unlisted"),
    "weights in a file of another name": lambda: external("text.onnx"),
    "weights beyond the end": lambda: external(offset="99999"),
    "fewer weights than declared": lambda: external(length=4),
    "weights at no place": lambda: external(offset="-1"),
    "an empty file": lambda: b"",
    "a file that is cut off": lambda: of_pixels()[:-9],
    "noise": lambda: bytes(range(256)) * 9,
    "groups of long ago": lambda: b"\x0b\x0c",
    "a field that others see": hidden_domain,
    "a place that others see": hidden_place,
    "axes that others see": hidden_axes,
    "a field without a number": lambda: b"\x00\x00" + of_pixels(),
    "an endless number": lambda: b"\xff" * 99,
}


@pytest.mark.parametrize("how", FORGED)
def test_networks_are_checked_before_they_run(tmp_path, monkeypatch, how):
    def never(folder, size):
        raise AssertionError("it must not run")

    monkeypatch.setattr("selhn.towers.towers.first_run", never)
    weights_beside = weights("W", 3 * SIDE * SIDE, WIDTH).raw_data
    folder = write_towers(
        tmp_path / "towers", files={"image.onnx": FORGED[how](), "image.data": weights_beside}.items()
    )
    refused(folder, "image.onnx")


def test_weights_in_a_listed_file(tmp_path):
    weights_beside = weights("W", 3 * SIDE * SIDE, WIDTH).raw_data
    plain = Towers.open(write_towers(tmp_path / "plain"))
    folder = write_towers(
        tmp_path / "towers", files={"image.onnx": external(), "image.data": weights_beside}.items()
    )
    pixels = [np.ones((3, SIDE, SIDE), "f4")]
    assert np.array_equal(Towers.open(folder).embed_prepared(pixels), plain.embed_prepared(pixels))


def test_one_attribute_has_one_value(tmp_path):
    node_bytes = b"\x22\x08Constant" + b"\x12\x01y"
    value = twice_the_value()
    length = []
    size = len(value)
    while size >= 128:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    node_bytes += b"\x2a" + bytes(length) + value
    parsed = onnx.NodeProto.FromString(node_bytes)
    assert list(parsed.attribute[0].t.dims) == [10**5, 10**5]
    path = tmp_path / "a.onnx"
    budget = onnx_check.Budget(path, {})
    with pytest.raises(Damaged, match="two values"):
        onnx_check._check_node(memoryview(node_bytes), budget)


def test_the_number_of_entries_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "many.onnx"
    path.write_bytes(b"\x08\x08" * 5000)
    monkeypatch.setattr(onnx_check, "Budget", partial(onnx_check.Budget, fields=1000))
    with pytest.raises(Damaged, match="entries"):
        onnx_check.check_graph(path, {})


def test_the_sum_of_weights_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(onnx_check, "Budget", partial(onnx_check.Budget, weights=1000))
    refused(folder, "weights")


# Harmless to read, harmful to run


def grows(numbers):
    """A node of a few bytes that makes `numbers` zeros."""
    shape = numpy_helper.from_array(np.array([numbers]), "shape")
    data = of_pixels(
        extra=[
            node("ConstantOfShape", ["shape"], ["zeros"]),
            node("ReduceSum", ["zeros", "none"], ["nothing"], keepdims=0),
            node("Add", ["image_vector", "nothing"], ["grown"]),
        ]
    )

    def change(model):
        model.graph.initializer.extend([shape, numpy_helper.from_array(np.array([0]), "none")])
        model.graph.output[0].name = "grown"

    return with_graph(data, change)


def renamed(content):
    content["image"]["output"] = "grown"


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(first_run, "MEMORY", 2**29)


def test_memory_of_the_first_run(tmp_path, small_limits):
    folder = write_towers(tmp_path / "towers", files=[("image.onnx", grows(10**4))])
    change_description(folder, renamed)
    assert Towers.open(folder).embed_prepared([np.ones((3, SIDE, SIDE), "f4")]).shape == (1, WIDTH)
    folder = write_towers(tmp_path / "large", files=[("image.onnx", grows(2**31))])
    change_description(folder, renamed)
    refused(folder, "first run")
    assert not list((tmp_path / "cache" / "selhn" / "towers").glob(".*"))


def test_time_of_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr(first_run, "SECONDS", 1)
    folder = write_towers(tmp_path / "towers")
    data = of_pixels(
        extra=[
            node("MatMul", ["large", "large"] if n == 0 else [f"y{n - 1}", "large"], [f"y{n}"])
            for n in range(200)
        ]
        + [
            node("ConstantOfShape", ["shape"], ["large"]),
            node("ReduceMax", ["y199"], ["most"], keepdims=0),
            node("Add", ["image_vector", "most"], ["grown"]),
        ]
    )

    def change(model):
        nodes = list(model.graph.node)
        del model.graph.node[:]
        first = next(n for n in nodes if n.op_type == "ConstantOfShape")
        model.graph.node.extend([first, *(n for n in nodes if n is not first)])
        model.graph.initializer.append(numpy_helper.from_array(np.array([2500, 2500]), "shape"))
        model.graph.output[0].name = "grown"

    (folder / "image.onnx").write_bytes(with_graph(data, change))
    change_description(folder, renamed)
    change_description(folder, lambda content: content.update(sha256=sums(folder)))
    start = time.monotonic()
    refused(folder, "first run")
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    "change",
    [
        set_at(("width", 3)), set_at("image", ("output", "other")), set_at("image", ("inputs", ["other"])),
        set_at("pictures", ("size", [9, 9])), set_at("text", ("inputs", ["token_mask", "tokens"])),
        set_at("image", ("parts", {"output": "image_vector", "boxes": [[0, 0, 1, 1]]})),
    ],
)  # fmt: skip
def test_vectors_are_what_the_description_says(tmp_path, change):
    folder = write_towers(tmp_path / "towers")
    change_description(folder, change)
    refused(folder, "first run")


def test_vectors_are_numbers(tmp_path):
    data = with_graph(of_tokens(), lambda model: model.graph.initializer[0].ClearField("raw_data"))

    def change(model):
        table = np.full((len(WORDS), WIDTH), np.nan, "f4")
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(table, "E"))

    refused(write_towers(tmp_path / "towers", files=[("text.onnx", with_graph(data, change))]), "NaN")


def test_a_folder_that_passed_is_remembered(tmp_path, monkeypatch):
    folder, runs = write_towers(tmp_path / "towers"), []
    real = first_run.first_run
    monkeypatch.setattr("selhn.towers.towers.first_run", lambda *given: runs.append(real(*given)))
    for _ in range(2):
        Towers.open(folder)
    shutil.copytree(folder, tmp_path / "copy")
    Towers.open(tmp_path / "copy")
    assert len(runs) == 1
    change_description(folder, set_at(("digest", "4567")))
    Towers.open(folder)
    assert len(runs) == 2


def test_without_a_cache_it_is_tried_every_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder, runs = write_towers(tmp_path / "towers"), []
    monkeypatch.setattr("selhn.towers.towers.first_run", lambda *given: runs.append(given))
    Towers.open(folder)
    Towers.open(folder)
    assert len(runs) == 2


class Closed(type(Path())):
    """A file in a folder that is not this user's."""

    def is_file(self):
        raise PermissionError(13, "Permission denied", str(self))


def test_in_a_cache_of_someone_else_nothing_has_passed(tmp_path, monkeypatch):
    folder, runs = write_towers(tmp_path / "towers"), []
    monkeypatch.setattr("selhn.towers.towers.first_run", lambda *given: runs.append(given))
    monkeypatch.setattr(first_run, "_mark", lambda description: Closed(tmp_path / "mark"))
    Towers.open(folder)
    assert len(runs) == 1


# Tokenizers


def forged_tokenizer(change):
    content = json.loads(word_tokenizer(WORDS))
    change(content)
    return json.dumps(content).encode()


TOKENIZERS = {
    "not JSON": b"{",
    "a list": b"[]",
    "no model": forged_tokenizer(lambda content: content.pop("model")),
    "an unknown model": forged_tokenizer(set_at("model", ("type", "Python"))),
    "an own regular expression": forged_tokenizer(set_at("pre_tokenizer", ("pattern", {"Regex": "(a+)+$"}))),
    "an unknown step": forged_tokenizer(set_at(("normalizer", {"type": "Exec"}))),
    "a step without a name": forged_tokenizer(
        set_at(("normalizer", {"pattern": {"String": "q"}, "content": ""}))
    ),
    "an endless setting": forged_tokenizer(set_at("model", ("unk_token", "q" * 999))),
    "ids that are none": forged_tokenizer(set_at("model", ("vocab", {"a": -1, "<unk>": 0}))),
    "ids far apart": forged_tokenizer(set_at("model", ("vocab", {"a": 10**9, "<unk>": 0}))),
    "no pieces": forged_tokenizer(set_at("model", ("vocab", {}))),
    "words of any length": forged_tokenizer(set_at("model", ("max_input_chars_per_word", 10**9))),
    "added tokens that are none": forged_tokenizer(set_at(("added_tokens", [3]))),
    "ids around a text that no piece has": forged_tokenizer(set_at("post_processor", ("sep", ["x", 99]))),
    "an unknown post-processor": forged_tokenizer(set_at(("post_processor", {"type": "Exec"}))),
    "a broken post-processor": forged_tokenizer(set_at(("post_processor", {"type": "BertProcessing"}))),
    "a template that names nothing": forged_tokenizer(
        set_at(("post_processor", {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}))
    ),
}


@pytest.mark.parametrize("how", TOKENIZERS)
def test_tokenizers_are_checked(tmp_path, trusted, how):
    folder = write_towers(tmp_path / "towers", files=[("tokenizer.json", TOKENIZERS[how])])
    with pytest.raises(Damaged, match="tokenizer"):
        Towers.open(folder).embed_texts(["a dog"])


def replaced(pattern, content):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def characters(longest):
    """A table in which no character leads to the one text that it has."""
    return base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + b"q" * longest + b"\0").decode()


def as_bytes(**how):
    return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True, **how}


GROWING = {
    "by doubling": [replaced("q", "qq")] * 30,
    "at once": [replaced("q", "q" * 10**6)],
    "everywhere": [replaced("", "q")],
    "by what letters stand for": [replaced(" ", "\ufdfa"), {"type": "NFKD"}] * 4,
    "by bytes": [as_bytes()] * 30,
    "by a table": [{"type": "Precompiled", "precompiled_charsmap": characters(10**6)}],
    "by a table that is none": [{"type": "Precompiled", "precompiled_charsmap": "?"}],
    "by no table": [{"type": "Precompiled"}],
}


@pytest.mark.parametrize("how", GROWING)
def test_a_text_does_not_grow_without_end(tmp_path, trusted, how):
    steps = {"type": "Sequence", "normalizers": GROWING[how]}
    files = [("tokenizer.json", forged_tokenizer(set_at(("normalizer", steps))))]
    with pytest.raises(Damaged, match="tokenizer"):
        _ = Towers.open(write_towers(tmp_path / "towers", files=files)).tokenizer


def test_a_text_may_grow_as_in_known_models(tmp_path, trusted):
    table = {"type": "Precompiled", "precompiled_charsmap": characters(33)}
    steps = {"type": "Sequence", "normalizers": [table, {"type": "Lowercase"}, replaced(" ", "\u2581")]}
    path = tmp_path / "tokenizer.json"
    path.write_bytes(forged_tokenizer(set_at(("normalizer", steps))))
    assert read_tokenizer(path)[0]["normalizer"] == steps


def test_a_text_needs_room_for_a_word(tmp_path, trusted):
    folder = write_towers(tmp_path / "towers", text={"max_length": 2})
    with pytest.raises(Damaged, match="no token for words"):
        Towers.open(folder).embed_texts(["a dog"])


def test_a_bank_fits(tmp_path, trusted):
    for name, array in (
        ("wide", np.ones((2, 9), "f4")),
        ("objects", np.array([[object()]])),
        ("flat", np.ones(9)),
    ):
        folder = write_towers(tmp_path / name, bank=True)
        np.save(folder / "bank.npy", array, allow_pickle=True)
        change_description(folder, lambda content, folder=folder: content.update(sha256=sums(folder)))
        with pytest.raises(SelhnError, match="bank"):
            _ = Towers.open(folder).bank
