"""Example retrievals on the page: a sentence with the images found for it, an image with its sentences."""

from collections.abc import Mapping

from selhn.report.examples import ANSWERS, Answer, Direction, Example, Examples
from selhn.report.markup import Html, element, together
from selhn.report.pictures import PictureOf

TITLES: dict[Direction, str] = {"t2i": "Text to images", "i2t": "Image to texts"}


def gallery(examples: Examples, picture: PictureOf) -> Html:
    """Both directions, answered queries before those that are not."""
    split, size = examples.split, examples.split.num_images
    which = f"all {size:,} images" if size == examples.whole.num_images else f"the first {size:,} images"
    intro = (
        f"The best weights of {examples.run.name}, on {which} of {split.name}. Queries are spread evenly over the "
        "split, by their places alone. A right answer has a thick frame and a tick."
    )
    parts = [element("p", intro)]
    if examples.in_the_way:
        parts.append(element("p", f"Not compared: {reasons(examples.in_the_way)}.", class_="quiet"))
    for direction, title in TITLES.items():
        right, of = examples.first[direction]
        parts.append(element("h3", title))
        parts.append(element("p", f"A right answer comes first for {right:,} of {of:,} queries.", class_="quiet"))
        for words, shown in (("Found", examples.found[direction]), ("Missed", examples.missed[direction])):
            drawn = [_example(one, direction, examples, picture, words) for one in shown]
            none = element("p", f"{words}: no query.", class_="quiet")
            parts.append(element("div", *drawn, class_=f"examples {direction}") if drawn else none)
    return together(*parts)


def reasons(in_the_way: Mapping[str, str]) -> str:
    """Why runs have no examples."""
    return "; ".join(f"{name} ({why})" for name, why in in_the_way.items())


def _example(example: Example, direction: Direction, examples: Examples, picture: PictureOf, words: str) -> Html:
    split = examples.split
    place = f"{words}: the first right answer is in place {example.place:,}"
    others = [f"{name} has it in place {where:,}" for name, where in example.elsewhere]
    said = element("p", element("strong", place), *(f"; {one}" for one in others), ".", class_="said")
    if direction == "t2i":
        query = element("blockquote", split.captions[example.query], dir="auto")
        shown = element("ol", *(_image(one, examples, picture) for one in example.answers), class_="hits")
    else:
        query = element("div", _shown(example.query, examples, picture), class_="asked")
        shown = element("ol", *(_text(one, examples) for one in example.answers), class_="texts")
    return element("article", element("div", query, shown, class_="pair"), said, class_=f"card example {words.lower()}")


def _image(answer: Answer, examples: Examples, picture: PictureOf) -> Html:
    return element("li", _shown(answer.row, examples, picture), _label(answer), class_=_kind(answer))


def _text(answer: Answer, examples: Examples) -> Html:
    caption = element("span", examples.split.captions[answer.row], dir="auto", class_="caption")
    return element("li", _label(answer), caption, class_=_kind(answer))


def _shown(row: int, examples: Examples, picture: PictureOf) -> Html:
    """The picture of an image, or where there is none its name and a text."""
    name, caption = examples.split.image_names[row], _first_text(examples, row)
    address = picture(row)
    if address is not None:
        return element("img", src=address, alt=f"{name}: {caption}" if caption else name)
    said = element("span", caption, dir="auto") if caption else Html()
    return element("span", element("span", name, class_="name"), said, class_="no-picture")


def _first_text(examples: Examples, row: int) -> str | None:
    own = (examples.split.image_of_text == row).nonzero()[:1, 0].tolist()
    return examples.split.captions[own[0]] if own else None


def _label(answer: Answer) -> Html:
    right = element("span", "✓ right", class_="tick-right") if answer.right else Html()
    return element(
        "span", element("span", f"{answer.place:,}."), element("span", f"{answer.score:.3f}"), right, class_="label"
    )


def _kind(answer: Answer) -> str | None:
    names = [name for name, holds in (("right", answer.right), ("far", answer.place > ANSWERS)) if holds]
    return " ".join(names) or None
