"""``genmeter score`` as people use it: files that are a little wrong, folders, pipes, configuration, exit codes."""

from __future__ import annotations

import gzip
import json
import sys

import numpy as np
import pytest
from PIL import Image

LEVEL = ("--metrics", "fake_level", "--no-report")


def rows(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def scores(run, metric="fake_level"):
    return [row["eval_result"].get("metrics", {}).get(metric, {}).get("score") for row in rows(run)]


def grey(path, level, size=(16, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), level, np.uint8)).save(path)


def test_one_line_in_one_line_out_in_order(genmeter_command, grey_set, tmp_path):
    data = grey_set([10, 20, 30])
    good = data.read_text().splitlines()
    text = "\ufeff" + "\r\n".join([good[0], "{broken", good[1], "", "[1, 2]", '{"id": "lost"}', good[2]])
    data.write_text(text, encoding="utf-8")
    done = genmeter_command("score", data, "-o", tmp_path / "run", *LEVEL)
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "run")
    assert scores(tmp_path / "run") == [10.0, None, 20.0, None, None, 30.0]
    assert [row["id"] for row in found] == ["s0", None, "s1", None, "lost", "s2"]
    assert found[1] == {
        "id": None,
        "line": 2,
        "eval_result": {"error": found[1]["eval_result"]["error"]},
    }
    assert [row["eval_result"].get("error", {}).get("code") for row in found] == [
        None, "bad_line", None, "bad_line", "bad_sample", None,
    ]  # fmt: skip
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["metrics"]["fake_level"]["n"]["failed"] == {"bad_line": 2, "bad_sample": 1}


def test_what_came_in_goes_out_unchanged(genmeter_command, grey_set, tmp_path):
    data = grey_set([10, 20, 30])
    short, standard, record = (json.loads(line) for line in data.read_text().splitlines())
    short |= {"seed": 7, "meta": {"深": [1.5, None, True]}, "big": 12345678901234567890123}
    standard = {
        "schema_version": "v1",
        "id": "std",
        "task_type": "text-to-image",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "苹果"}]}],
        "predict_result": [{"index": 0, "message": {"role": "assistant", "content": [
            {"type": "image_url", "image_url": {"url": "out/1.png"}}]}}],
        "eval_result": {"metrics": {"other": {"score": 1}, "fake_level": {"score": 3, "variant": "theirs"}}},
    }  # fmt: skip
    record = {
        "sample_id": "t:r",
        "sequence_id": 1,
        "sample": {**standard, "id": "rec", "eval_result": {}},
        "metrics": {},
    }
    data.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (short, standard, record)))
    assert genmeter_command("score", data, "-o", tmp_path / "run", *LEVEL).returncode == 0
    first, second, third = rows(tmp_path / "run")
    assert {key: first[key] for key in short} == short
    metrics = second.pop("eval_result")["metrics"]
    assert second == {key: value for key, value in standard.items() if key != "eval_result"}
    assert metrics["other"] == {"score": 1}
    assert metrics["fake_level"]["score"] == 20.0
    assert metrics["fake_level"]["previous"] == [{"score": 3, "variant": "theirs"}]
    assert third["sample"]["eval_result"]["metrics"]["fake_level"]["score"] == 20.0
    assert "eval_result" not in third


def test_gzip_and_standard_input(genmeter_command, grey_set, tmp_path):
    data = grey_set([10, 20])
    packed = data.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(data.read_bytes()))
    assert genmeter_command("score", packed, "-o", tmp_path / "gz", *LEVEL).returncode == 0
    with open(data, "rb") as stream:
        done = genmeter_command("score", "-", "-o", tmp_path / "in", *LEVEL, stdin=stream, cwd=data.parent)
    assert done.returncode == 0, done.stderr
    assert scores(tmp_path / "gz") == scores(tmp_path / "in") == [10.0, 20.0]


def test_a_folder_against_a_folder(genmeter_command, tmp_path):
    for stem, level in (("b", 20), ("a", 10), ("sub/c", 30), ("lonely", 40)):
        grey(tmp_path / f"out/{stem}.PNG", level)
    for stem, level in (("a", 11), ("b", 22), ("sub/c", 33), ("unused", 44)):
        grey(tmp_path / f"ref/{stem}.bmp", level)
    (tmp_path / "out/notes.txt").write_text("not media")
    (tmp_path / "prompts.csv").write_text("file,prompt\na,an apple\nb,a bee\nsub/c,a cat\n")
    words = ("--references", tmp_path / "ref", "--prompts", tmp_path / "prompts.csv", "--no-report")
    done = genmeter_command(
        "score", tmp_path / "out", "-o", tmp_path / "run", "--metrics", "fake_pair,fake_match", *words
    )
    assert done.returncode == 0, done.stderr
    assert {row["id"]: row["eval_result"]["metrics"]["fake_pair"].get("score") for row in rows(tmp_path / "run")} == {
        "a": 1.0, "b": 2.0, "lonely": None, "sub/c": 3.0,
    }  # fmt: skip
    assert "lonely" in done.stderr
    assert "unused" in done.stderr


