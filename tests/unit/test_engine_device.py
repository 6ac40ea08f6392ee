"""Devices: what a name resolves to, and global torch flags that are borrowed and given back."""

from __future__ import annotations

import pytest

from genmeter.contract import EncoderSpec
from genmeter.engine import device
from genmeter.engine.keys import fingerprint, text_digest, unit_key, view_id


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


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_flags_are_set_inside_and_put_back_also_after_an_error(precision):
    torch = pytest.importorskip("torch")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)

    def work():
        with device.torch_settings(precision):
            assert torch.is_inference_mode_enabled()
            assert matmul.allow_tf32 is (precision == "fast")
            assert cudnn.deterministic is (precision == "exact")
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        work()
    assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic) == before
    assert not torch.is_inference_mode_enabled()


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
