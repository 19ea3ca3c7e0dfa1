"""Requests and responses of the API; the OpenAPI description is made from them."""

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import HTTPException, Request
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, computed_field

from selhn.pictures.library import TEXT_WEIGHT
from selhn.search import Hit, Query
from selhn.search.items import MATCH, Order

PICTURE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The bytes of a JPEG, PNG, WebP, AVIF, HEIC, GIF, BMP, TIFF or RAW file.",
        "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def read_picture(request: Request) -> bytes:
    """The body, if its content type is that of a picture."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("image/"):
        found = f"the body has the content type {kind[:80] or 'none'}"
        raise HTTPException(415, f"{found}: send a picture, Content-Type: image/jpeg")
    return await request.body()


class Filter(BaseModel):
    """A filter on metadata."""

    model_config = ConfigDict(extra="forbid")
    where: Annotated[str | None, Field(description='A filter: year >= 2020 and folder = "trip"')] = None


class SearchRequest(Filter):
    """A sentence, an item, or both; a picture in the body of a POST is added to them."""

    text: Annotated[str | None, Field(description='A sentence; in "dog -snow" snow is not wanted.')] = None
    like: Annotated[str | None, Field(description="The id of an item.")] = None
    k: Annotated[int, Field(ge=1, description="Number of answers.")] = 24
    find: Annotated[Literal["image", "text"], Field(description="Pictures, or captions.")] = "image"
    text_weight: Annotated[
        float | None, Field(description="Weight of the sentence; default 2 beside a picture or an item.")
    ] = None
    like_weight: Annotated[float | None, Field(description="Weight of the item; may be negative.")] = None
    image_weight: Annotated[float | None, Field(description="Weight of the picture in the body.")] = None

    def query(self, image: Float[np.ndarray, " d"] | None) -> Query:
        """The query to the index, with the vector of the picture in the body."""
        given = {"text": self.text_weight, "like": self.like_weight, "image": self.image_weight}
        weights = {part: weight for part, weight in given.items() if weight is not None}
        typed = Query() if self.text is None else Query.minus(self.text)
        if typed.text is not None and (self.like is not None or image is not None):
            weights.setdefault("text", TEXT_WEIGHT)
        return Query(typed.text, image, self.like, weights, self.where, self.find, self.k, typed.without)


class BrowseRequest(Filter):
    """A page of the items, in the order of adding or by date."""

    order: Annotated[Order | None, Field(description="By date; default is the order of adding.")] = None
    first: Annotated[int, Field(ge=0, le=10**9)] = 0
    number: Annotated[int, Field(ge=1)] = 24


class ItemMessage(BaseModel):
    """An item of the index."""

    id: str
    captions: list[str]
    metadata: dict[str, Any]
    picture: bool
    """Whether /picture has its picture."""


class HitMessage(ItemMessage):
    """An item, or one of its captions, with its score."""

    score: float
    kind: Literal["image", "text"]
    text: str | None = None
    """The caption, with find=text."""
    fit: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="How well a picture matches the sentence; a match from 0.5 on. Absolute: it depends on the "
            "sentence and the picture, not on the other answers. null if unknown: the question is not a sentence "
            "alone, the answers are captions, or the model was not calibrated.",
        ),
    ] = None

    @classmethod
    def of(cls, hit: Hit, picture: bool) -> "HitMessage":
        return cls(**vars(hit), picture=picture, text=hit.name if hit.kind == "text" else None)


class Answers(BaseModel):
    """The best answers, in order of score."""

    answers: list[HitMessage]
    unknown: Annotated[
        list[str],
        Field(
            description="Words of the text that the model has hardly met in training; none if that is not known."
        ),
    ] = []

    @computed_field(  # type: ignore[prop-decorator]
        description="How many of the answers are called matches: the first ones. 0: no sure match. null if unknown."
    )
    @property
    def fits(self) -> int | None:
        known = [hit.fit for hit in self.answers if hit.fit is not None]
        return sum(fit >= MATCH for fit in known) if known else None


class Items(BaseModel):
    """A page of items, and the number of all that match."""

    items: list[ItemMessage]
    total: int
    version: int
    """Changes whenever the index does; positions can only be compared within one version."""


class TimelineRequest(Filter):
    """The items of the timeline."""

    order: Order = "newest"
    layout: Annotated[bool, Field(description="Days and shapes too, for a page that draws all items.")] = (
        False
    )


class MonthMessage(BaseModel):
    """A month, 2019-06, or nothing for items without a date, and its number of items."""

    month: str
    count: int


class TimelineMessage(BaseModel):
    """Number of items per month."""

    total: int
    months: list[MonthMessage]
    version: int
    days: list[tuple[str, int]] | None = None
    """With layout=true: the days in their order, 2019-06-14, each with its number of items."""
    shapes: list[int] | None = None
    """With layout=true: 100 * width / height of every item in order, 0 if unknown."""


class AlikeMessage(BaseModel):
    """Pictures that are almost the same, the largest first."""

    kind: Literal["copies", "burst"]
    """A burst was taken one after the other within seconds."""
    count: int
    items: list[ItemMessage]
    """At most as many as the service's limit of answers."""


class DuplicatesMessage(BaseModel):
    """Groups of pictures that are almost the same, newest first."""

    state: Literal["ready", "computing"]
    """computing: ask again in a second; there are no groups yet."""
    share: float
    """How much of the work is done, from 0 to 1."""
    total: int
    """Number of groups."""
    spare: int
    """Number of pictures in all groups, without the first of each."""
    groups: list[AlikeMessage]


class Added(BaseModel):
    """The id that a picture was given."""

    id: str


class ItemChange(BaseModel):
    """New captions or metadata of an item; a field that is left out stays unchanged."""

    model_config = ConfigDict(extra="forbid")
    captions: list[str] | None = None
    metadata: dict[str, Any] | None = None


class FieldValue(BaseModel):
    """A value of a metadata field, and the number of items that have it."""

    value: str | bool | int | float
    count: int


class ModelMessage(BaseModel):
    """A model that the service uses."""

    name: str
    role: Literal["search", "attention"]
    digest: str
    width: int | None = None
    precision: str | None = None
    extractor: str | None = None


class Can(BaseModel):
    """What this service can do."""

    search: bool
    ask_with_pictures: bool
    show_pictures: bool
    look: bool
    duplicates: bool
    albums: bool
    write: bool
    runs: bool


class About(BaseModel):
    """What is served."""

    name: str
    version: str
    items: int
    can: Can
    fields: dict[str, list[FieldValue]]
    """Metadata fields to filter by: those with few values that many items share."""
    limits: dict[str, float]
    shown: list[str]
    """Extensions of files that browsers show; `original` gives others as downloads."""


class Health(BaseModel):
    """Whether the service works."""

    status: Literal["ok", "stale"]
    """stale: the index was rebuilt with another model; restart the service."""
    version: str


class LeftOut(BaseModel):
    """A file that is not in the index, and why."""

    file: str
    why: str


class ProgressMessage(BaseModel):
    """How far indexing is."""

    state: Literal["idle", "indexing", "waiting"]
    """waiting: for a folder that is missing, for space on a disk, or for another process."""
    done: int
    total: int
    """Pictures of the folder that is being indexed; 0 if it is not known yet."""
    seconds_left: float | None
    message: str
    """The same for people, or what is wrong; empty if there is nothing to say."""
    items: int = 0
    """Pictures that can be searched now."""
    left_out: int
    files: list[LeftOut] | None = None
    """With files=true: the first thousand files that were left out."""
