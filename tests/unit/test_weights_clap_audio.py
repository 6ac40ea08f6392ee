"""LAION's and transformers' CLAP checkpoints to canonical tensors: what is forgiven, what is not, what is never run."""

from __future__ import annotations

import functools
import io
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import clap_nets
import laion_reference
import numpy as np
import pytest

from genmeter.errors import GenmeterError
from genmeter.weights.clap import FRONT_END, MERGES, STRAY, VOCABULARY, canonical_names, transformers_names
from genmeter.weights.convert import convert
from genmeter.weights.digest import tensors_digest
from genmeter.weights.lock import load_lock, trust
from genmeter.weights.torch_reader import read_checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
Tensors = dict[str, np.ndarray]

HEADS = {
    "audio_branch.tscam_conv.weight": (5, 32, 2, 3),
    "audio_branch.tscam_conv.bias": (5,),
    "audio_branch.head.weight": (5, 5),
    "audio_branch.head.bias": (5,),
    **{f"{tower}_transform.sequential.{n}.weight": (32, 32) for tower in ("audio", "text") for n in (0, 3)},
    **{f"{tower}_transform.sequential.{n}.bias": (32,) for tower in ("audio", "text") for n in (0, 3)},
}


def canonical(fusion: bool = False) -> Tensors:
    scales = {name: np.full((), 2.6592, np.float32) for name in ("logit_scale_a", "logit_scale_t")}
    return network(fusion) | scales


@functools.lru_cache(maxsize=2)
def network(fusion: bool) -> Tensors:
    return clap_nets.random_tensors(clap_nets.entry(fusion=fusion))


def laion_state(fusion: bool = False) -> dict[str, Any]:
    """A state_dict as LAION's training wrote it, constants and unused heads included."""
    state: dict[str, Any] = {name: torch.from_numpy(value) for name, value in canonical(fusion).items()}
    state.update({name: torch.zeros(shape) for name, shape in HEADS.items()})
    state.update({name: torch.full((3,), 0.5) for name in FRONT_END})  # compared when a network is loaded, not here
    state["audio_branch.bn0.num_batches_tracked"] = torch.tensor(7)
    for stage in (0, 1):
        for block in (0, 1):
            base = f"audio_branch.layers.{stage}.blocks.{block}"
            state[f"{base}.attn.relative_position_index"] = torch.zeros((64, 64), dtype=torch.long)
        state[f"{base}.attn_mask"] = torch.zeros((64, 64, 64))
    return state


def hf_state(fusion: bool = False) -> dict[str, Any]:
    """The same network as transformers saves it."""
    return dict(_hf_state(fusion))


@functools.lru_cache(maxsize=2)
def _hf_state(fusion: bool) -> dict[str, Any]:
    from genmeter.encoders.clap.architectures import architecture
    from genmeter.encoders.clap.huggingface import TransformersNetwork
    from genmeter.encoders.clap.towers import _fill

    entry = clap_nets.entry(fusion=fusion)
    made = TransformersNetwork(architecture(entry, fusion, 64))
    _fill(made.places(), dict(network(fusion)), "clap-test")
    return dict(made._model.state_dict())