def test_folders_without_a_pair_end_with_an_example(genmeter_command, tmp_path):
    grey(tmp_path / "out/img_1.png", 1)
    grey(tmp_path / "ref/gt_1.png", 1)
    done = genmeter_command("score", tmp_path / "out", "--references", tmp_path / "ref", "-o", tmp_path / "run", *LEVEL)
    assert done.returncode == 2
    assert "img_1" in done.stderr
    assert "gt_1" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere.jsonl",), "nowhere.jsonl"),
        (("{data}", "--metrics", "fake_leve"), "did you mean 'fake_level'"),
        (("{data}", "--device", "cuda:9"), "--device cpu"),
        (("{data}", "--device", "tpu"), "unknown device"),
        (("{data}", "--metrics", "lpips@alexx"), "alex"),
        (("{data}", "--config", "{config}"), "did you mean 'metrics'"),
        (("{data}", "--profile", "huge"), "profile"),
        (("{data}", "--candidate", "middle"), "candidate"),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_2(genmeter_command, grey_set, tmp_path, words, message):
    data, config = grey_set([1]), tmp_path / "run.yaml"
    config.write_text("metrix:\n  fake_level: {}\n")
    done = genmeter_command("score", *[word.format(data=data, config=config) for word in words], "-o", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run/samples.jsonl").exists()


def test_nothing_scored_is_exit_3_and_null(genmeter_command, grey_set, tmp_path):
    data = grey_set([1, 2])
    for name in ("0", "1"):
        (data.parent / f"out/{name}.png").write_text("<!DOCTYPE html><html>404</html>")
    done = genmeter_command("score", data, "-o", tmp_path / "run", *LEVEL)
    assert done.returncode == 3
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["metrics"]["fake_level"]["mean"] is None
    assert summary["metrics"]["fake_level"]["n"]["failed"] == {"unsupported_media": 2}


def test_an_empty_input_is_exit_3(genmeter_command, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    done = genmeter_command("score", tmp_path / "empty.jsonl", "-o", tmp_path / "run", *LEVEL)
    assert done.returncode == 3
    assert (tmp_path / "run/samples.jsonl").read_text() == ""


def test_max_failed(genmeter_command, grey_set, tmp_path):
    data = grey_set([1, 2, 3, 4])
    (data.parent / "out/0.png").unlink()
    words = ("score", data, "-o", tmp_path / "run", *LEVEL, "--max-failed")
    assert genmeter_command(*words, "1").returncode == 0
    assert genmeter_command(*words, "25%").returncode == 0
    refused = genmeter_command(*words, "0")
    assert refused.returncode == 3
    assert "1 of 4 failed" in refused.stderr
    assert genmeter_command(*words, "many").returncode == 2


def test_json_is_all_that_stands_on_stdout(genmeter_command, grey_set, tmp_path):
    done = genmeter_command("score", grey_set([1]), "-o", tmp_path / "run", *LEVEL, "--json")
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "run/summary.json").read_text())


def test_the_configuration_says_what_flags_say_and_flags_win(genmeter_command, grey_set, tmp_path):
    data, config = grey_set([10, 250]), tmp_path / "run.yaml"
    config.write_text(
        "name: from-file\n"
        f"media_root: {data.parent}\n"
        "metrics:\n  fake_level: {alpha: drop}\n"
        "thresholds:\n  fake_level: {min: 100}\n"
        "overall: {metric: fake_level}\n"
    )
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_text(data.read_text())
    done = genmeter_command("score", moved, "-o", tmp_path / "run", "--config", config, "--no-report", "--name", "flag")
    assert done.returncode == 0, done.stderr
    low, high = (row["eval_result"] for row in rows(tmp_path / "run"))
    assert low["metrics"]["fake_level"]["variant"] == "mean,alpha=drop"
    assert low["overall"] == {"score": 10.0, "passed": False}
    assert high["overall"] == {"score": 250.0, "passed": True}
    assert low["judge"]["verdict"] == "fail"
    assert "below 100" in low["judge"]["reason"]
    assert json.loads((tmp_path / "run/run.json").read_text())["name"] == "flag"


