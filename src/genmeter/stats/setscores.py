"""Set metrics as rows need them: value, bias, interval, noise floors, and the part of each sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from genmeter.contract import Json, Moments, Rows, SetScore, Unscored
from genmeter.stats.extrapolate import frechet_infinity
from genmeter.stats.frechet import distance
from genmeter.stats.groups import deal, half
from genmeter.stats.influence import influences
from genmeter.stats.jackknife import Jackknife, jackknife_of, sides_of
from genmeter.stats.mmd import CUBIC, Kernel, kernel_sums, mmd_influences, mmd_jackknife, mmd_of
from genmeter.stats.moments import Features, Picked, power_of_two_scale
from genmeter.stats.permutation import mmd_permutation_test
from genmeter.stats.setrows import Files, PerRow, clusters_of, distinct, feature_distances, files_of, refusal
from genmeter.stats.spread import spread_of

LEAST_FRECHET = 2048
LEAST_MMD = 100
# The permutation test is quadratic in the rows; beyond this many the interval says it all.
_MOST_PERMUTED = 6_000


def frechet_score(
    prediction: Rows, reference: Rows | Moments, *, ddof: int = 1, name: str = "a Frechet distance"
) -> SetScore | Unscored:
    """A Frechet distance with everything that is said of it.

    Args:
        prediction: The prediction set, one row a candidate or window.
        reference: The reference set, or its moments.
        ddof: Covariances are divided by n - ddof.
        name: What a message calls the metric.

    Returns:
        ``value``: the plug-in value, at least 0. ``detail``: ``n_prediction`` and ``n_reference`` (rows; ``files_*``
        beside them where a file gives several), ``n_distinct`` (different prediction files), ``bias_corrected`` and
        ``interval95`` (delete-a-group jackknife; the interval belongs to the corrected value), ``interval`` (method,
        groups), ``noise_floor`` (``reference``: FD of one half of the references and the other; ``prediction``: of one
        half of the predictions and a half of the references that shares no cluster with it; both of ``n`` rows a side),
        ``fd_infinity`` (value, r2, n) from 3d rows on. ``rows``: ``influence`` (leave-one-out), ``feature_distance``.
        Flags: ``low_sample_count`` (fewer than max(2d, 2048) rows), ``bias_dominates`` (value above twice the
        corrected one), ``duplicate_predictions``.

        ``too_few_samples`` below 2 rows on a side; ``non_finite``.
    """
    refused = refusal(prediction, reference, name)
    if refused is not None:
        return refused
    files, clusters = files_of(prediction), clusters_of(prediction, reference)
    x, width = prediction.values, prediction.values.shape[1]
    y = reference if isinstance(reference, Moments) else reference.values
    scale = power_of_two_scale(x) if isinstance(y, Moments) else power_of_two_scale(x, y)
    if isinstance(y, Moments):
        y = Moments(np.asarray(y.mean, np.float64) / scale, np.asarray(y.cov, np.float64) / scale**2, y.n)
    sides, count = sides_of(x, y, clusters, ddof, scale)
    own, other = (side.whole for side in sides)
    unit = scale * scale
    value = max(0.0, distance(own, other)) * unit
    if not np.isfinite(value):
        return Unscored("non_finite", f"{name} is beyond the largest number", "the features are out of all proportion")
    jackknife = jackknife_of(sides, count, lambda found: distance(*found), unit)
    detail, flags = _common(prediction, reference, files)
    if jackknife is not None:
        detail["bias_corrected"] = jackknife.corrected
        detail |= _interval(jackknife, reference)
    if isinstance(reference, Rows):
        detail |= _floors(
            prediction,
            reference,
            clusters,
            lambda a, b: distance(spread_of(a, ddof, scale), spread_of(b, ddof, scale)) * unit,
        )
        units = (files.of_row, files_of(reference).of_row)
        fit = frechet_infinity(x, reference.values, units, ddof=ddof)
        if fit is not None:
            detail["fd_infinity"] = {"value": fit.value, "r2": fit.r2, "n": list(fit.sizes)}
    if min(detail["n_prediction"], detail["n_reference"]) < max(2 * width, LEAST_FRECHET):
        flags.append("low_sample_count")
    if jackknife is not None and value > 2.0 * jackknife.corrected and value > 0.0:
        flags.append("bias_dominates")
    moved = influences(x, own, other, None if files.single else files.of_row, ddof=ddof, scale=scale)
    return SetScore(value, detail, _rows(prediction, reference, files, moved), tuple(flags))


def mmd_score(
    prediction: Rows, reference: Rows | Moments, *, kernel: Kernel = CUBIC, name: str = "an MMD"
) -> SetScore | Unscored:
    """A U-statistic MMD with everything that is said of it.

    Args:
        prediction: The prediction set.
        reference: The reference set; moments are not enough for it.
        kernel: The kernel; by default that of KID and KVD.
        name: What a message calls the metric.

    Returns:
        As :func:`frechet_score`, but the value has no bias to correct and may be negative: ``interval95`` is around
        the value itself, ``p_value`` is that of a permutation test (up to 6,000 rows in all), and there is neither
        ``bias_corrected`` nor ``fd_infinity``. ``low_sample_count`` below 100 rows.

        ``too_few_samples`` below 2 rows on a side; ``non_finite``; ``no_reference`` against moments.
    """
    if isinstance(reference, Moments):
        message = f"{name} compares rows with rows, and the reference set holds only moments"
        return Unscored("no_reference", message, "make the reference set without --moments")
    refused = refusal(prediction, reference, name)
    if refused is not None:
        return refused
    files, clusters = files_of(prediction), clusters_of(prediction, reference)
    assert clusters[1] is not None
    groups, count = deal([clusters[0], clusters[1]])
    with np.errstate(over="ignore", invalid="ignore"):
        sums = kernel_sums(prediction.values, reference.values, kernel, (groups[0], groups[1]), count)
        value = mmd_of(sums)
    if not np.isfinite(value):
        return Unscored("non_finite", f"{name} is beyond the largest number", "the features are out of all proportion")
    detail, flags = _common(prediction, reference, files)
    jackknife = mmd_jackknife(sums, (groups[0], groups[1]), count)
    if jackknife is not None:
        detail |= _interval(jackknife, reference)
    if len(prediction.values) + len(reference.values) <= _MOST_PERMUTED:
        both = (clusters[0], clusters[1])
        detail["p_value"] = mmd_permutation_test(prediction.values, reference.values, both, kernel=kernel)
    detail |= _floors(prediction, reference, clusters, lambda a, b: mmd_of(kernel_sums(a, b, kernel)))
    if min(detail["n_prediction"], detail["n_reference"]) < LEAST_MMD:
        flags.append("low_sample_count")
    moved = mmd_influences(prediction.values, sums, files.of_row, kernel)
    return SetScore(value, detail, _rows(prediction, reference, files, moved), tuple(flags))


def _common(prediction: Rows, reference: Rows | Moments, files: Files) -> tuple[dict[str, Json], list[str]]:
    """Counts of both sides, and the flag on equal predictions."""
    detail: dict[str, Json] = {"n_prediction": len(prediction.values)}
    if not files.single:
        detail["files_prediction"] = len(files.first)
    if isinstance(reference, Moments):
        detail["n_reference"] = int(reference.n)
    else:
        detail["n_reference"] = len(reference.values)
        others = files_of(reference)
        if not others.single:
            detail["files_reference"] = len(others.first)
    detail["n_distinct"] = distinct(prediction)
    return detail, ["duplicate_predictions"] if detail["n_distinct"] < len(files.first) else []


def _interval(jackknife: Jackknife, reference: Rows | Moments) -> dict[str, Json]:
    about: dict[str, Json] = {"method": "delete_a_group_jackknife", "groups": jackknife.groups}
    if isinstance(reference, Moments):
        about["reference"] = "fixed"
    return {"interval95": list(jackknife.interval), "interval": about}


def _floors(
    prediction: Rows,
    reference: Rows,
    clusters: tuple[np.ndarray, np.ndarray | None],
    statistic: Callable[[Features, Features], float],
) -> dict[str, Json]:
    """The same statistic where nothing differs, and where the model is compared at that number of rows."""
    size = min(len(prediction.values), len(reference.values)) // 2
    if size < 2 or clusters[1] is None:
        return {}
    first, last = (half(clusters[1], size, last=end) for end in (False, True))
    ours = half(clusters[0], size, last=True)
    base = Picked(reference.values, first)
    floor = float(statistic(base, Picked(reference.values, last)))
    return {
        "noise_floor": {
            "n": size,
            "reference": floor,
            "prediction": float(statistic(Picked(prediction.values, ours), base)),
        }
    }


def _rows(prediction: Rows, reference: Rows | Moments, files: Files, moved: np.ndarray | None) -> PerRow:
    columns = {"influence": moved, "feature_distance": feature_distances(prediction, reference, files)}
    constant = {"influence_method": "leave_one_out"} if moved is not None else {}
    return PerRow(files.of_row, constant, {name: column for name, column in columns.items() if column is not None})
