"""RoBERTa's tokenizer against transformers' own class on one small vocabulary, and what it refuses."""

from __future__ import annotations

import functools
import json
import random
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import clap_nets
import numpy as np
import pytest

from genmeter.encoders.clap.roberta_bpe import RobertaTokenizer, read_files
from genmeter.errors import GenmeterError
from genmeter.weights.clap import MERGES, VOCABULARY

pytest.importorskip("tokenizers")
FULL = 75  # tokens that fit beside start and end


def ours(step: int = 0) -> RobertaTokenizer:
    return RobertaTokenizer(*clap_nets.tokenizer_files(), 77, "clap-test", step)


@functools.lru_cache(maxsize=1)
def theirs() -> Any:
    transformers = pytest.importorskip("transformers")
    vocabulary, merges = clap_nets.tokenizer_files()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "vocab.json", Path(folder) / "merges.txt"]
        for path, data in zip(files, (vocabulary, merges), strict=True):
            path.write_bytes(data)
        try:
            return transformers.RobertaTokenizer(*map(str, files))  # up to version 4
        except TypeError:
            pairs = [tuple(line.split()) for line in merges.decode().split("\n")[1:] if line]
            return transformers.RobertaTokenizer(vocab=json.loads(vocabulary), merges=pairs)


CASES = (
    "",
    " ",
    "   ",
    "\n\n",
    "a dog barks",
    " a dog",
    "a  dog   barks ",
    "They're 12 dogs; it's café-noise: don't, I'll, we've, I'm, he'd!",
    "THEY'RE LOUD",
    "naïve “quoted” 🐶👩‍👩‍👧 — π≈3.14159",
    "一只狗在雨中叫",
    "tab\there\r\nand\u00a0there\u3000too",
    "<s> a dog </s> <pad> <mask> <unk>",
    "a<mask>b  <mask>  c",
    "<S> </S> <s></s>",
    "word " * 74,
    "word " * 75,
    "word " * 400,
    "x" * 500,
)


def draws() -> list[str]:
    draw = random.Random(0)
    alphabets = (
        "abcdefgh ijklmno pqrstuvwxyz ",
        "aAbB'\"!?.,-_&<>;# 0123456789",
        "的一是不了人我在 有他这 ",
        "абв αβγ ابت 🐶👩‍👩‍👧 éü\t\n",
    )
    words = ("cat's", "don't", "<s>", "</s>", "<mask>", "<pad>", "aaaaaaa", "of", "rain", "'ll", " ", "\n", "12345")
    found = []
    for _ in range(400):
        found.append(" ".join(draw.choice(words) for _ in range(draw.randint(0, 30))))
        found.append("".join(draw.choice(draw.choice(alphabets)) for _ in range(draw.randint(0, 70))))
    return found


def test_token_ids_are_those_of_transformers() -> None:
    mine, reference = ours(), theirs()
    # Version 5, made of bare files, forgets that <mask> takes the space before it; laion_clap runs on version 4.
    forgets = not isinstance(reference, pytest.importorskip("transformers").PreTrainedTokenizer)
    for text in [*CASES, *draws()]:
        if forgets and re.search(r"\s<mask>", text):
            continue
        expected = reference(text, padding="max_length", truncation=True, max_length=77)
        tokens = mine(text)
        assert tokens.ids.tolist() == expected["input_ids"], repr(text)
        assert tokens.count == len(reference(text)["input_ids"])
        assert tokens.truncated is (tokens.count > 77)


@pytest.mark.parametrize(("words", "count", "truncated"), [(FULL, 77, False), (FULL + 1, 78, True), (400, 402, True)])
def test_the_end_token_survives_cutting(words: int, count: int, truncated: bool) -> None:
    # One digit is one token, and a space before it joins none of them here.
    text = "7" * 0 + ",".join(["7"] * ((words + 1) // 2)) + ("," if words % 2 == 0 else "")
    mine = ours()
    while len(mine.encode(text)) < words:
        text += ";"
    tokens = mine(text)
    assert (tokens.count, tokens.truncated) == (count, truncated)
    assert len(tokens.ids) == 77
    assert tokens.ids[0] == 0
    assert tokens.ids[76] == 2
    assert tokens.ids.tolist().count(2) == 1


def test_padding_comes_in_steps() -> None:
    mine = ours(16)
    lengths = {len(mine(text).ids) for text in CASES}
    assert lengths <= {16, 32, 48, 64, 77}
    assert len(lengths) > 2
    for text in CASES:
        short, long = mine(text), ours()(text)
        assert np.array_equal(long.ids[: len(short.ids)], short.ids)
        assert (long.ids[len(short.ids) :] == 1).all()
        assert (short.count, short.truncated) == (long.count, long.truncated)


def test_any_string_has_tokens() -> None:
    mine = ours()
    for text in ("\ud800", "a\udfffb", "\x00\x01\x7f", "\ufffe\uffff", "\U0010ffff" * 90):
        tokens = mine(text)
        assert tokens.ids[0] == 0
        assert tokens.ids.max() < 500


def test_threads_share_one_tokenizer() -> None:
    mine = ours()
    texts = draws()[:200]
    expected = [ours()(text).ids.tolist() for text in texts]
    found: dict[int, list[list[int]]] = {}

    def work(index: int) -> None:
        found[index] = [mine(text).ids.tolist() for text in texts]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[i] == expected for i in range(4))


def test_the_cache_of_words_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genmeter.encoders.clip.bpe._CACHED_WORDS", 8)
    mine = ours()
    for text in draws()[:100]:
        mine(text)
        assert len(mine._cache) <= 8


VOCAB, PAIRS = clap_nets.tokenizer_files()


@pytest.mark.parametrize(
    ("vocabulary", "merges"),
    [
        (b"", PAIRS),
        (b"[1, 2]", PAIRS),
        (b"<!DOCTYPE html>", PAIRS),
        (VOCAB[:-20], PAIRS),
        (VOCAB.replace(b'"</s>":2', b'"</s>":502'), PAIRS),
        (VOCAB.replace(b'"</s>":2', b'"</t>":2'), PAIRS),
        (VOCAB, b"#version: 0.2\nqqqq zzzz\n"),
        (VOCAB, b"#version: 0.2\na b c\n"),
        (VOCAB, b"\xff\xfe"),
    ],
)
def test_files_that_are_no_tokenizer_are_refused(vocabulary: bytes, merges: bytes) -> None:
    with pytest.raises(GenmeterError) as caught:
        RobertaTokenizer(vocabulary, merges, 77, "clap-test")
    assert caught.value.code == "weights_mismatch"
    assert "clap-test" in caught.value.message


def test_the_files_are_read_from_the_weights(tmp_path: Path) -> None:
    path = clap_nets.save({}, tmp_path / "weights.safetensors")
    assert read_files(path, "clap-test", (VOCABULARY, MERGES)) == clap_nets.tokenizer_files()
    bare = clap_nets.save({"w": np.ones(3, np.float32)}, tmp_path / "bare.safetensors", tokenizer=False)
    with pytest.raises(GenmeterError, match=VOCABULARY):
        read_files(bare, "clap-test", (VOCABULARY, MERGES))
    (tmp_path / "broken").write_bytes(path.read_bytes()[:100])
    for broken in (tmp_path / "broken", tmp_path / "absent"):
        with pytest.raises(GenmeterError) as caught:
            read_files(broken, "clap-test", (VOCABULARY, MERGES))
        assert caught.value.code == "weights_mismatch"
