import pytest
from pydantic import ValidationError

from selhn.search import Hit
from selhn.serve.messages import Answers, HitMessage, SearchRequest


def test_weights_are_named_after_the_parts_of_a_query():
    asked = SearchRequest(text="a", text_weight=2, like_weight=-1, k=7, find="text", where="x = 1").query(
        None
    )
    assert asked.weights == {"text": 2, "like": -1}
    assert (asked.k, asked.find, asked.where) == (7, "text", "x = 1")
    assert SearchRequest(text="a").query(None).weights == {}
    assert SearchRequest(text="a", like="b").query(None).weights == {"text": 2}, "a sentence counts twice"
    without = SearchRequest(text="-a", like="b").query(None)
    assert (without.text, without.without, without.weights) == (None, "a", {})


def test_what_is_not_known_is_refused():
    with pytest.raises(ValidationError):
        SearchRequest(txt="a")


def test_a_caption_is_told_as_a_text_and_an_image_is_not():
    text = HitMessage.of(Hit(0.5, "text", "a dog", (), "1.jpg", {"year": 1}), True)
    assert (text.text, text.id, text.metadata) == ("a dog", "1.jpg", {"year": 1})
    image = HitMessage.of(Hit(0.5, "image", "1.jpg", ("a dog",), "1.jpg"), False)
    assert (image.text, image.captions, image.picture) == (None, ["a dog"], False)


def test_how_many_answers_fit():
    def fits(*found):
        hits = [HitMessage.of(Hit(0.5, "image", "1.jpg", fit=fit), False) for fit in found]
        return Answers(answers=hits).model_dump()["fits"]

    assert (fits(0.9, 0.5, 0.49), fits(0.2, 0.1), fits(None, None), fits()) == (2, 0, None, None)
