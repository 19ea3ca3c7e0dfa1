"""The tables of the paper: its numbers as data, and our runs for each row."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from selhn.training.recipes import SYSTEMS

PAPER = Path(__file__).parent / "paper"
"""The folder of shipped files: the numbers of the tables, and the schematic figures, redrawn."""
RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")
DATA_TITLES: Mapping[str, str] = {"f30k": "Flickr30K", "coco_1k": "MS-COCO 1K", "coco_5k": "MS-COCO 5K"}
TABLES: Mapping[str, str] = {
    "table1": "Three VSE models, three losses",
    "table2": "SelHN on existing models",
    "table3": "Losses that improve training behaviour, VSE (FC)",
    "table4": "Losses proposed for image-text matching",
    "table5": "State of the art, Flickr30K",
    "table6": "State of the art, MS-COCO 1K",
    "table7": "SelHN on existing models, single and ensemble",
    "table8": "SelHN on existing models, MS-COCO 1K",
    "table9": "SelHN on existing models, MS-COCO 5K",
    "table10": "Losses that improve training behaviour, MS-COCO 1K",
    "table11": "State of the art, MS-COCO 5K",
}
"""In the order of the paper; from table7 on, those of its appendix."""


@dataclass(frozen=True)
class PaperRow:
    """A row of a table of the paper; a number that it does not report is None."""

    table: str
    data: str
    """A key of `DATA_TITLES`."""
    method: str
    loss: str
    """Empty if the paper does not say."""
    kind: str
    """One model or the averaged scores of two: "single" or "ensemble"; empty if not known."""
    recalls: tuple[float | None, ...]
    rsum: float | None
    note: str

    def applies_to(self, data: str) -> bool:
        """Whether runs on a data set fill this row: the paper's two data sets fill their own, others all."""
        return data not in ("f30k", "coco") or self.data.startswith(data)


def paper_rows(table: str | None = None) -> list[PaperRow]:
    """The rows of a table, or of all."""
    with (PAPER / "tables.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            PaperRow(
                table=f"table{row['table']}",
                **{name: row[name] for name in ("data", "method", "loss", "kind", "note")},
                recalls=tuple(float(row[name]) if row[name] else None for name in RECALLS),
                rsum=float(row["rsum"]) if row["rsum"] else None,
            )
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if table in (None, row.table)]


@dataclass(frozen=True)
class Wanted:
    """A run: the recipe it follows, and settings as `selhn train` takes them; the name is its folder's."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    further_seed: int = 0
    """Added to the seeds, for a second run of the same settings."""
    start: "Wanted | None" = None
    """The run whose weights this one starts from."""


def recipe(name: str) -> Wanted:
    """A recipe without changes."""
    return Wanted(name, name)


VSEPP = Wanted("vsepp_hn", "vse_fc_hn", ("model=vsepp", "epochs=30", "lr=2e-4", "decay_at=[15]"))
VSE_INFTY = Wanted(
    "vse_infty_bert_warmup", "rvsepp_selhn", ("model=vse_infty_bert", "loss=warmup", "epochs=25")
)
"""Chen et al. average over the negatives in the first epoch and take the hardest from then on."""
CAMP = Wanted(
    "camp_bce_all",
    "camp_bce_max",
    ("loss=bce_all", "loss.reduction=mean"),
    start=recipe("camp_stage1_bce_max"),
)
"""Official: the hardest negative in every stage. On small data the gated form then stays at 2 ln 2 per anchor, so its
loss here is the authors' other one, over all negatives."""
LOSSES = {"Triplet": "triplet", "T-HN": "hn", "SelHN": "selhn"}
"""The losses of Table 1 by their recipe names; with any other loss, a model uses SelHN's recipe."""
MODELS: Mapping[str, tuple[str, ...]] = {
    **{system.title.casefold(): (name,) for name, system in SYSTEMS.items()},
    "rvse++": ("rvsepp",),
    "scan": ("scan_t2i_avg", "scan_i2t_avg"),
    "bfan": ("bfan_equal", "bfan_prob"),
    "sgraf": ("saf", "sgr"),
}
"""The models of a method, in lower case: the recipes have the titles of single ones, and these are the ensembles."""


def _run(model: str, loss: str) -> Wanted:
    loss = loss or "T-HN"  # used by systems of other authors where the paper does not say
    if loss in LOSSES:
        return recipe(f"{model}_{LOSSES[loss]}")
    ours = loss.lower().replace("-", "_")
    return Wanted(f"{model}_{ours}", f"{model}_selhn", (f"loss={ours}",))


RUNS: Mapping[tuple[str, str], tuple[Wanted, ...]] = {
    **{
        (row.method, row.loss): tuple(_run(model, row.loss) for model in MODELS[row.method.casefold()])
        for row in paper_rows()
        if row.method.casefold() in MODELS
    },
    ("SGRAF", "NCR"): (Wanted("sgr_ncr", "sgr_selhn", ("loss=ncr", "loss.reduction=sum")),),
    ("VSE-infinity", "T-HN"): (VSE_INFTY,),
    ("VSRN", ""): (recipe("vsrn_hn"), Wanted("vsrn_hn_again", "vsrn_hn", further_seed=100)),
    ("CAMP", ""): (CAMP,),
    ("GSMN", ""): (recipe("gsmn_dense_hn"), Wanted("gsmn_sparse_hn", "gsmn_sparse_hn", further_seed=100)),
    ("NAAF", ""): (recipe("naaf_hn"), Wanted("naaf_hn_apart", "naaf_hn", ("model.intra_lambda=null",))),
}
"""Method and loss of a row, and the runs that correspond to it; the scores of several are averaged. The SCAN of the
paper's ensemble with SelHN is not named: we take the two that its appendix lists. VSRN averages two runs of the same
settings, NAAF one that judges words that are alike together and one that does not. GSMN's two have seeds of their own:
without a parse they are the same model. NCR averages two networks of one
kind, and sums over the batch: with clipping, the gradient is then as long after the warm-up as before. Rows that are
not here are not reproduced yet."""
