"""Whatever an encoder, a scorer or a decoder does, its item alone pays, the reason is typed, and the run goes on."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
from genmeter_fakes import encoders as fakes
from genmeter_fakes.metrics.fake_gap import scorer as gap
from genmeter_fakes.metrics.fake_level import scorer as level
from PIL import Image

import genmeter
from genmeter.contract import Feature, Prepared, Score, SetScore, Unscored
from genmeter.engine import batching, device, files
from genmeter.engine.core import StoppedEarly
from genmeter.errors import CODES, GenmeterError

LEVELS = [float(101 + i) for i in range(24)]
BAD = 7  # the item that the faults pick out
ALL = ["fake_level", "fake_pair", "fake_gap"]


def cuda_memory_error():
    import torch

    return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def mark(item):
    """The grey value of a prepared image."""
    return float(item.arrays[0].reshape(-1)[0])


@pytest.fixture
def data(tmp_path):
    lines = []
    for name, value in (("a", 100), ("b", 10)):
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(tmp_path / f"{name}.png")
    for index, value in enumerate(LEVELS):
        Image.fromarray(np.full((8, 8, 3), int(value), np.uint8)).save(tmp_path / f"{index}.png")
        lines.append({"id": f"s{index}", "output": f"{index}.png", "reference": "ab"[index % 2] + ".png"})
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Outcome:
    def __init__(self, run):
        self.run = run
        lines = (run.run_dir / "samples.jsonl").read_text().splitlines()
        self.rows = [json.loads(line)["eval_result"]["metrics"] for line in lines]

    def scores(self, metric="fake_level"):
        return [row[metric]["score"] for row in self.rows]

    def errors(self, metric="fake_level"):
        found = {i: row[metric].get("error") for i, row in enumerate(self.rows) if row[metric]["score"] is None}
        for error in found.values():
            assert error["code"] in CODES
            assert error["message"], "it says what was found"
        return found

    def one_bad(self, *codes, metric="fake_level"):
        """The bad item failed with one of these codes, and nothing else failed; returns its error."""
        want = LEVELS if metric == "fake_level" else [abs(v - (100, 10)[i % 2]) for i, v in enumerate(LEVELS)]
        assert list(self.errors(metric)) == [BAD]
        assert [s for i, s in enumerate(self.scores(metric)) if i != BAD] == [w for i, w in enumerate(want) if i != BAD]
        assert self.errors(metric)[BAD]["code"] in codes
        return self.errors(metric)[BAD]


@pytest.fixture
def score(data, tmp_path):
    def go(metrics=("fake_level",), **settings):
        options = {"batch_size": 6, "report": False, "cache": False, **settings}
        return Outcome(genmeter.score(data, list(metrics), out=tmp_path / "run", **options))

    return go


@pytest.fixture
def encode_as(monkeypatch):
    """``encode_as(f)``: encoders answer ``f(encoder, batch, features)``, where ``features`` are the right ones."""
    right = fakes._Fake.encode

    def patch(answer):
        sizes = []

        def encode(self, batch):
            sizes.append(len(batch))
            return answer(self, batch, right(self, batch))

        monkeypatch.setattr(fakes._Fake, "encode", encode)
        return sizes

    patch.right = right
    return patch


def fail(error):
    raise error


# Memory.


@pytest.mark.parametrize("error", [cuda_memory_error, MemoryError, lambda: RuntimeError("CUDA error: out of memory")])
def test_memory_that_runs_out_at_random_moves_no_score(score, encode_as, error):
    rng = random.Random(3)
    encode_as(lambda self, batch, right: fail(error()) if len(batch) > 1 and rng.random() < 0.4 else right)
    found = score(ALL)
    assert found.scores() == LEVELS
    assert found.errors("fake_pair") == found.errors("fake_gap") == {}


def test_memory_for_four_gives_every_batch_its_scores(score, encode_as):
    sizes = encode_as(lambda self, batch, right: fail(cuda_memory_error()) if len(batch) > 4 else right)
    assert score().scores() == LEVELS
    assert Counter(sizes) == {6: 4, 3: 8}, "each batch is halved once, and the next one begins whole again"


def test_an_item_that_never_fits_pays_alone(score, encode_as):
    def answer(self, batch, right):
        return fail(cuda_memory_error()) if any(mark(item) == LEVELS[BAD] for item in batch) else right

    encode_as(answer)
    error = score().one_bad("out_of_memory")
    assert "does not fit into the memory of cpu" in error["message"]
    assert "more memory" in error["hint"]
    encode_as(lambda self, batch, right: right)
    assert score().scores() == LEVELS, "the same command tries it again"


def test_an_item_that_never_fits_on_the_card_goes_to_the_cpu(monkeypatch):
    class Card:
        def encode(self, batch):
            raise cuda_memory_error()

    class Cpu:
        def encode(self, batch):
            return [Feature(np.ones((1, 2), np.float32), np.ones(1, np.float32)) for _ in batch]

    items = [Prepared((np.zeros((1, 4), np.float32),), np.ones(1, np.float32))] * 3
    found = batching.encode(Card(), items, "cuda:0", Cpu)
    assert [feature.detail for feature in found] == [{"device": "cpu"}] * 3
    for broken in (lambda: fail(MemoryError()), lambda: fail(RuntimeError("no CPU kernel"))):
        assert {error.code for error in batching.encode(Card(), items, "cuda:0", broken)} == {"out_of_memory"}


def test_memory_that_never_suffices_is_typed_on_every_sample(score, encode_as):
    encode_as(lambda self, batch, right: fail(cuda_memory_error()))
    found = score()
    assert {error["code"] for error in found.errors().values()} == {"out_of_memory"}
    assert len(found.errors()) == len(LEVELS)
    assert found.run.exit_code == 3


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (cuda_memory_error, "out_of_memory", "does not fit into the memory of cpu"),
        (lambda: RuntimeError("no kernel image"), "internal", "cannot be loaded on cpu: RuntimeError: no kernel image"),
        (lambda: SystemExit(1), "internal", "cannot be loaded"),
        (lambda: OSError(5, "Input/output error"), "internal", "cannot be loaded"),
        (lambda: ImportError("no module named x", name="x"), "extra_missing", "x is not installed"),
    ],
    ids=["memory", "runtime", "exit", "disk", "import"],
)
def test_an_encoder_that_cannot_be_loaded(score, monkeypatch, error, code, says):
    right = fakes._Fake.load

    def load(self, place, precision):
        return fail(error()) if self.name == "fake_pixels" else right(self, place, precision)

    monkeypatch.setattr(fakes._Fake, "load", load)
    found = score(["fake_level", "fake_pair"])
    assert {e["code"] for e in found.errors().values()} == {code}
    assert says in found.errors()[0]["message"]
    assert found.errors("fake_pair") == {}, "another metric's encoder is not concerned"
    monkeypatch.setattr(fakes._Fake, "load", right)
    assert score(["fake_level", "fake_pair"], retry_failed=["extra_missing"]).scores() == LEVELS


# Encoders that answer wrongly, for the bad item.

ONE = np.ones(1, np.float32)
VALUES = np.full((1, 3), 5, np.float32)
ANSWERS = {
    "NaN": Feature(VALUES * np.nan, ONE),
    "infinity": Feature(VALUES * np.inf, ONE),
    "nothing": None,
    "an array": VALUES,
    "a list": Feature([[1.0, 2.0, 3.0]], ONE),
    "one axis": Feature(VALUES[0], ONE),
    "three axes": Feature(VALUES[None], ONE),
    "no row": Feature(VALUES[:0], ONE[:0]),
    "no column": Feature(VALUES[:, :0], ONE),
    "too wide": Feature(np.ones((1, 5), np.float32), ONE),
    "objects": Feature(VALUES.astype(object), ONE),
    "complex numbers": Feature(VALUES.astype(np.complex64), ONE),
    "NaN weights": Feature(VALUES, ONE * np.nan),
    "no weights": Feature(VALUES, None),
    "two weights": Feature(VALUES, np.ones(2, np.float32)),
    "no weight at all": Feature(VALUES, ONE * 0),
    "negative weights": Feature(np.ones((2, 3), np.float32), np.array([2, -1], np.float32)),
    "NaN in the detail": Feature(VALUES, ONE, {"x": float("nan")}),
    "an object in the detail": Feature(VALUES, ONE, {"x": object()}),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_encoder_that_answers_wrongly(score, encode_as, answer):
    def swap(self, batch, right):
        if self.name != "fake_pixels":
            return right
        return [ANSWERS[answer] if mark(i) == LEVELS[BAD] else f for i, f in zip(batch, right, strict=True)]

    encode_as(swap)
    found = score(ALL)
    found.one_bad("non_finite" if answer in ("NaN", "infinity") else "internal")
    assert list(found.errors("fake_gap")) == [BAD], "the set is computed from the others"
    assert found.errors("fake_pair") == {}
    encode_as(lambda self, batch, right: right)
    again = score(ALL, retry_failed=["non_finite"])
    assert again.scores() == LEVELS
    assert again.errors("fake_gap") == {}


@pytest.mark.parametrize("error", [RuntimeError, KeyError, RecursionError, AssertionError, SystemExit, StopIteration])
def test_an_encoder_that_raises(score, encode_as, error):
    def answer(self, batch, right):
        return fail(error("broken")) if any(mark(item) == LEVELS[BAD] for item in batch) else right

    encode_as(answer)
    found = score(["fake_level", "fake_gap"]).one_bad("internal")
    assert error.__name__ in found["message"]


def test_an_encoder_that_raises_at_random_costs_nothing(score, encode_as):
    rng = random.Random(5)
    encode_as(
        lambda self, batch, right: fail(RuntimeError("flaky")) if len(batch) > 1 and rng.random() < 0.5 else right
    )
    assert score(ALL).scores() == LEVELS


@pytest.mark.parametrize(
    "count",
    [lambda right: right[:-1], lambda right: [*right, right[0]], lambda right: [], lambda right: None],
    ids=["one less", "one more", "none", "nothing"],
)
def test_an_encoder_that_miscounts_a_batch(score, encode_as, count):
    encode_as(lambda self, batch, right: right if len(batch) == 1 else count(right))
    assert score().scores() == LEVELS
    encode_as(lambda self, batch, right: count(right))
    found = score(fresh=True)
    assert {error["code"] for error in found.errors().values()} == {"internal"}


def test_numbers_of_another_type_are_scored_as_they_are_stored(score, encode_as):
    encode_as(lambda self, b, right: [f._replace(values=f.values.astype(np.float64) + 1e-12) for f in right])
    assert score().scores() == LEVELS


def test_an_interrupt_says_nothing_against_a_batch(score, encode_as, tmp_path):
    """Ctrl-C in one and the same batch, over and over: it is still run as a batch, and nothing in it is given up."""
    encode_as(lambda self, batch, right: fail(KeyboardInterrupt()))
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            score()
    with closing(sqlite3.connect(tmp_path / "run/journal.sqlite")) as db:
        assert db.execute("SELECT COUNT(*) FROM inflight").fetchone() == (0,)
    sizes = encode_as(lambda self, batch, right: right)
    assert score().scores() == LEVELS
    assert set(sizes) == {6}


def test_a_device_that_is_lost_stops_a_run_and_keeps_what_is_done(score, encode_as, monkeypatch):
    """As after a faulty CUDA kernel: every further call fails, so nothing after it may count as a failed sample."""
    monkeypatch.setattr(device, "device_kind", lambda place: "cuda")
    monkeypatch.setattr(device, "memory_budget", lambda place: 1 << 30)
    calls = []

    def answer(self, batch, right):
        calls.append(len(batch))
        return fail(RuntimeError("CUDA error: an illegal memory access\nCompile with")) if len(calls) > 2 else right

    encode_as(answer)
    with pytest.raises(
        device.DeviceLostError, match=r"cannot be used any more in this process \(CUDA error: an illegal"
    ):
        score()
    assert len(calls) == 3, "nothing is tried on it again"
    sizes = encode_as(lambda self, batch, right: right)
    assert score().scores() == LEVELS
    assert sizes == [6, 6], "two batches had been kept"
    encode_as(lambda self, batch, right: fail(RuntimeError("CUDA error: device-side assert")))
    with genmeter.Engine(["fake_level"]) as engine:  # a session answers each sample
        [result] = engine.score([{"id": "a", "output": Image.new("RGB", (8, 8))}])
    assert result.errors["fake_level"]["code"] == "internal"


@pytest.mark.parametrize("name", ["bytes_per_item", "prepare"])
@pytest.mark.parametrize("error", [RuntimeError, SystemExit, TypeError])
def test_an_encoder_whose_other_methods_raise(score, monkeypatch, name, error):
    monkeypatch.setattr(fakes.PixelEncoder, name, lambda *args: fail(error("broken")))
    found = score(["fake_level", "fake_pair"], batch_size=None)
    assert {e["code"] for e in found.errors().values()} == {"internal"}
    assert "broken" in found.errors()[0]["message"]
    assert found.errors("fake_pair") == {}


@pytest.mark.parametrize("prepared", [None, Prepared((), ONE), Prepared(([1, 2],), ONE), np.zeros(3)])
def test_an_encoder_that_prepares_nothing(score, monkeypatch, prepared):
    right = fakes.PixelEncoder.prepare

    def wrong(self, media, view):
        made = right(self, media, view)
        return prepared if mark(made) == LEVELS[BAD] else made

    monkeypatch.setattr(fakes.PixelEncoder, "prepare", wrong)
    assert "arrays were expected" in score(ALL).one_bad("internal")["message"]


# Decoding.


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError, "internal"), (SystemExit, "internal"), (MemoryError, "out_of_memory")]
)
def test_a_decoder_that_takes_its_thread_down(score, monkeypatch, error, code):
    right = files.decode

    def decode(blob, modality, policy):
        media = right(blob, modality, policy)
        return fail(error("broken")) if media.pixels[0, 0, 0] == LEVELS[BAD] else media

    monkeypatch.setattr(files, "decode", decode)
    found = score(ALL)
    assert found.one_bad(code)["message"]
    assert list(found.errors("fake_pair")) == [BAD]
    monkeypatch.setattr(files, "decode", right)
    assert score(ALL).scores() == LEVELS


# Scorers.

SCORES = {
    "NaN": Score(float("nan")),
    "infinity": Score(float("inf")),
    "nothing": None,
    "text": Score("high"),
    "an array": Score(np.ones(2)),
    "an unknown code": Unscored("no_such_code", "x"),
    "NaN in the detail": Score(1.0, detail={"x": float("nan")}),
    "an object in the detail": Score(1.0, detail={"x": object()}),
    "an exception": RuntimeError("broken"),
    "an exit": SystemExit(1),
    "no memory": MemoryError(),
}


@pytest.mark.parametrize("answer", SCORES)
def test_a_scorer_that_answers_wrongly(score, monkeypatch, answer):
    right = level.Level.score

    def wrong(self, items, params):
        made = right(self, items, params)
        swapped = [SCORES[answer] if s.value == LEVELS[BAD] else s for s in made]
        for item in swapped:
            if isinstance(item, BaseException):
                raise item
        return swapped

    monkeypatch.setattr(level.Level, "score", wrong)
    error = score(ALL).one_bad("non_finite" if answer in ("NaN", "infinity") else "internal")
    assert "please report it" in error["hint"]


@pytest.mark.parametrize("count", [lambda s: s[:-1], lambda s: [*s, s[0]], lambda s: None, lambda s: iter(s)])
def test_a_scorer_that_miscounts(score, monkeypatch, count):
    right = level.Level.score
    monkeypatch.setattr(level.Level, "score", lambda self, items, params: count(right(self, items, params)))
    found = score(["fake_level", "fake_pair"])
    assert {error["code"] for error in found.errors().values()} == {"internal"}
    assert found.errors("fake_pair") == {}


SETS = {
    "NaN": SetScore(float("nan"), {}, []),
    "nothing": None,
    "too few rows": SetScore(1.0, {}, [{"influence": 1.0}]),
    "NaN in a row": SetScore(1.0, {}, [{"influence": float("nan")}] * len(LEVELS)),
    "NaN in the detail": SetScore(1.0, {"x": float("nan")}, []),
    "an object in the detail": SetScore(1.0, {"x": object()}, []),
    "an exception": RuntimeError("broken"),
    "an exit": SystemExit(1),
    "no memory": MemoryError(),
}


@pytest.mark.parametrize("answer", SETS)
def test_a_set_metric_that_answers_wrongly(score, monkeypatch, answer):
    def wrong(self, prediction, reference, params):
        return fail(SETS[answer]) if isinstance(SETS[answer], BaseException) else SETS[answer]

    right = gap.Gap.score_set
    monkeypatch.setattr(gap.Gap, "score_set", wrong)
    found = score(ALL)
    assert len(found.errors("fake_gap")) == len(LEVELS)
    assert {e["code"] for e in found.errors("fake_gap").values()} <= {"internal", "non_finite"}
    assert found.scores() == LEVELS
    monkeypatch.setattr(gap.Gap, "score_set", right)
    assert score(ALL).errors("fake_gap") == {}


# The whole run.


def test_a_thousand_wrong_answers_at_random(score, encode_as, monkeypatch):
    """Every fault at once, at every item, with the same seed twice: nothing but typed errors, and the rest is right."""
    answers = [
        *ANSWERS.values(),
        cuda_memory_error(),
        RuntimeError("x"),
        SystemExit(1),
        GenmeterError("too_short", "x"),
    ]
    right_score = level.Level.score

    def answer(self, batch, right):
        made = []
        for item, feature in zip(batch, right, strict=True):
            rng = random.Random(f"{self.name}{mark(item)}")
            wrong = rng.choice(answers) if rng.random() < 0.3 else feature
            made.append(fail(wrong) if isinstance(wrong, BaseException) else wrong)
        return made[: random.Random(len(batch)).choice([None, None, -1])]

    encode_as(answer)
    monkeypatch.setattr(
        level.Level,
        "score",
        lambda self, items, p: [Score(np.nan) if s.value % 5 == 0 else s for s in right_score(self, items, p)],
    )
    found = score(ALL)
    good = [i for i, s in enumerate(found.scores()) if s is not None]
    assert 3 < len(good) < len(LEVELS)
    assert all(found.scores()[i] == LEVELS[i] for i in good if found.rows[i]["fake_level"]["score"] != 5.0)
    found.errors(), found.errors("fake_pair"), found.errors("fake_gap")


def test_a_run_that_fails_alike_from_the_start_stops_and_says_why(tmp_path, encode_as):
    path = tmp_path / "many.jsonl"
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    path.write_text("".join(json.dumps({"id": str(i), "output": f"{i}.png"}) + "\n" for i in range(400)))
    with pytest.raises(StoppedEarly) as stop:
        genmeter.score(path, ["fake_level"], out=tmp_path / "run", report=False)
    assert stop.value.error["code"] == "not_found"


def test_an_encoder_of_a_package_that_is_broken(score, monkeypatch):
    monkeypatch.setattr(fakes.PixelEncoder, "__init__", lambda *args: fail(RuntimeError("half installed")))
    with pytest.raises(GenmeterError, match="half installed") as error:
        score()
    assert error.value.code == "internal"
    monkeypatch.undo()
    assert score().scores() == LEVELS
