"""The outline of a sample's part of the snapshot: filled in later, it is the record made at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genmeter.schema.forms import read_form
from genmeter.schema.snapshot import fill, snapshot_outline, snapshot_record, snapshot_uris

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "samples").glob("*.json"))
_URI = st.sampled_from(["a.png", "b.png", "./a.png", "ü.wav", 'quo"te.png', "\ud800.png", "data:image/png;base64,xx"])
_PART = st.one_of(
    st.builds(lambda uri: {"type": "image_url", "image_url": {"url": uri}}, _URI),
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=3)),
    _URI,
)
_SAMPLES = st.fixed_dictionaries(
    {"id": st.just("a"), "messages": st.lists(st.fixed_dictionaries({"content": st.lists(_PART, max_size=3)}))},
    optional={
        "task_type": st.just("text-to-image"),
        "references": st.lists(st.one_of(_PART, st.fixed_dictionaries({"answer": st.lists(_PART, max_size=2)}))),
        "label": _URI,
        "raw_assets": st.dictionaries(st.sampled_from(["image", "images", "other"]), st.lists(_URI, max_size=2)),
        "metadata": st.just({"set": "x", "other": 1}),
    },
)


def check(sample: dict[str, Any]) -> None:
    uris, outline = snapshot_outline(sample)
    assert uris == snapshot_uris(sample)
    digests = [f'{position} "of" {len(str(uri))} \ud800' for position, uri in enumerate(uris)]
    assert fill(outline, digests) == snapshot_record(sample, lambda uri: digests[uris.index(uri)])


@settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(_SAMPLES)
def test_of_any_sample(sample: dict[str, Any]) -> None:
    check(sample)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_of_the_standard_samples(path: Path) -> None:
    check(json.loads(path.read_text("utf-8")))


def test_of_the_short_form() -> None:
    check(read_form({"id": "a", "prompt": "p", "output": "o.png", "reference": ["r.png", "s.png"]}).sample)
    uris, outline = snapshot_outline(read_form({"id": "a", "prompt": "p", "output": "o.png"}).sample)
    assert uris == []
    assert len(outline) == 1, "nothing is left to be filled in"


def test_what_json_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="NaN"):
        snapshot_outline({"id": "a", "data_tag": {"x": float("nan")}})