def saved(tree: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(tree, stream)
    stream.seek(0)
    return stream


def parts(tree: Any, vocab: bytes | None = None, merges: bytes | None = None) -> dict[str, io.BytesIO]:
    vocabulary, pairs = clap_nets.tokenizer_files()
    return {
        "weights": tree if isinstance(tree, io.BytesIO) else saved(tree),
        "vocab": io.BytesIO(vocabulary if vocab is None else vocab),
        "merges": io.BytesIO(pairs if merges is None else merges),
    }


def read(state: Mapping[str, Any], converter: str = "laion_clap") -> Tensors:
    return convert(converter, parts({"epoch": np.float64(15), "name": "x", "state_dict": dict(state)}))


def refused(tree: Any, converter: str = "laion_clap", **files: bytes) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        convert(converter, parts(tree, **files))
    assert caught.value.code == "weights_mismatch"
    return caught.value


# --- what comes out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_training_checkpoint_becomes_its_weights_and_the_tokenizer(fusion: bool, prefix: str) -> None:
    state = laion_state(fusion)
    tensors = read({prefix + name: value for name, value in state.items()})
    expected = canonical(fusion)
    vocabulary, merges = clap_nets.tokenizer_files()
    assert set(tensors) == set(expected) | set(FRONT_END) | {VOCABULARY, MERGES}
    for name, value in expected.items():
        assert tensors[name].dtype == np.float32
        np.testing.assert_array_equal(tensors[name], value)
    assert (bytes(tensors[VOCABULARY]), bytes(tensors[MERGES])) == (vocabulary, merges)


@pytest.mark.parametrize("fusion", [False, True])
def test_both_published_forms_become_the_same_tensors(fusion: bool) -> None:
    tensors = convert("transformers_clap", parts(hf_state(fusion)))
    expected = canonical(fusion)
    for scale in ("logit_scale_a", "logit_scale_t"):
        tensors.pop(scale), expected.pop(scale)
    vocabulary, merges = tensors.pop(VOCABULARY), tensors.pop(MERGES)
    assert (bytes(vocabulary), bytes(merges)) == clap_nets.tokenizer_files()
    assert tensors_digest(tensors) == tensors_digest(expected)


def test_the_names_are_those_of_the_packages_own_model() -> None:
    if laion_reference.folder() is None:
        pytest.skip("laion-clap is not installed")
    for fusion in (False, True):
        made = laion_reference.model(
            clap_nets.entry(fusion=fusion), clap_nets.random_tensors(clap_nets.entry(fusion=fusion))
        )
        theirs = set(made.state_dict())
        constants = {name for name in theirs if name.rpartition(".")[2] in ("num_batches_tracked", "attn_mask")}
        constants |= {name for name in theirs if name.endswith("relative_position_index")}
        assert theirs - constants == set(canonical_names((2, 2), 3, fusion)) | set(HEADS) | set(FRONT_END)


def test_names_of_the_other_form_are_all_different_and_all_there() -> None:
    names = [theirs for name in canonical_names((2, 2, 6, 2), 12, True) for theirs in transformers_names(name)]
    assert len(names) == len(set(names))
    small = {theirs for name in canonical_names((2, 2), 3, True) for theirs in transformers_names(name)}
    constants = ("num_batches_tracked", "relative_position_index", "position_ids", "token_type_ids")
    assert small == {name for name in hf_state(True) if not name.endswith(constants)}


# --- case B20: which keys may be amiss ---------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_stray_positions_alone_are_forgiven_and_noted(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    state = laion_state()
    expected = tensors_digest(read(state))
    state[STRAY] = torch.arange(514)[None]
    with caplog.at_level(logging.INFO, "genmeter.weights.clap"):
        found = read({prefix + name: value for name, value in state.items()})
    assert tensors_digest(found) == expected
    assert STRAY in caplog.text
    caplog.clear()
    read(laion_state())
    assert STRAY not in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "text_branch.embeddings.token_type_ids",
        "text_branch.position_ids",
        "audio_branch.embeddings.position_ids",
        "text_branch.encoder.layer.3.output.dense.weight",
        "text_projection.4.weight",
        "audio_branch.layers.0.blocks.0.attn.qkv.scale",
        "audio_branch.extra.num_batches_tracked",
        "audio_branch.layers.0.blocks.7.attn_mask",
        "visual.proj",
        "bias",
    ],
)
def test_any_other_extra_key_is_refused_by_name(name: str) -> None:
    message = refused({"state_dict": {**laion_state(), name: torch.zeros(3)}}).message
    assert name in message or "missing" in message
    assert "unexpected" in message or "missing" in message


CONSTANTS = ("num_batches_tracked", "relative_position_index", "attn_mask", "position_ids", "token_type_ids")


@pytest.mark.parametrize(("converter", "make"), [("laion_clap", laion_state), ("transformers_clap", hf_state)])
def test_every_missing_key_is_refused(converter: str, make: Callable[[], dict[str, Any]]) -> None:
    whole = make()
    named = 0
    for name in whole:
        state = {key: value for key, value in whole.items() if key != name}
        if name.rpartition(".")[2] in CONSTANTS:
            assert convert(converter, parts(state))  # the network makes it by itself
            continue
        message = refused({"state_dict": state}, converter).message
        assert "missing" in message, name
        named += name in message
    assert named > len(whole) // 2  # else the message begins with the other names of a list


def test_an_extra_key_of_the_other_form_is_refused() -> None:
    assert (
        "text_model.extra" in refused({**hf_state(), "text_model.extra": torch.zeros(3)}, "transformers_clap").message
    )


# --- case B21 and kin: what is opened, and what is not run -------------------------------------------------------


class _Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("converter", ["laion_clap", "transformers_clap"])
def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, converter: str) -> None:
    marker = tmp_path / "marker"
    state = laion_state() if converter == "laion_clap" else hf_state()
    for tree in (
        {"state_dict": {**state, "audio_branch.bn0.weight": _Touch(str(marker))}},
        {"state_dict": state, "optimizer": _Touch(str(marker))},
        _Touch(str(marker)),
    ):
        message = refused(tree, converter).message
        assert "nothing in it was run" in message
        assert not marker.exists()


