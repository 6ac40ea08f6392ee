"""Devices: what a name resolves to, and global torch flags that are borrowed and given back."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from genmeter.contract import EncoderSpec, Prepared
from genmeter.engine import device
from genmeter.engine.keys import fingerprint, text_digest, unit_key, view_id
from genmeter.errors import GenmeterError


@pytest.mark.parametrize(
    ("driver", "torch_sees", "wanted", "expected"),
    [
        (0, 0, "auto", "cpu"),
        (2, 2, "auto", "cuda:0"),
        (2, 0, "auto", "cpu"),  # a CPU build of torch on a machine with a GPU
        (2, 2, "cpu", "cpu"),
        (2, 2, "cuda", "cuda:0"),
        (2, 2, "cuda:1", "cuda:1"),
    ],
)
def test_resolution(monkeypatch, driver, torch_sees, wanted, expected):
    monkeypatch.setattr(device, "cuda_driver_devices", lambda: driver)
    monkeypatch.setattr(device, "_torch_devices", lambda: torch_sees)
    assert device.resolve_device(wanted) == expected


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", "cuda:7"])
def test_a_device_that_is_not_there_is_refused_not_replaced(monkeypatch, wanted):
    monkeypatch.setattr(device, "cuda_driver_devices", lambda: 0)
    with pytest.raises(ValueError, match="--device cpu"):
        device.resolve_device(wanted)


@pytest.mark.parametrize("wanted", ["gpu", "mps", "cuda:x", "cuda:-1", "cuda:all", ""])
def test_unknown_names(monkeypatch, wanted):
    monkeypatch.setattr(device, "cuda_driver_devices", lambda: 1)
    monkeypatch.setattr(device, "_torch_devices", lambda: 1)
    with pytest.raises(ValueError, match="unknown device"):
        device.resolve_device(wanted)


def switches():
    """Everything global that the engine sets, as it stands."""
    import torch

    return [getattr(owner, name) for owner, name, _, _ in device._switches(torch)]


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_flags_are_set_inside_and_put_back_also_after_an_error(precision):
    torch = pytest.importorskip("torch")
    before = switches()

    def work():
        with device.torch_settings(precision):
            assert torch.is_inference_mode_enabled()
            assert torch.backends.cudnn.deterministic is (precision == "exact")
            assert switches() != before
            tf32 = [value for value in switches() if value in ("tf32", "high") or value is True]
            assert len(tf32) > 1 if precision == "fast" else len(tf32) == 1, "deterministic alone"
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        work()
    assert switches() == before
    assert not torch.is_inference_mode_enabled()


CALLERS = [
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.fp32_precision = 'ieee'",
    "torch.set_default_dtype(torch.bfloat16)",
    "torch.set_default_device('meta')",
    "torch.autocast('cpu', dtype=torch.bfloat16).__enter__()",
    "torch.use_deterministic_algorithms(True)",
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_exact_whatever_the_caller_has_set():
    """Each in a process of its own, since torch refuses to mix its older and newer switches."""
    torch = pytest.importorskip("torch")
    modern = hasattr(torch.backends.cuda.matmul, "fp32_precision")
    script = """
