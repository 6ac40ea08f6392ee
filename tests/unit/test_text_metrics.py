"""Metrics of texts: against the standard's samples, sacrebleu itself, and what must hold of any comparison of calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

import genmeter
from genmeter.goldens import read_cases
from genmeter.metrics.trajectory_match.calls import Call, fits, matched
from genmeter.metricspec import read_spec
from genmeter.registry import get_metric, make_scorer, parse_variant

SAMPLES = Path(__file__).parents[1] / "fixtures/samples"
METRICS = ("exact_match", "bleu", "trajectory_match")
CASES = [case for metric in METRICS for case in read_cases(get_metric(metric).path)]


def standard(number: str) -> dict[str, Any]:
    [path] = SAMPLES.glob(f"{number}_*.json")
    return json.loads(path.read_text(encoding="utf-8"))


def command(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "genmeter.cli.main", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, encoding="utf-8", timeout=60)


def said(text: str, calls: Any = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return {"message": message | ({"tool_calls": calls} if calls is not None else {})}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def evaluate(sample: dict[str, Any], metric: str, **settings: Any) -> dict[str, Any]:
    """The entry of one metric for one sample."""
    with genmeter.Engine([metric], device="cpu", **settings) as engine:
        [result] = engine.score([sample])
    return result.eval_result["metrics"][metric]


def qa(answer: str, **fields: Any) -> dict[str, Any]:
    return {"id": "1", "task_type": "short-answer", "messages": [], "predict_result": [said(answer)], **fields}


def choice(answer: str, **fields: Any) -> dict[str, Any]:
    sample = standard("02") | {"predict_result": [said(answer)]}
    return {key: value for key, value in (sample | fields).items() if value is not None}


def trajectory(golden: Any, calls: Any, **settings: Any) -> Any:
    """The score of calls against golden trajectories, of the scorer itself."""
    variant = parse_variant("trajectory_match", settings)
    answer = {"text": "", "predict_result": said("", calls), "golden_trajectories": golden}
    [score] = make_scorer(variant).score([{"answer": answer}], variant.params)
    return score


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.variant}: {case.name}")
def test_goldens(case):
    variant = parse_variant(case.variant, case.parameters)
    scores = make_scorer(variant).score(case.items, variant.params)
    assert case.value([score.value for score in scores]) == pytest.approx(case.expected, abs=case.tolerance)


def test_samples_of_the_standard_from_end_to_end(tmp_path):
    good, agent = standard("01"), standard("13")
    right = agent["golden_trajectories"][0][0]["tool_calls"]
    wrong = [call("query_finance", '{"metric": "营业收入"}')]
    lines = [
        good | {"id": "good", "predict_result": [said("4")]},
        good | {"id": "bad", "predict_result": [said("5")]},
        agent | {"id": "agent good", "predict_result": [said("31.1", right)]},
        agent | {"id": "agent bad", "predict_result": [said("31.2", wrong)]},
        agent
        | {
            "id": "steps",
            "predict_result": [{"index": i, "message": m} for i, m in enumerate(agent["golden_trajectories"][0])],
        },
    ]
    path = tmp_path / "qa.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    assert command("score", path, "--out", tmp_path / "run", "--no-report").returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {row["id"]: {k: v["score"] for k, v in row["eval_result"]["metrics"].items()} for row in rows}
    assert found["good"] == {"exact_match": 1.0}
    assert found["bad"] == {"exact_match": 0.0}
    assert found["agent good"] == {"exact_match": 1.0, "trajectory_match": 1.0}
    assert found["agent bad"] == {"exact_match": 0.0, "trajectory_match": 0.0}
    assert found["steps"] == {"exact_match": 1.0, "trajectory_match": 1.0}
    inputs = rows[2]["eval_result"]["metrics"]["trajectory_match"]["inputs"]
    assert [(item["role"], item["path"]) for item in inputs] == [
        ("prediction", "predict_result[0]"),
        ("reference", "golden_trajectories"),
    ]
    assert len({item["digest"] for item in inputs}) == 2


def test_a_sample_that_names_no_metric_is_told_what_to_do(tmp_path):
    path = tmp_path / "mc.jsonl"
    path.write_text(json.dumps(choice("B")), encoding="utf-8")
    done = command("score", path, "--out", tmp_path / "run", "--no-report")
    assert done.returncode == 3
    assert "--metrics exact_match" in done.stderr
    assert command("score", path, "--metrics", "exact_match", "--out", tmp_path / "run2").returncode == 0
    planned = command("score", path, "--metrics", "exact_match", "--plan")
    assert planned.returncode == 0
    assert "references[0]" in planned.stdout


# --- exact match ----------------------------------------------------------------------------------------------------


def test_any_reference_may_be_met_and_the_label_stands_in():
    entry = evaluate(qa("  four\n", references=["4", "four"]), "exact_match")
    assert (entry["score"], entry["detail"]["matched"]) == (1.0, 1)
    assert evaluate(qa("4", label=4), "exact_match")["score"] == 1.0
    assert evaluate(qa("4", references=["5"], label="4"), "exact_match")["score"] == 0.0
    assert evaluate(qa("4"), "exact_match")["error"]["code"] == "no_reference"
    assert evaluate(qa(" "), "exact_match")["error"]["code"] == "no_prediction"


@pytest.mark.parametrize("answer", ["B", "(B)", "B. 海豚", "海豚", "答案是B"])
def test_ways_to_name_an_option(answer):
    entry = evaluate(choice(answer), "exact_match")
    assert (entry["score"], entry["detail"]) == (1.0, {"resolved": "B", "correct": ["B"]})


@pytest.mark.parametrize("answer", ["鲸鱼", "B 或 C", "I do not know"])
def test_an_answer_that_names_no_option_or_two_is_wrong(answer):
    entry = evaluate(choice(answer), "exact_match")
    assert (entry["score"], entry["detail"]["resolved"]) == (0.0, None)


@pytest.mark.parametrize(
    "truth",
    [
        {"references": ["海豚"], "label": "B"},
        {"references": None, "label": 1},
        {"references": None, "label": None, "metadata": {"correct_choice": "B"}},
    ],
)
def test_ways_to_say_which_option_is_right(truth):
    assert evaluate(choice("B", **truth), "exact_match")["score"] == 1.0
    assert evaluate(choice("C", **truth), "exact_match")["score"] == 0.0


@pytest.mark.parametrize(
    ("truth", "code", "word"),
    [
        ({"label": "C"}, "bad_sample", "different"),
        ({"metadata": {"correct_choice": "A"}}, "bad_sample", "different"),
        ({"references": ["鲸鱼"]}, "bad_sample", "references[0]"),
        ({"references": None, "label": None}, "no_reference", "label"),
    ],
)
def test_a_choice_whose_truth_is_not_known_has_no_score(truth, code, word):
    error = evaluate(choice("B", **truth), "exact_match")["error"]
    assert error["code"] == code
    assert word in error["message"]


# --- BLEU -----------------------------------------------------------------------------------------------------------

WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ",", "Mat."]), min_size=1, max_size=9)
SENTENCE = WORDS.map(" ".join)


@given(SENTENCE, st.lists(SENTENCE, min_size=1, max_size=3), st.sampled_from(["13a", "char", "intl", "none"]))
def test_bleu_is_that_of_sacrebleu_with_all_references_together(text, references, tokenize):
    variant = parse_variant("bleu", {"tokenize": tokenize})
    [score] = make_scorer(variant).score([{"answer": {"text": text, "references": references}}], variant.params)
    theirs = BLEU(effective_order=True, tokenize=tokenize)
    assert score.value == pytest.approx(theirs.sentence_score(text, references).score / 100, abs=1e-12)
    assert 0.0 <= score.value <= 1.0
    assert score.detail["signature"] == str(theirs.get_signature())


def test_corpus_bleu_follows_from_the_counts_in_the_rows():
    pairs = [("the cat sat on the mat today", "the cat sat on a mat"), ("a dog ran to me", "a dog ran to the house")]
    rows = [evaluate(qa(text, references=[ref]), "bleu")["detail"] for text, ref in pairs]
    sums = [[sum(row[key][n] for row in rows) for n in range(4)] for key in ("matches", "ngrams")]
    lengths = [sum(row[key] for row in rows) for key in ("length", "reference_length")]
    ours = BLEU.compute_bleu(*sums, *lengths).score
    assert ours == pytest.approx(BLEU().corpus_score([p[0] for p in pairs], [[p[1] for p in pairs]]).score)


def test_the_tokenizer_follows_the_references_and_is_stated():
    assert evaluate(qa("hi there", references=["hi"]), "bleu")["detail"]["tokenize"] == "13a"
    entry = evaluate(qa("今天很好", references=["hi", "今天很冷"]), "bleu")
    assert entry["detail"]["tokenize"] == "zh"
    assert "tok:zh" in entry["detail"]["signature"]
    assert 0.0 < entry["score"] < 1.0


# --- trajectories ---------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
PATH = st.lists(st.tuples(st.sampled_from(["f", "g"]), ARGUMENTS), max_size=4)


@given(PATH, st.randoms())
def test_a_trajectory_matches_itself_however_it_is_written(path, random):
    golden = [[{"role": "assistant", "tool_calls": [call(n, json.dumps(a))]} for n, a in path]]
    turned = [(name, dict(random.sample(sorted(a.items()), len(a)))) for name, a in path]
    assert trajectory(golden, [call(n, a) for n, a in turned]).value == 1.0
    assert trajectory(golden, [call(n, a) for n, a in turned] + [call("h", {})]).value == 0.0
    assert trajectory(golden, [call("h", {}), *(call(n, a) for n, a in turned)], extra="allow").value == 1.0
    random.shuffle(turned)
    assert trajectory(golden, [call(n, a) for n, a in turned], order="any").value == 1.0
    wider = [call(n, {**a, "more": 1}) for n, a in path]
    assert trajectory(golden, wider, arguments="subset").value == 1.0
    assert trajectory(golden, wider).value == float(not path)
    if path:
        assert trajectory(golden, [call(n, a) for n, a in path[:-1]]).value == 0.0


@given(st.lists(st.tuples(st.sampled_from("fg"), ARGUMENTS), max_size=4), PATH)
def test_in_order_never_matches_more_than_in_any_order(found, golden):
    one, two = [Call(*pair) for pair in found], [Call(*pair) for pair in golden]
    for arguments in ("exact", "subset", "names"):
        strict = matched(one, two, order="strict", arguments=arguments)
        loose = matched(one, two, order="any", arguments=arguments)
        assert strict <= loose <= min(len(one), len(two))
        assert loose <= sum(any(fits(c, wanted, arguments) for c in one) for wanted in two)


def test_which_trajectory_is_nearest_and_what_differs():
    golden = [
        [{"tool_calls": [call("g", {}), call("h", {})]}],
        [{"tool_calls": [call("f", {"a": 1}), call("g", {})]}],
    ]
    score = trajectory(golden, [call("f", {"a": True}), call("g", "")])
    assert score.value == 0.0
    assert score.detail["trajectory"] in (0, 1)
    assert score.detail["matched"] == 1
    assert "call 0" in score.detail["difference"]
    assert trajectory(golden, [call("f", '{"a": 1.0}'), call("g", None)]).detail["trajectory"] == 1


def test_arguments_that_cannot_be_read():
    golden = [[{"tool_calls": [call("f", {})]}]]
    score = trajectory(golden, [call("f", '{"a": ')])
    assert (score.value, score.detail["unreadable_arguments"]) == (0.0, ["f"])
    assert trajectory(golden, ["no call"]).value == 0.0
    unreadable = ([{"tool_calls": [call("f", "{")]}], [{"tool_calls": [{}]}], [{"tool_calls": 3}], ["text"], "text")
    for broken in (*([path] for path in unreadable), {"a": []}):
        unscored = trajectory(broken, [])
        assert unscored.code == "bad_sample"
        assert unscored.message.startswith("golden_trajectories")


@pytest.mark.parametrize("key", ["agent_trace", "messages"])
def test_calls_of_an_entry_that_keeps_its_run(key):
    sample = standard("13")
    entry = said("31.1") | {"raw_response": object(), key: sample["golden_trajectories"][0]}
    assert evaluate(sample | {"predict_result": [entry]}, "trajectory_match")["score"] == 1.0
    lacking = evaluate({**sample, "predict_result": [entry], "golden_trajectories": []}, "trajectory_match")
    assert lacking["error"]["code"] == "no_reference"
    none = evaluate(sample | {"predict_result": []}, "trajectory_match")
    assert none["error"]["code"] == "no_prediction"


# --- what a metric may ask for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ('roles = ["prediction"]\nfields = ["secrets"]', "secrets"),
        ('roles = ["reference"]\nfields = ["choice"]', "prediction"),
        ('roles = ["prediction"]\nencoder = "clip"\nfields = ["choice"]', "encoder"),
    ],
)
def test_a_need_with_fields_that_it_cannot_have(tmp_path, fields, word):
    head = 'id = "x"\ntitle = "X"\nscope = "sample"\nhigher_is_better = true\n'
    path = tmp_path / "metric.toml"
    path.write_text(f'{head}[needs.answer]\nmodality = "text"\n{fields}\n')
    with pytest.raises(ValueError, match=word):
        read_spec(path, module="x")
