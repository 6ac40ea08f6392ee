"""Set scores: what a set metric's rows carry, and what a set without a number says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from genmeter.contract import Moments, Rows, SetScore, Unscored
from genmeter.errors import CODES, FLAGS
from genmeter.stats import frechet_distance, polynomial_mmd
from genmeter.stats.jackknife import frechet_jackknife
from genmeter.stats.mmd import CUBIC, kernel_sums, mmd_influences
from genmeter.stats.moments import moments_of
from genmeter.stats.setrows import clusters_of, files_of
from genmeter.stats.setscores import frechet_score, mmd_score

BOTH = [frechet_score, mmd_score]


def gaussian(n, d, seed, decay=0.05, shift=0.0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, d)) * np.exp(-np.arange(d) * decay) + shift).astype(np.float32)


def digests(count, start=0):
    return np.array([f"{start + i:032d}".encode() for i in range(count)], dtype="S32")


def rows(values, start=0, **more):
    return Rows(values, digests(len(values), start), np.arange(len(values)), **more)


def pair(n, d, shift=0.2):
    """Predictions with a reference of their own each."""
    return rows(gaussian(n, d, 1, shift=shift), own=np.arange(n)), rows(gaussian(n, d, 2), start=5000)


def strict(score):
    """The same through strict JSON."""
    return json.loads(json.dumps([score.value, score.detail, list(score.rows), list(score.flags)], allow_nan=False))


def test_a_frechet_score_says_all_of_it():
    prediction, reference = pair(100, 20, shift=0.05)
    score = frechet_score(prediction, reference)
    labels = reference.digests, reference.digests
    jackknife = frechet_jackknife(prediction.values, reference.values, labels)
    assert score.value == frechet_distance(prediction.values, reference.values)
    assert score.detail["n_prediction"] == score.detail["n_reference"] == score.detail["n_distinct"] == 100
    assert score.detail["bias_corrected"] == pytest.approx(jackknife.corrected, rel=1e-9)
    assert score.detail["interval95"] == pytest.approx(list(jackknife.interval), rel=1e-9)
    assert score.detail["interval"] == {"method": "delete_a_group_jackknife", "groups": 40}
    assert score.detail["fd_infinity"]["n"] == [40, 100]
    assert {"files_prediction", "files_reference", "p_value"}.isdisjoint(score.detail)
    assert score.flags == ("low_sample_count", "bias_dominates")
    assert score.value > 2 * jackknife.corrected
    assert len(score.rows) == 100
    assert score.rows[7]["influence_method"] == "leave_one_out"
    gap = prediction.values[7].astype(float) - reference.values[7]
    assert score.rows[7]["feature_distance"] == pytest.approx(np.linalg.norm(gap))
    assert sum(row["influence"] for row in score.rows) == pytest.approx(0.0, abs=1e-9)
    assert [row["influence"] for row in score.rows[3:5]] == [score.rows[3]["influence"], score.rows[4]["influence"]]
    strict(score)


def test_an_mmd_score_says_all_of_it():
    prediction, reference = pair(60, 20, shift=0.6)
    score = mmd_score(prediction, reference)
    assert score.value == pytest.approx(polynomial_mmd(prediction.values, reference.values), rel=1e-12)
    assert sum(score.detail["interval95"]) / 2 == pytest.approx(score.value)
    assert score.detail["p_value"] == 0.002
    assert {"bias_corrected", "fd_infinity"}.isdisjoint(score.detail)
    assert score.flags == ("low_sample_count",)
    expected = mmd_influences(prediction.values, kernel_sums(prediction.values, reference.values), None, CUBIC)
    assert [row["influence"] for row in score.rows] == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-10)
    assert all(row["feature_distance"] > 0 for row in score.rows)
    assert mmd_score(*pair(100, 5)).flags == ()
    strict(score)


@pytest.mark.parametrize("score", BOTH)
@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 5), (1, 1), (1, 8), (8, 1)])
def test_below_two_there_is_no_number(score, n, m):
    found = score(rows(gaussian(n, 400, 1).reshape(n, 400)), rows(gaussian(m, 400, 2).reshape(m, 400)), name="FVD")
    assert isinstance(found, Unscored)
    assert found.code == "too_few_samples"
    assert f"FVD needs at least 2 rows on each side; found {n} predictions, {m} references" == found.message


@pytest.mark.parametrize("score", BOTH)
def test_two_against_two_is_a_number_with_a_warning(score):
    found = score(*pair(2, 400))
    assert isinstance(found, SetScore)
    assert math.isfinite(found.value)
    assert "low_sample_count" in found.flags
    assert {"bias_corrected", "interval95", "noise_floor"}.isdisjoint(found.detail)
    assert all(set(row) == {"feature_distance"} for row in found.rows)


@pytest.mark.parametrize("score", BOTH)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_a_reason_and_not_a_number(score, bad):
    for side in (0, 1):
        sets = list(pair(20, 5))
        sets[side].values[3, 2] = bad
        found = score(*sets)
        assert isinstance(found, Unscored)
        assert found.code == "non_finite"
        assert ("prediction", "reference")[side] in found.message


@pytest.mark.parametrize("score", BOTH)
def test_features_out_of_all_proportion(score):
    big = rows(gaussian(20, 5, 1).astype(np.float64) * 1e300)
    found = score(big, rows(-gaussian(20, 5, 2).astype(np.float64) * 1e300, 5000))
    assert isinstance(found, Unscored)
    assert found.code == "non_finite"


@pytest.mark.parametrize("score", BOTH)
def test_different_widths(score):
    assert score(rows(gaussian(9, 5, 1)), rows(gaussian(9, 6, 2))).code == "internal"


def test_a_score_against_moments():
    prediction, reference = rows(gaussian(100, 20, 1)), gaussian(900, 20, 2)
    score = frechet_score(prediction, moments_of(reference))
    whole = frechet_score(prediction, rows(reference, 5000))
    assert score.value == pytest.approx(whole.value, rel=1e-6)
    assert score.detail["n_reference"] == 900
    assert score.detail["interval"] == {"method": "delete_a_group_jackknife", "groups": 40, "reference": "fixed"}
    assert {"noise_floor", "fd_infinity"}.isdisjoint(score.detail)
    assert [r["influence"] for r in score.rows] == pytest.approx([r["influence"] for r in whole.rows], rel=1e-5)
    assert "feature_distance" not in score.rows[0]
    strict(score)
    refused = mmd_score(prediction, moments_of(reference))
    assert refused.code == "no_reference"
    assert "moments" in refused.message
    few = frechet_score(prediction, Moments(np.zeros(20), np.eye(20), 1))
    assert few.code == "too_few_samples"
    bad = frechet_score(prediction, Moments(np.zeros(20), np.full((20, 20), np.nan), 9))
    assert bad.code == "non_finite"


def test_flags_and_codes_are_on_the_lists():
    prediction, reference = pair(100, 20, shift=0.05)
    found = set(frechet_score(prediction._replace(digests=digests(50).repeat(2)), reference).flags)
    assert found == {"low_sample_count", "bias_dominates", "duplicate_predictions"}
    assert found <= set(FLAGS)
    assert {"too_few_samples", "non_finite", "no_reference", "internal"} <= set(CODES)


@pytest.mark.parametrize(("n", "d", "low"), [(2047, 3, True), (2048, 3, False), (2100, 1060, True)])
def test_low_sample_count(n, d, low, monkeypatch):
    monkeypatch.setattr("genmeter.stats.setscores.jackknife_of", lambda *args: None)
    monkeypatch.setattr("genmeter.stats.setscores.frechet_infinity", lambda *args, **more: None)
    monkeypatch.setattr("genmeter.stats.setscores._floors", lambda *args: {})
    monkeypatch.setattr("genmeter.stats.setscores.influences", lambda *args, **more: None)
    score = frechet_score(rows(gaussian(n, d, 1)), rows(gaussian(n + 5, d, 2), 5000))
    assert ("low_sample_count" in score.flags) is low


def test_equal_sets_are_zero_and_not_dominated_by_bias():
    values = gaussian(300, 10, 1)
    score = frechet_score(rows(values, own=np.arange(300)), rows(values))
    assert score.value == pytest.approx(0.0, abs=1e-9)
    assert score.detail["bias_corrected"] == pytest.approx(0.0, abs=1e-6)
    assert all(row["feature_distance"] == 0.0 for row in score.rows)
    # What a copy is held to: references against other references.
    floor = score.detail["noise_floor"]
    assert floor["n"] == 150
    assert floor["prediction"] == pytest.approx(floor["reference"], rel=1e-9)
    assert floor["reference"] > 0.05


def test_noise_floors_compare_equal_numbers_that_share_no_sample():
    prediction, reference = rows(gaussian(80, 10, 1), own=np.arange(80)), rows(gaussian(500, 10, 2), 5000)
    found = [frechet_score(prediction, reference).detail["noise_floor"] for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]["n"] == 40
    far = rows(gaussian(80, 10, 1, shift=3.0), own=np.arange(80))
    floor = frechet_score(far, reference).detail["noise_floor"]
    assert floor["reference"] == found[0]["reference"]
    assert floor["prediction"] > 20 * floor["reference"]


@pytest.mark.parametrize("score", BOTH)
def test_duplicates_count_and_are_flagged(score):
    prediction, reference = pair(30, 5)
    doubled = prediction._replace(digests=np.concatenate([prediction.digests[:20], prediction.digests[:10]]))
    found = score(doubled, reference)
    assert found.detail["n_prediction"] == 30
    assert found.detail["n_distinct"] == 20
    assert "duplicate_predictions" in found.flags


# Files of several rows.


def windows(files, k, d, start=0, seed=1):
    values = gaussian(files * k, d, seed)
    return Rows(values, digests(files, start).repeat(k), np.arange(files).repeat(k))


@pytest.mark.parametrize("score", BOTH)
def test_windows_of_a_file_are_one_sample(score):
    prediction = windows(30, 3, 8)._replace(own=np.arange(30).repeat(3) * 2)
    reference = windows(30, 2, 8, start=500, seed=2)
    found = score(prediction, reference)
    assert (found.detail["n_prediction"], found.detail["n_reference"]) == (90, 60)
    assert (found.detail["files_prediction"], found.detail["files_reference"]) == (30, 30)
    assert found.detail["n_distinct"] == 30
    assert found.detail["interval"]["groups"] == 30
    assert "duplicate_predictions" not in found.flags
    assert len(found.rows) == 90
    for file in range(30):
        assert found.rows[3 * file] == found.rows[3 * file + 1] == found.rows[3 * file + 2]
    ours, theirs = prediction.values[12:15].mean(axis=0), reference.values[8:10].mean(axis=0)
    assert found.rows[12]["feature_distance"] == pytest.approx(np.linalg.norm(ours - theirs), rel=1e-5)
    assert sum(row["influence"] for row in found.rows) == pytest.approx(0.0, abs=1e-9)
    if score is frechet_score:
        base = frechet_distance(prediction.values, reference.values)
        parts = [frechet_distance(prediction.values[prediction.lines != f], reference.values) for f in range(30)]
        expected = 29 * (np.mean(parts) - np.array(parts))
        assert [found.rows[3 * f]["influence"] for f in range(30)] == pytest.approx(expected.tolist(), rel=1e-6)
        assert base == pytest.approx(found.value)


def test_files_by_neighbourhood_or_as_told():
    same = Rows(np.zeros((5, 1)), np.array([b"a", b"a", b"b", b"b", b"a"]), np.array([0, 0, 0, 1, 1]))
    assert files_of(same).of_row.tolist() == [0, 0, 1, 2, 3]
    told = files_of(same._replace(units=np.array([9, 4, 4, 9, 1])))
    assert told.of_row.tolist() == [0, 1, 1, 0, 2]
    assert told.rows.tolist() == [2, 2, 1]
    assert not told.single
    assert files_of(Rows(np.zeros((0, 1)), np.array([], "S32"), np.array([], int))).single


# Clusters.


def test_outputs_go_with_their_own_reference():
    prediction, reference = pair(6, 3)
    labels, others = clusters_of(prediction._replace(own=np.array([0, 0, 2, 3, -1, -1])), reference)
    assert labels[:4].tolist() == reference.digests[[0, 0, 2, 3]].tolist()
    assert labels[4:].tolist() == prediction.digests[4:].tolist()
    assert others.tolist() == reference.digests.tolist()


def test_outputs_of_one_line_go_together():
    prediction = rows(gaussian(4, 3, 1))._replace(lines=np.array([7, 7, 1, 7]), digests=digests(4)[::-1])
    labels, others = clusters_of(prediction, moments_of(gaussian(9, 3, 2)))
    assert others is None
    assert labels.tolist() == [digests(4)[0]] * 2 + [digests(4)[1], digests(4)[0]]


def test_clusters_that_are_told_win():
    prediction, reference = pair(4, 3)
    told = prediction._replace(clusters=np.array([5, 5, 6, 6])), reference._replace(clusters=np.array([5, 5, 6, 6]))
    assert [part.tolist() for part in clusters_of(*told)] == [[5, 5, 6, 6]] * 2


def test_one_cluster_of_all_is_none():
    prediction, reference = pair(6, 3)
    for own in (np.zeros(6, int), None):
        labels, others = clusters_of(prediction._replace(own=own), reference)
        assert len(set(labels.tolist())) == 6
        assert len(set(others.tolist())) == 6
    told = prediction._replace(clusters=np.full(6, 3)), reference._replace(clusters=np.full(6, 3))
    assert len(set(clusters_of(*told)[0].tolist())) == 6


def test_outputs_of_one_prompt_widen_the_interval():
    """Five near copies for each of 30 prompts are not 150 outputs."""
    rng = np.random.default_rng(0)
    values = np.repeat(gaussian(30, 6, 1), 5, axis=0) + 0.05 * rng.standard_normal((150, 6))
    reference = rows(gaussian(150, 6, 2), 5000)
    alone = frechet_score(rows(values), reference)
    prompts = np.repeat(np.arange(30), 5)
    told = frechet_score(rows(values, clusters=prompts), reference._replace(clusters=np.arange(1000, 1150)))
    widths = [score.detail["interval95"][1] - score.detail["interval95"][0] for score in (alone, told)]
    assert widths[1] > 1.4 * widths[0]
    assert told.detail["bias_corrected"] < alone.detail["bias_corrected"], "fewer samples have more bias"


@pytest.mark.parametrize("score", BOTH)
def test_order_of_rows_moves_nothing(score):
    prediction, reference = pair(90, 12)
    shuffle, other = np.random.default_rng(0).permutation(90), np.random.default_rng(1).permutation(90)
    place = np.argsort(other)
    moved = Rows(prediction.values[shuffle], prediction.digests[shuffle], prediction.lines[shuffle], place[shuffle])
    changed = Rows(reference.values[other], reference.digests[other], reference.lines[other])
    one, two = score(prediction, reference), score(moved, changed)
    assert two.value == pytest.approx(one.value, rel=1e-9)
    for key in ("interval95", "bias_corrected"):
        if key in one.detail:
            assert two.detail[key] == pytest.approx(one.detail[key], rel=1e-7)
    assert two.detail["noise_floor"] == pytest.approx(one.detail["noise_floor"], rel=1e-7)
    for name in ("influence", "feature_distance"):
        assert [two.rows[i][name] for i in np.argsort(shuffle)] == pytest.approx([r[name] for r in one.rows], rel=1e-6)


def test_a_report_is_quick():
    """128 against 128 of 400 dimensions: the interval, the floors and 128 refits well under a second."""
    import time

    prediction, reference = pair(128, 400)
    frechet_score(prediction, reference)
    began = time.process_time()
    frechet_score(prediction, reference)
    assert time.process_time() - began < 1.5


def test_clusters_that_hold_an_equal_output_are_one():
    prediction, reference = pair(6, 3)
    twice = prediction._replace(digests=prediction.digests[[0, 1, 2, 0, 4, 1]], own=np.array([0, 1, 2, 3, 4, 0]))
    labels, others = clusters_of(twice, reference)
    # Rows 0, 3 are one file, rows 1, 5 another, and row 5 goes with the reference of row 0: all of them are joined.
    assert len({*labels[[0, 1, 3, 5]].tolist(), *others[[0, 1, 3]].tolist()}) == 1
    assert len({labels[2], labels[4]}) == 2
    assert labels[[2, 4]].tolist() == others[[2, 4]].tolist() == reference.digests[[2, 4]].tolist()


def test_repeating_outputs_makes_nothing_more_certain():
    reference = rows(gaussian(300, 6, 2), 5000)
    once = rows(gaussian(60, 6, 1))
    repeated = Rows(np.tile(once.values, (5, 1)), np.tile(once.digests, 5), np.arange(300))
    one, many = (frechet_score(side, reference).detail for side in (once, repeated))
    widths = [detail["interval95"][1] - detail["interval95"][0] for detail in (one, many)]
    assert widths[1] == pytest.approx(widths[0], rel=0.1)
    assert many["bias_corrected"] == pytest.approx(one["bias_corrected"], abs=0.1 * widths[0])


def test_influences_are_taken_in_pieces(monkeypatch):
    prediction, reference = pair(60, 4)
    whole = [row["influence"] for row in frechet_score(prediction, reference).rows]
    monkeypatch.setattr("genmeter.stats.influence.BLOCK_BYTES", 16 * 213 * 7)
    assert [row["influence"] for row in frechet_score(prediction, reference).rows] == pytest.approx(whole, rel=1e-9)
