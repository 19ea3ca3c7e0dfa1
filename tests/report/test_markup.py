import json

import pytest

from selhn.report.markup import Html, data_block, element, together


def test_text_is_escaped_and_html_is_not():
    inner = element("b", "a < b & c")
    assert inner == "<b>a &lt; b &amp; c</b>"
    assert element("td", inner, " <script>", class_="x") == '<td class="x"><b>a &lt; b &amp; c</b> &lt;script&gt;</td>'
    assert together("<", Html("<br>")) == "&lt;<br>"


def test_attributes():
    written = element("img", alt='" onerror="alert(1)', src=None, data_row=3, aria_hidden="true")
    assert written == '<img alt="&quot; onerror=&quot;alert(1)" data-row="3" aria-hidden="true">'


def test_what_strings_make_of_html_is_text_again():
    assert together(element("b") + "x") == "&lt;b&gt;&lt;/b&gt;x"


def test_a_data_block_cannot_be_ended_from_inside():
    value = {"name": "</script><script>alert(1)</script>", "numbers": [0.5, None]}
    block = data_block("numbers", value)
    assert block.count("<") == 2
    assert json.loads(block.split(">", 1)[1].rsplit("<", 1)[0]) == value
    with pytest.raises(ValueError, match="JSON compliant"):
        data_block("numbers", float("nan"))