def test_metrics_of_the_sample(genmeter_command, grey_set, tmp_path):
    data = grey_set([10, 20, 30])
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[0]["eval_config"] = {"metrics": ["fake_level"]}
    lines[1]["eval_config"] = {"metrics": ["fake_pair", "clip_unknown"]}
    lines[2]["eval_config"] = {"metrics": []}
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert genmeter_command("score", data, "-o", tmp_path / "own", "--no-report").returncode == 0
    found = [row["eval_result"]["metrics"] for row in rows(tmp_path / "own")]
    assert [sorted(metrics) for metrics in found] == [["fake_level"], ["clip_unknown", "fake_pair"], []]
    assert found[1]["clip_unknown"]["error"]["code"] == "unknown_metric"
    words = ("--metrics", "fake_level,fake_pair", "--no-report")
    genmeter_command("score", data, "-o", tmp_path / "all", *words)
    assert [sorted(row["eval_result"]["metrics"]) for row in rows(tmp_path / "all")] == [
        ["fake_level", "fake_pair"]
    ] * 3
    genmeter_command("score", data, "-o", tmp_path / "both", *words, "--metrics-from", "sample")
    assert [sorted(row["eval_result"]["metrics"]) for row in rows(tmp_path / "both")] == [
        ["fake_level"],
        ["fake_pair"],
        [],
    ]


def test_what_does_not_apply_is_skipped_not_failed(genmeter_command, grey_set, tmp_path):
    data = grey_set([10, 20])
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    lines[1]["task_type"] = "short-answer"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    genmeter_command("score", data, "-o", tmp_path / "run", *LEVEL)
    n = json.loads((tmp_path / "run/summary.json").read_text())["metrics"]["fake_level"]["n"]
    assert (n["scored"], n["n_failed"], n["skipped"]) == (1, 0, 1)


def test_what_a_sample_lacks_is_no_failure_where_the_metric_is_made_for_other_tasks(
    genmeter_command, grey_set, tmp_path
):
    data = grey_set([10, 20, 30])
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for line in lines[1:]:
        del line["reference"]
    lines[1]["task_type"] = "text-to-image"
    lines[2]["task_type"] = "image-to-image"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    genmeter_command("score", data, "-o", tmp_path / "run", "--metrics", "fake_pair", "--no-report")
    n = json.loads((tmp_path / "run/summary.json").read_text())["metrics"]["fake_pair"]["n"]
    assert (n["scored"], n["failed"], n["skipped"]) == (1, {"no_reference": 1}, 1)


def test_media_outside_the_roots_are_forbidden_and_one_root_admits_them(genmeter_command, grey_set, tmp_path):
    data = grey_set([10, 20])
    other = tmp_path / "other/s.jsonl"
    other.parent.mkdir()
    other.write_text(
        data.read_text().replace('"out/', f'"{data.parent}/out/').replace('"ref.png"', f'"{data.parent}/ref.png"')
    )
    done = genmeter_command("score", other, "-o", tmp_path / "run", *LEVEL, cwd=other.parent)
    assert done.returncode == 3
    error = rows(tmp_path / "run")[0]["eval_result"]["metrics"]["fake_level"]["error"]
    assert error["code"] == "forbidden"
    assert "--media-root" in error["hint"]
    words = ("--media-root", data.parent, "--fresh")
    assert genmeter_command("score", other, "-o", tmp_path / "run", *LEVEL, *words, cwd=other.parent).returncode == 0
    assert scores(tmp_path / "run") == [10.0, 20.0]


def test_plan_scores_nothing(genmeter_command, grey_set, tmp_path):
    data = grey_set([10, 20])
    (data.parent / "out/1.png").unlink()
    done = genmeter_command("score", data, "-o", tmp_path / "run", *LEVEL, "--plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("out/0.png", "asked for", "not_found", "Time", "Disk"):
        assert word in done.stdout
    assert not (tmp_path / "run").exists()
    found = json.loads(genmeter_command("score", data, "--plan", "--json", *LEVEL).stdout)
    assert found["probe"]["failures"] == {"not_found": 1}


def test_a_warm_run_does_not_import_torch(genmeter_command, grey_set, tmp_path, lpips_weights):
    data = grey_set([10, 20], folder="big")
    for path in [*data.parent.glob("out/*.png"), data.parent / "ref.png"]:
        Image.open(path).resize((40, 40)).save(path)
    code = (
        "import sys; from genmeter.cli.main import app; sys.argv = ['genmeter'] + sys.argv[1:]\n"
        "try: app()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print('TORCH' if 'torch' in sys.modules else 'LIGHT', file=sys.stderr)"
    )
    import os
    import subprocess

    def run(out):
        command = [sys.executable, "-c", code, "score", str(data), "-o", str(out), "--metrics", "lpips", "--no-report"]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120)

    first, second = run(tmp_path / "cold"), run(tmp_path / "warm")
    assert "TORCH" in first.stderr, first.stderr
    assert "LIGHT" in second.stderr, second.stderr
    assert scores(tmp_path / "warm", "lpips") == scores(tmp_path / "cold", "lpips")
    assert None not in scores(tmp_path / "warm", "lpips")
