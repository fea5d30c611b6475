"""What a chain looks like: stages, features, shapes, dtypes; safe to show whatever features are called."""

from __future__ import annotations

import html.parser

import numpy as np
import torch

from trw_pipeline.sequences.description import layout_of
from trw_pipeline.sequences.samplers import SamplerSequential
from trw_pipeline.sequences.sequence import SequenceArray

HOSTILE = "<script>alert('&\"')</script>\n"


def images():
    split = {"image": np.zeros((6, 28, 28), np.float32), "name": list("abcdef"), "spacing": 0.5}
    return SequenceArray(split, SamplerSequential())


def test_each_stage_shows_what_it_gave():
    chain = images().map(lambda batch: {"mean": batch["image"].mean((1, 2))}, name="mean").batch(4)
    next(iter(chain))
    features = "image: (N, 28, 28) float32; name: list of N str; spacing: float, batch-wide; sample_uid: (N,) int64"
    assert chain.describe().splitlines() == [
        "SequenceArray(6 samples of image, name, spacing, sample_uid; SamplerSequential(); state: by index)",
        f"      gives {features}",
        "  .map(mean, inline)",
        "      gives mean: (N,) float32",
        "  .batch(4)",
        "      gives mean: (N,) float32 tensor",
    ]


def test_before_the_first_item_only_stages_are_shown():
    ran = []
    chain = images().map(lambda batch: ran.append(batch) or batch)
    assert chain.describe().splitlines() == [line.rstrip() for line in repr(chain).splitlines()]
    assert ran == []


def test_what_was_seen_stays_known_in_the_next_epoch():
    chain = images().batch(2)
    next(iter(chain))
    iter(chain)
    assert "gives" in chain.describe()


def test_a_sample_is_made_by_another_chain():
    made = []
    chain = images().max_samples(2).map(lambda batch: made.append(1) or batch)
    text = chain.describe(sample=True)
    assert text.count("gives") == 3
    assert len(made) == 1
    assert [name for batch in chain for name in batch["name"]] == ["a", "b"]  # the chain itself has not moved
    assert chain._next_epoch == 1


def test_features_of_each_kind():
    item = {
        "tensor": torch.zeros(3, 2),
        "array": np.zeros((3,), np.uint8),
        "table": np.zeros((5, 2)),
        "names": ["a", "b", "c"],
        "others": [1, 2],
        "none": [],
        "spacing": 0.5,
        "scalar": np.float32(1),
    }
    assert layout_of(item) == [
        "tensor: (N, 2) float32 tensor",
        "array: (N,) uint8",
        "table: (5, 2) float64",
        "names: list of N str",
        "others: list of 2 int",
        "none: list of 0",
        "spacing: float, batch-wide",
        "scalar: float32, batch-wide",
    ]


def test_items_that_are_no_batches():
    assert layout_of([{"x": np.zeros(1)}, {}]) == ["list of 2 times", "x: (N,) float64"]
    assert layout_of([]) == ["list of 0"]
    assert layout_of(3) == ["int"]
    assert layout_of(np.zeros((4, 2))) == ["(4, 2) float64"]
    assert layout_of({}) == []


def test_an_item_that_can_not_be_described_passes_all_the_same():
    class Odd(dict):
        def items(self):
            raise RuntimeError("not yet")

    chain = images().map(lambda batch: batch).collate(lambda batch, device: Odd(batch))
    assert len(list(chain)) == 6
    assert chain.describe().splitlines()[-1] == "      gives Odd, which can not be described"


class Reader(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, *attributes))

    def handle_data(self, data):
        self.texts.append(data)


def test_a_hostile_name_is_shown_and_not_obeyed():
    chain = SequenceArray({HOSTILE: np.zeros(2)}, SamplerSequential()).map(lambda batch: batch, name=HOSTILE)
    next(iter(chain))
    reader = Reader(chain._repr_html_())
    assert {tag for tag, *_ in reader.tags} == {"table", "thead", "tbody", "tr", "th", "td", "code", "br"}
    assert all(len(tag) == 1 for tag in reader.tags)
    assert f"{HOSTILE!r}: (N,) float64" in reader.texts
    assert "\n" not in chain.describe().splitlines()[1]


def test_html_shows_a_row_for_each_stage():
    chain = images().batch(2)
    assert chain._repr_html_().count("<tr>") == 3