def test_the_optimizer_is_looked_through_but_not_read() -> None:
    """Two thirds of a training checkpoint; damage there costs nothing, foreign things there still do."""
    weight = torch.nn.Parameter(torch.ones(4001))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["exp_avg"] = torch.full((4001,), 1234.5)
    stream = saved({"state_dict": laion_state(), "optimizer": state, "epoch": np.float64(3)})
    data = stream.getvalue()
    moment = torch.full((4001,), 1234.5).numpy().tobytes()
    assert data.count(moment) == 1
    damaged = data.replace(moment, moment[:-4] + b"\0\0\0\0")
    expected = tensors_digest(convert("laion_clap", parts(io.BytesIO(data))))
    assert tensors_digest(convert("laion_clap", parts(io.BytesIO(damaged)))) == expected
    with pytest.raises(GenmeterError, match="damaged"):
        read_checkpoint(io.BytesIO(damaged))
    whole = read_checkpoint(io.BytesIO(data))
    assert whole["optimizer"]["state"][0]["exp_avg"].tolist() == [1234.5] * 4001


BAD: dict[str, Callable[[], Any]] = {
    "numbers of another kind": lambda: {
        "state_dict": {**laion_state(), "audio_branch.bn0.weight": torch.ones(64, dtype=torch.int32)}
    },
    "a number for a tensor": lambda: {"state_dict": {**laion_state(), "audio_branch.bn0.weight": 3.0}},
    "no state_dict": lambda: {"epoch": 3},
    "an empty one": lambda: {"state_dict": {}},
    "a list": lambda: [torch.zeros(3)],
    "another network": lambda: {"state_dict": {"layer4.weight": torch.zeros(3)}},
    "a page": lambda: io.BytesIO(b"<!DOCTYPE html>"),
    "half a file": lambda: io.BytesIO(saved({"state_dict": laion_state()}).getvalue()[:-9000]),
    "nothing": lambda: io.BytesIO(b""),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_checkpoint_is_refused(bad: str) -> None:
    refused(BAD[bad]())


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"vocab": b"<!DOCTYPE html>"}, VOCABULARY),
        ({"vocab": b"{}"}, VOCABULARY),
        ({"vocab": b"[]"}, VOCABULARY),
        ({"vocab": b'{"</s>": "2"}'}, VOCABULARY),
        ({"merges": b"<html>"}, MERGES),
        ({"merges": b""}, MERGES),
    ],
)
def test_files_that_are_no_tokenizer_are_refused(files: dict[str, bytes], said: str) -> None:
    assert said in refused({"state_dict": laion_state()}, **files).message


# --- models.lock -------------------------------------------------------------------------------------------------


def test_the_entries_and_what_pins_them() -> None:
    lock = load_lock()
    published = {
        "clap-630k-audioset-best": "8053c9775516af2f4902e1e8281e356cc1bf7a85e8b761908170767b77c3f037",
        "clap-630k-audioset-fusion-best": "fb171dd9b608aebdac3d89286cd7615c5100af4cc7dc37797c7fb8d3cc15e3a5",
        "clap-music-audioset": "fae3e9c087f2909c28a09dc31c8dfcdacbc42ba44c70e972b58c1bd1caf6dedd",
        "clap-music-speech-audioset": "51c68f12f9d7ea25fdaaccf741ec7f81e93ee594455410f3bca4f47f88d8e006",
        "clap-htsat-unfused": "1cd3c601bc4afe0fa87be3de4c13dd2cfadd249fac1e29acf74a9b296c3219bb",
        "clap-larger-general": "314eb00cce6ad68d25237b8446b659ccdb136ed4672c1bca470f142f72455026",
        "clap-larger-music": "5c289311f4a030d768af7ffbfdecd01b008aa64824211899a4e59f4f9d154fd1",
    }
    roberta = {
        "vocab": "9e7f63c2d15d666b52e21d250d2e513b87c9b713cfa6987a82ed89e5e6e50655",
        "merges": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    }
    for model, sha256 in published.items():
        [source] = lock[model].sources
        files = {part.name: part.sha256 for part in source.parts}
        assert set(files) == {"weights", "vocab", "merges"}
        assert files["weights"] == sha256
        assert all(part.bytes and part.sha256 for part in source.parts)
        assert lock[model].architecture == ("HTSAT-base" if "music" in model or "larger" in model else "HTSAT-tiny")
        assert lock[model].preprocessing["fusion"] is ("fusion" in model)
        if source.converter == "laion_clap":
            assert {name: files[name] for name in roberta} == roberta
            assert lock[model].extra["text_config"]["layer_norm_eps"] == 1e-5
        assert trust(lock[model]) == "unverified", "no page of the publisher states the hashes of the tokenizer's files"
