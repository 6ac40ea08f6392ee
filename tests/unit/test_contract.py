"""The contracts and the error type that everything else is built on."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from genmeter.contract import ImageMedia, Params, Prepared
from genmeter.errors import CODES, FLAGS, RETRYABLE, SKIPPED, GenmeterError

# --- images ------------------------------------------------------------------------------------------------------


def pixel(*channels: int) -> np.ndarray:
    return np.array([[channels]], np.uint8)


@pytest.mark.parametrize(
    ("channels", "white", "drop"),
    [
        ((10, 20, 30), [10, 20, 30], [10, 20, 30]),
        ((10, 20, 30, 255), [10, 20, 30], [10, 20, 30]),
        ((10, 20, 30, 0), [255, 255, 255], [10, 20, 30]),
        ((0, 100, 255, 128), [127, 177, 255], [0, 100, 255]),
        ((0, 0, 0, 1), [254, 254, 254], [0, 0, 0]),
        ((0, 0, 0, 254), [1, 1, 1], [0, 0, 0]),
    ],
)
def test_alpha(channels: tuple[int, ...], white: list[int], drop: list[int]) -> None:
    media = ImageMedia(pixel(*channels))
    assert media.rgb().tolist() == [[white]]
    assert media.rgb("white").tolist() == [[white]]
    assert media.rgb("drop").tolist() == [[drop]]


def test_compositing_is_the_rounded_formula_for_every_byte_and_alpha() -> None:
    colour, alpha = np.meshgrid(np.arange(256), np.arange(256))
    pixels = np.stack([colour] * 3 + [alpha], axis=-1).astype(np.uint8)
    exact = np.rint((colour * alpha + 255.0 * (255 - alpha)) / 255)
    found = ImageMedia(pixels).rgb()
    assert found.dtype == np.uint8
    assert np.array_equal(found[..., 0], exact)


def test_transparent_means_that_a_pixel_shows_through() -> None:
    assert not ImageMedia(pixel(1, 2, 3)).transparent
    assert not ImageMedia(pixel(1, 2, 3, 255)).transparent
    assert ImageMedia(pixel(1, 2, 3, 254)).transparent


def test_rgb_does_not_write_into_the_decoded_pixels() -> None:
    pixels = np.full((4, 4, 4), 7, np.uint8)
    ImageMedia(pixels).rgb()
    assert (pixels == 7).all()


# --- what enters a batch -----------------------------------------------------------------------------------------


def prepared(*shapes: tuple[int, ...], dtype: str = "u1") -> Prepared:
    return Prepared(tuple(np.zeros(s, dtype) for s in shapes), np.ones(shapes[0][0], np.float32))


def test_bucket_leaves_out_the_number_of_frames_and_nothing_else() -> None:
    one = prepared((1, 8, 9, 3), (1, 8, 9, 3))
    assert one.bucket == prepared((5, 8, 9, 3), (5, 8, 9, 3)).bucket
    for other in (
        prepared((1, 9, 8, 3), (1, 9, 8, 3)),
        prepared((1, 8, 9, 3)),
        prepared((1, 8, 9, 3), (1, 8, 9, 4)),
        prepared((1, 8, 9, 3), (1, 8, 9, 3), dtype="f4"),
        prepared((1, 8, 93), (1, 8, 93)),
    ):
        assert one.bucket != other.bucket
    assert one.shape == (8, 9, 3)
    assert one.nbytes == 2 * 8 * 9 * 3


# --- parameters --------------------------------------------------------------------------------------------------


def test_params_read_as_mapping_and_as_attributes() -> None:
    params = Params({"net": "alex", "convention": {"name": "x", "scale": 2.5}})
    assert params.net == params["net"] == "alex"
    assert params.convention.scale == 2.5
    assert list(params) == ["net", "convention"]
    assert len(params) == 2
    assert dict(params.convention) == {"name": "x", "scale": 2.5}
    with pytest.raises(AttributeError, match="'nett'; known: net, convention"):
        _ = params.nett
    with pytest.raises(KeyError):
        _ = params["nett"]


def test_params_survive_copying_and_pickling() -> None:
    params = Params({"net": "alex", "convention": {"scale": 2.5}})
    for twin in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert twin.convention.scale == 2.5
        assert dict(twin) == dict(params)


# --- errors ------------------------------------------------------------------------------------------------------


def test_error_carries_code_message_hint_and_asset() -> None:
    error = GenmeterError("not_found", "no such file", "check the root", asset="a.png")
    assert str(error) == "not_found: no such file (check the root)"
    assert error.to_dict() == {
        "code": "not_found",
        "message": "no such file",
        "hint": "check the root",
        "asset": "a.png",
    }
    assert GenmeterError("not_found", "x").to_dict() == {"code": "not_found", "message": "x"}


def test_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(GenmeterError("too_small", "m", "h", asset="a")))
    assert (error.code, error.message, error.hint, error.asset) == ("too_small", "m", "h", "a")


def test_an_asset_once_named_is_kept() -> None:
    error = GenmeterError("decode_failed", "m")
    assert error.with_asset("a.png").asset == "a.png"
    assert error.with_asset("a.png").with_asset("b.png").asset == "a.png"


def test_codes_and_flags_are_the_fixed_lists() -> None:
    with pytest.raises(ValueError, match="unknown error code 'oops'"):
        GenmeterError("oops", "m")
    assert set(CODES) == {
        "bad_line",
        "bad_sample",
        "no_prediction",
        "no_reference",
        "no_prompt",
        "not_applicable",
        "not_found",
        "forbidden",
        "fetch_failed",
        "too_large",
        "unsupported_media",
        "decode_failed",
        "empty_media",
        "non_finite",
        "too_small",
        "size_mismatch",
        "too_short",
        "length_mismatch",
        "too_few_samples",
        "set_pending",
        "timed_out",
        "changed_during_run",
        "cancelled",
        "out_of_memory",
        "extra_missing",
        "unknown_metric",
        "weights_unavailable",
        "weights_mismatch",
        "model_probe_failed",
        "internal",
    }
    assert set(FLAGS) == {
        "text_truncated",
        "prompt_language",
        "alpha_composited",
        "animated_first_frame",
        "silent",
        "clipped",
        "band_limited",
        "reference_from_raw_assets",
        "nonstandard_convention",
        "multi_reference",
        "multi_turn_prompt",
        "static_video",
        "duplicate_predictions",
        "size_mismatch_sets",
        "frame_rate_mismatch",
        "bias_dominates",
        "input_non_finite",
        "identical",
        "partial_video",
        "damaged_frames",
        "prediction_from_text",
        "best_of_n",
        "low_sample_count",
        "not_comparable",
    }
    assert all(sentence.endswith(".") for sentence in (*CODES.values(), *FLAGS.values()))
    assert set(CODES) >= RETRYABLE | SKIPPED
    assert {
        "fetch_failed",
        "not_found",
        "timed_out",
        "out_of_memory",
        "weights_unavailable",
        "internal",
    } == RETRYABLE


def test_the_contract_needs_numpy_and_nothing_else() -> None:
    code = (
        "import sys, numpy; before = set(sys.modules); import genmeter.contract, genmeter.errors\n"
        "tops = {m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "assert tops <= {'genmeter', 'numpy'}, tops\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