import os, sys, torch
from genmeter.engine import device
look = lambda: [getattr(o, n) for o, n, _, _ in device._switches(torch)]
state = lambda: (look(), torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu"))

def check(line):
    exec(line)
    before = state()
    with device.torch_settings("exact"):
        assert look() == [exact for _, _, exact, _ in device._switches(torch)], look()
        x = torch.ones(2, 2) @ torch.ones(2, 2)
        assert (x.dtype, x.device.type) == (torch.float32, "cpu"), x
    assert before == state(), (before, state())

for line in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            check(line)
        except BaseException as error:
            print(line, "->", repr(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    wanted = [line for line in CALLERS if modern or "fp32_precision" not in line]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script, *wanted]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_callers_random_numbers_stay_its_own():
    torch = pytest.importorskip("torch")
    state = torch.get_rng_state()
    with device.own_random_numbers("cpu"):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("any words"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert device.is_out_of_memory(error) is expected


def test_torch_s_own_error_counts_as_out_of_memory():
    torch = pytest.importorskip("torch")
    assert device.is_out_of_memory(torch.OutOfMemoryError("no room"))


# --- the pool on a card that is not there ---------------------------------------------------------------------------


class Card:
    """An encoder that notes where it was loaded; 100 MB an item."""

    spec = EncoderSpec("card", "card", "d" * 64, "p")
    loaded: list[tuple[str, str]] = []

    def load(self, place, precision):
        self.loaded.append((place, precision))

    def bytes_per_item(self, shape):
        return 100_000_000 * int(np.prod(shape))


@pytest.fixture
def card(monkeypatch):
    """``card(total_memory)``: a pool on ``cuda:1`` with that much memory, and its one encoder."""
    from types import SimpleNamespace

    from genmeter.engine import pool as pools

    torch = pytest.importorskip("torch")
    Card.loaded = []

    def make(total, **settings):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: SimpleNamespace(total_memory=total))
        monkeypatch.setattr(pools, "create_encoder", lambda *parts: Card())
        use = SimpleNamespace(name="card", entry=SimpleNamespace(id="card", sources=()), spec=Card.spec)
        catalog = SimpleNamespace(encoders=[use])
        pool = pools.EncoderPool(catalog, "cuda:1", **settings)
        pool.encoders(SimpleNamespace(units=[SimpleNamespace(encoder=0)]))
        return pool

    return make


def test_an_encoder_is_loaded_onto_the_device_of_the_run_in_its_precision(card):
    pool = card(8 << 30, precision="fast")
    pool.load(0)
    pool.load(0)
    assert Card.loaded == [("cuda:1", "fast")]


@pytest.mark.parametrize(
    ("total", "items", "larger"), [(200 << 20, 1, 1), (8 << 30, 32, 16), (40 << 30, 128, 64), (200 << 30, 256, 256)]
)
def test_the_batch_on_a_card_follows_from_its_size(card, total, items, larger):
    """Half of the card, a power of two, at most 256; never from what happens to be free."""
    pool = card(total)
    assert pool.batch_limit(0, "f4(1,)", (1,)) == items
    assert pool.batch_limit(0, "f4(2,)", (2,)) == larger
    assert card(total, batch_size=5).batch_limit(0, "f4(1,)", (1,)) == 5


def test_a_giant_is_refused_on_a_cpu_alone(card, monkeypatch):
    """A card says itself that it has no room; a CPU would have the process killed."""
    monkeypatch.setattr(device, "available_memory", lambda: 1 << 30)
    giant = Prepared((np.zeros((1, 9), np.float32),), np.ones(1, np.float32))
    pool = card(8 << 30)
    pool.refuse_giant(0, giant)
    pool.place = "cpu"
    with pytest.raises(GenmeterError, match="are free") as refused:
        pool.refuse_giant(0, giant._replace(arrays=(np.zeros((1, 90), np.float32),)))
    assert refused.value.code == "too_large"


def test_a_fingerprint_names_everything_that_moves_a_number():
    spec = EncoderSpec("lpips", "lpips-alex", "d" * 64, "p-1")
    base = fingerprint(spec, "exact", "cpu", "image")
    assert base == fingerprint(spec, "exact", "cpu", "image")
    others = [
        fingerprint(EncoderSpec("lpips", "lpips-alex", "e" * 64, "p-1"), "exact", "cpu", "image"),
        fingerprint(EncoderSpec("lpips", "lpips-alex", "d" * 64, "p-2"), "exact", "cpu", "image"),
        fingerprint(EncoderSpec("lpips", "lpips-alex", "d" * 64, "p-1", version=2), "exact", "cpu", "image"),
        fingerprint(spec, "fast", "cpu", "image"),
        fingerprint(spec, "exact", "cuda", "image"),
        fingerprint(spec, "exact", "cpu", "text"),
    ]
    assert len({item.hex for item in [base, *others]}) == 7
    assert base.stable
    assert not fingerprint(EncoderSpec("x", "y", "", "p"), "exact", "cpu", "image").stable


def test_keys_depend_on_view_and_on_the_order_of_a_pair():
    a, b = b"a" * 32, b"b" * 32
    view = view_id({"resize": "none", "alpha": "white"})
    assert view == view_id({"alpha": "white", "resize": "none"})
    keys = {
        unit_key("f", view, [a, b]),
        unit_key("f", view, [b, a]),
        unit_key("f", "{}", [a, b]),
        unit_key("g", view, [a, b]),
    }
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)


def test_texts_that_json_allows_have_a_digest():
    assert text_digest("\ud800") != text_digest("?")
    assert len(text_digest("")) == 32
