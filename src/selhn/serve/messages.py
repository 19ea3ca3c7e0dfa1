"""What goes over the line: the shapes of questions and answers, which are also the page of the API."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from selhn.search import Hit, Record


class Filter(BaseModel):
    """A filter on metadata."""

    model_config = ConfigDict(extra="forbid")
    where: Annotated[str | None, Field(description='A filter such as: year >= 2020 and folder = "trip"')] = None


class Asked(Filter):
    """A question: a sentence, an item, or both; with a picture as the body of a POST, all three count."""

    text: Annotated[str | None, Field(description="A sentence.")] = None
    like: Annotated[str | None, Field(description="The id of an item.")] = None
    k: Annotated[int, Field(ge=1, description="Number of answers.")] = 24
    find: Annotated[Literal["image", "text"], Field(description="What to find: pictures, or captions.")] = "image"
    text_weight: Annotated[
        float | None, Field(description="How much the sentence counts where a picture counts 1; 2 unless said.")
    ] = None
    like_weight: Annotated[float | None, Field(description="How much the item counts; may be negative.")] = None
    image_weight: Annotated[float | None, Field(description="How much the picture that was sent counts.")] = None

    def weights(self) -> dict[str, float]:
        """Those that were given, by the parts of a query."""
        given = {"text": self.text_weight, "like": self.like_weight, "image": self.image_weight}
        return {part: weight for part, weight in given.items() if weight is not None}


class Browsed(Filter):
    """Some items in their order."""

    first: Annotated[int, Field(ge=0, le=10**9)] = 0
    number: Annotated[int, Field(ge=1)] = 24


class ItemMessage(BaseModel):
    """An item of the index."""

    id: str
    captions: list[str]
    metadata: dict[str, Any]
    picture: bool
    """Whether /picture has something to show."""

    @classmethod
    def of(cls, record: Record, picture: bool) -> "ItemMessage":
        """From what the index knows."""
        return cls(id=record.id, captions=list(record.captions), metadata=dict(record.metadata), picture=picture)


class HitMessage(ItemMessage):
    """An answer: an item, or one of its captions, and how well it fits."""

    score: float
    kind: Literal["image", "text"]
    text: str | None = None
    """The caption, where captions were asked for."""

    @classmethod
    def of_hit(cls, hit: Hit, picture: bool) -> "HitMessage":
        """From what search gives."""
        return cls(
            id=hit.id,
            captions=list(hit.captions),
            metadata=dict(hit.metadata),
            picture=picture,
            score=hit.score,
            kind=hit.kind,
            text=hit.name if hit.kind == "text" else None,
        )


class Answers(BaseModel):
    """Hits, the best first."""

    answers: list[HitMessage]


class Items(BaseModel):
    """Some items, and how many there are in all."""

    items: list[ItemMessage]
    total: int


class Added(BaseModel):
    """The id that a picture was given."""

    id: str


class Change(BaseModel):
    """What an item is to have; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")
    captions: list[str] | None = None
    metadata: dict[str, Any] | None = None


class FieldValue(BaseModel):
    """A value that metadata have, and how many items have it."""

    value: str | bool | int | float
    count: int


class ModelMessage(BaseModel):
    """A model in service."""

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
    write: bool
    runs: bool


class About(BaseModel):
    """What is served."""

    name: str
    version: str
    items: int
    can: Can
    fields: dict[str, list[FieldValue]]
    """Metadata to filter by, where few values are shared by many items."""
    limits: dict[str, float]


class Health(BaseModel):
    """Whether the service is well."""

    status: Literal["ok", "stale"]
    """stale: the index was rebuilt with another model; start the service again."""
    version: str


class LookMessage(BaseModel):
    """What the words of a sentence look at in a picture."""

    kind: Literal["attention", "fit"]
    """The attention of a model that has one, or how well each region alone fits each word alone."""
    words: list[str]
    boxes: list[list[float]]
    """x1, y1, x2, y2 as shares of width and height."""
    weights: list[list[float]]
    """One row per word, one column per box."""
    full: float
    """The weight that is drawn in the full colour."""


class RunMessage(BaseModel):
    """A training run."""

    name: str
    changed: float
    """Seconds since 1970 at which its log was last written."""
    finished: bool
    test_rsum: float | None


class RunLog(BaseModel):
    """What the log of a run says from a byte on; steps that lie close together are averaged."""

    steps: list[int]
    columns: dict[str, list[float | None]]
    evaluations: list[dict[str, float]]
    after: int
    more: bool
    anew: bool


class VerdictMessage(BaseModel):
    """What `selhn diagnose` says."""

    kind: str
    since: int | None
    why: str
    evidence: list[str]
    remedy: str
