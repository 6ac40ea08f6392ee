"""The fixed list of error codes and flags, and the one exception class that carries them.

A missing score is always ``null`` plus one of these codes: never 0, -1 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CODES: Mapping[str, str] = MappingProxyType(
    {
        "bad_line": "The input line is not one JSON object.",
        "bad_sample": "The sample does not follow the Sample standard.",
        "no_prediction": "The sample holds no model output of the needed kind.",
        "no_reference": "The sample holds no reference of the needed kind.",
        "no_prompt": "The sample holds no prompt text.",
        "not_applicable": "The metric does not apply to this sample.",
        "not_found": "The file does not exist under any media root.",
        "forbidden": "The path or host lies outside the policy.",
        "fetch_failed": "The asset could not be fetched.",
        "too_large": "The asset is above a configured limit.",
        "unsupported_media": "The content is not of a kind that can be decoded here.",
        "decode_failed": "The content is damaged or truncated.",
        "empty_media": "The asset holds no bytes, pixels or samples.",
        "non_finite": "The asset, a feature or a score holds NaN or infinity.",
        "too_small": "The image is below the smallest side the network accepts.",
        "size_mismatch": "The two images of a pair differ in size.",
        "too_short": "The clip has fewer frames or samples than the metric needs.",
        "length_mismatch": "The two clips of a pair differ in length.",
        "too_few_samples": "The set is too small for the statistic.",
        "set_pending": "The set metric has not been computed yet.",
        "timed_out": "The work did not finish within its deadline.",
        "changed_during_run": "The file changed while the run was reading it.",
        "cancelled": "The run was stopped before this sample was scored.",
        "out_of_memory": "One item alone does not fit into memory.",
        "extra_missing": "An optional dependency is not installed.",
        "unknown_metric": "No metric, model or convention of this name is installed.",
        "weights_unavailable": "The network's weights are not on this machine and cannot be fetched.",
        "weights_mismatch": "The weights are not the ones that models.lock pins.",
        "model_probe_failed": "The loaded network does not answer its probe as it should.",
        "internal": "Something failed that should not; please report it.",
    }
)

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "text_truncated": "The text was cut to the encoder's context length, keeping the end token.",
        "prompt_language": "The text is outside the languages the encoder was trained on.",
        "alpha_composited": "The image had transparency and was composited on white.",
        "animated_first_frame": "The image is animated; only its first frame was scored.",
        "silent": "The audio is silent.",
        "clipped": "Audio samples beyond full scale were clipped.",
        "band_limited": "The audio's rate is too low to hold the band the encoder hears.",
        "reference_from_raw_assets": "The reference was taken from raw_assets.",
        "nonstandard_convention": "The model or setting is not the one the convention was published with.",
        "multi_reference": "Several references were reduced to one value.",
        "multi_turn_prompt": "The prompt is the last of several user turns.",
        "static_video": "The video hardly moves.",
        "duplicate_predictions": "The prediction set holds the same asset more than once.",
        "size_mismatch_sets": "Predictions and references differ in frame size.",
        "frame_rate_mismatch": "Predictions and references differ in frame rate.",
        "bias_dominates": "The value is more than twice its bias-corrected value.",
        "input_non_finite": "The input held NaN or infinity, which was handled as the metric's card says.",
        "identical": "Prediction and reference are the same bytes.",
        "partial_video": "Only part of the video was read.",
        "damaged_frames": "Some frames of the video are damaged.",
        "prediction_from_text": "The prediction was found as a path in a text fragment.",
        "best_of_n": "The best of several candidates was chosen after scoring.",
        "low_sample_count": "The set is below the size at which the statistic settles.",
        "not_comparable": "A score of a tiny network: for trials, not comparable with any published number.",
    }
)

# Failures that a second attempt of the same command may cure, so a rerun tries them again.
RETRYABLE = frozenset({"fetch_failed", "not_found", "timed_out", "out_of_memory", "weights_unavailable", "internal"})

# A sample that a metric was never meant for: counted as skipped, neither failed nor silent.
SKIPPED = frozenset({"not_applicable"})


class GenmeterError(Exception):
    """A typed reason why there is no score.

    Args:
        code: One of :data:`CODES`.
        message: What was found and what was expected; never file content or secrets.
        hint: What the reader can do about it.
        asset: The path or URI concerned, as the sample wrote it.
    """

    def __init__(self, code: str, message: str, hint: str | None = None, *, asset: str | None = None) -> None:
        if code not in CODES:
            raise ValueError(f"unknown error code {code!r}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.asset = asset

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f" ({self.hint})" if self.hint else "")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.message, self.hint, self.asset))

    def with_asset(self, asset: str) -> GenmeterError:
        """The same error, naming the asset it concerns (an asset already named is kept)."""
        return GenmeterError(self.code, self.message, self.hint, asset=self.asset or asset)

    def to_dict(self) -> dict[str, str]:
        """The form written into ``eval_result``: code and message, hint and asset where known."""
        data = {"code": self.code, "message": self.message}
        if self.hint:
            data["hint"] = self.hint
        if self.asset:
            data["asset"] = self.asset
        return data


def _rebuild(code: str, message: str, hint: str | None, asset: str | None) -> GenmeterError:
    return GenmeterError(code, message, hint, asset=asset)
