"""FAD on CLAP: the windows of its conventions, and what the scorer does with their features."""

from __future__ import annotations

import numpy as np
import pytest

from genmeter.contract import AudioMedia, Moments, Rows, Unscored
from genmeter.encoders.clap.preprocessing import prepare, recipe
from genmeter.encoders.clap.windows import RATE, SAMPLES, hops
from genmeter.errors import GenmeterError
from genmeter.goldens import read_cases
from genmeter.registry import get_metric, make_scorer, parse_variant
from genmeter.stats import frechet_distance
from genmeter.stats.moments import moments_of
from genmeter.weights.lock import get_entry


def noise(count, seed=0):
    return (0.5 * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)


def as_fadtk(samples):
    """The chunks of fadtk's CLAP loader, from the description of what it does: int16 and back, 10 s at each second."""
    levels = (np.clip(samples, -1, 1) * 32767).astype(np.int16)
    chunks = []
    for start in range(0, len(levels), RATE):
        piece = levels[start : start + SAMPLES]
        chunks.append(np.concatenate([piece, np.zeros(SAMPLES - len(piece), np.int16)]))
    return np.stack(chunks)


@pytest.mark.parametrize("count", [1, RATE - 1, RATE, RATE + 1, 3 * RATE + 77, SAMPLES, SAMPLES + 5 * RATE + 1])
def test_hops_are_what_fadtk_hears(count):
    samples = noise(count)
    found = hops(AudioMedia(samples, RATE))
    expected = as_fadtk(samples)
    assert found.samples.shape == expected.shape == (-(-count // RATE), SAMPLES)
    assert np.array_equal(found.samples, expected)
    assert found.seconds.sum() == pytest.approx(count / RATE, rel=1e-5)


def test_hops_share_their_memory():
    found = hops(AudioMedia(noise(60 * RATE), RATE))
    assert len(found.samples) == 60
    base = found.samples
    while base.base is not None:
        base = base.base
    assert base.nbytes < 60 * RATE * 2 + 2 * SAMPLES * 2


@pytest.mark.parametrize(
    ("media", "code"),
    [
        (AudioMedia(np.zeros(0, np.float32), RATE), "empty_media"),
        (AudioMedia(noise(100), 16_000), "unsupported_media"),
        (AudioMedia(np.full(100, np.nan, np.float32), RATE), "non_finite"),
    ],
)
def test_hops_refuse_what_windows_refuse(media, code):
    with pytest.raises(GenmeterError) as error:
        hops(media)
    assert error.value.code == code


def test_the_view_of_each_convention():
    how = recipe(get_entry("clap-630k-audioset-best"))
    media = AudioMedia(noise(12 * RATE), RATE)
    kinds = {}
    for name in ("fad", "fad/fadtk"):
        need = next(need for need in parse_variant(name).needs if need.name == "prediction")
        kinds[name] = prepare(media, need.view, how, "clap-630k-audioset-best").detail["windows"]
    assert kinds == {"fad": 2, "fad/fadtk": 12}


def test_names_and_labels():
    assert get_metric("fad").title == "FAD(CLAP)"
    assert parse_variant("fad").label == "630k-audioset-best/windows"
    assert parse_variant("fad@music_audioset/fadtk").label == "music_audioset/fadtk"
    assert parse_variant("fad", profile="tiny").label == "tiny-clap/windows"
    assert parse_variant("fad/windows", {"long": "hops"}).label == "630k-audioset-best/windows,long=hops"


def unit_rows(count, d, seed):
    values = np.random.default_rng(seed).standard_normal((count, d)) + 1.0
    values = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)
    digests = np.array([f"{seed}-{i}".encode() for i in range(count)], dtype="S32")
    return Rows(values, digests, np.arange(count))


def score(name, prediction, reference):
    variant = parse_variant(name)
    return make_scorer(variant).score_set(prediction, reference, variant.params)


@pytest.mark.parametrize("case", read_cases(get_metric("fad").path), ids=lambda case: case.name)
def test_golden(case):
    sides = []
    for name in ("prediction", "reference"):
        values = np.array(case.features[name])
        digests = np.array([f"{name}-{i}".encode() for i in range(len(values))], dtype="S32")
        sides.append(Rows(values, digests, np.arange(len(values))))
    assert score(case.variant, *sides).value == pytest.approx(case.expected, abs=case.tolerance)


def test_the_value_is_the_frechet_distance_of_all_windows():
    prediction, reference = unit_rows(60, 8, 1), unit_rows(90, 8, 2)
    found = score("fad", prediction, reference)
    assert found.value == pytest.approx(frechet_distance(prediction.values, reference.values), rel=1e-12)
    assert 0 < found.value < 4


def test_fadtk_keeps_features_in_half_precision():
    prediction, reference = unit_rows(60, 8, 1), unit_rows(90, 8, 2)
    found = score("fad/fadtk", prediction, reference)
    halves = [rows.values.astype(np.float16).astype(np.float64) for rows in (prediction, reference)]
    assert found.value == pytest.approx(frechet_distance(*halves), rel=1e-12)
    assert found.value != score("fad", prediction, reference).value
    assert prediction.values.dtype == np.float32, "what came in is not changed"


def test_stored_moments_and_too_few():
    prediction, reference = unit_rows(60, 8, 1), unit_rows(90, 8, 2)
    for name in ("fad", "fad/fadtk"):
        stored = score(name, prediction, moments_of(reference.values))
        assert stored.value == pytest.approx(score(name, prediction, reference).value, abs=1e-4)
        few = score(name, prediction, Moments(np.zeros(8), np.eye(8), 1))
        assert isinstance(few, Unscored)
        assert few.code == "too_few_samples"
        assert few.message.startswith("FAD needs")


def test_files_are_samples():
    prediction, reference = unit_rows(60, 8, 1), unit_rows(90, 8, 2)
    by_file = prediction._replace(digests=prediction.digests[::3].repeat(3), lines=np.arange(20).repeat(3))
    found = score("fad", by_file, reference)
    assert found.detail["n_prediction"] == 60
    assert found.detail["files_prediction"] == 20
    assert found.detail["interval"]["groups"] == 20
    assert found.rows[3] == found.rows[5]
