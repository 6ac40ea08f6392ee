"""Samples of one-colour pictures, whose colour is their feature, and what their rows came to."""

from __future__ import annotations

import numpy as np

METRIC = "fake_spread"


def colours(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 3))


def lines_of(outputs, references, **more):
    lines = []
    for index, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        line = {"id": f"s{index}", "prompt": f"prompt {index}", "output": output, "reference": reference}
        line.update({key: values[index] for key, values in more.items()})
        lines.append({key: value for key, value in line.items() if value is not None})
    return lines


def clips(count, seed):
    rng = np.random.default_rng(seed)
    return [rng.random(1 + index % 3).astype("<f4") for index in range(count)]


def entries(run, metric=METRIC):
    return [line["eval_result"]["metrics"][metric] for line in run.samples]
