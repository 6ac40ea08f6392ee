"""What holds for every metric on a CUDA device, found by its folder as in tests/contract.

CUDA promises 1e-4 relative where a CPU promises 1e-6 and 1e-5; equal batch plans give equal bytes there too.
"""

from __future__ import annotations

import contract_media as media
import pytest
from contract_runs import CASES, all_close, code, parametrize

pytestmark = pytest.mark.cuda

LOOSE = 100.0
"""1e-4 absolute on the scale of a cosine; distances and sets get their 1e-4 relative by a tenth of that."""


def looseness(case):
    low, high = case.variant.range
    return LOOSE if case.spec.scope == "sample" and None not in (low, high) else LOOSE / 10


def on_cuda(lab, name="cuda", **settings):
    return lab.run(name, device="cuda", **settings)


@parametrize()
def test_cpu_and_cuda_agree(case, lab):
    found = on_cuda(lab, store="cuda")
    all_close(case, found.of(case.metric), lab.base().of(case.metric), loose=looseness(case))


@parametrize()
def test_equal_plans_give_equal_bytes(case, lab):
    assert on_cuda(lab, "cuda-again", workers=4).lines == on_cuda(lab, store="cuda").lines


@pytest.mark.parametrize("size", [1, 2, 7, 16])
@parametrize()
def test_batch_size(case, lab, size):
    found = on_cuda(lab, f"cuda-{size}", batch_size=size).of(case.metric)
    all_close(case, found, on_cuda(lab, store="cuda").of(case.metric), loose=looseness(case))


@parametrize()
def test_features_of_a_cpu_never_answer_for_a_card(case, lab):
    """One store, filled on the CPU: nothing of it is used on CUDA; filled there, all of it is."""
    lab.base()
    first = on_cuda(lab, "cuda-on-base", store="base")
    assert first.encoded == lab.base().encoded
    assert on_cuda(lab, "cuda-on-base-again", store="base").encoded == 0


@parametrize()
def test_fast_states_what_it_costs(case, lab):
    """Half precision stays near exact, is another run of its own, and shares no features with it."""
    exact = on_cuda(lab, store="cuda")
    fast = on_cuda(lab, "cuda-fast", precision="fast", store="cuda")
    assert fast.encoded == exact.encoded
    drift = 0.0
    for key, entry in exact.of(case.metric).items():
        other = fast.of(case.metric)[key]
        assert code(entry) == code(other)
        if entry["score"] is not None:
            drift = max(drift, abs(entry["score"] - other["score"]) / max(1.0, abs(entry["score"])))
    assert drift <= 0.02, f"drift {drift:.2e}"


@parametrize()
def test_memory_does_not_grow(case, lab):
    import torch

    if case.spec.scope == "set":
        pytest.skip("an engine in memory has no sets")
    lines = [line for line in lab.lines() if line["id"] in ("s0", "s2")]
    lab.engine(lines, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        lab.engine(lines, device="cuda")
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 1_000_000


@pytest.fixture
def little_memory():
    """``little_memory(bytes)``: torch gets no more of the card than that beyond what it holds now."""
    import torch

    def limit(count):
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + count) / total))

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("megabytes", [1, 60, 400])
@pytest.mark.parametrize("case", [case for case in CASES if case.metric in ("lpips", "clip_i")][:2])
def test_a_card_without_room_costs_time_and_no_score(case, lab, little_memory, megabytes):
    """Batches are halved until they fit, and what does not fit alone goes to the CPU."""
    usual = on_cuda(lab, store="cuda").of(case.metric)
    little_memory(megabytes << 20)
    found = on_cuda(lab, f"cuda-small-{megabytes}", batch_size=64).of(case.metric)
    all_close(case, found, usual, loose=looseness(case))


def test_a_second_device_of_the_same_kind(labs):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    case = next(case for case in CASES if case.metric == "clip_i")
    lab = labs(case)
    first, second = (lab.run(f"device-{i}", device=f"cuda:{i}").of(case.metric) for i in (0, 1))
    all_close(case, first, second, loose=looseness(case))


def test_every_modality_is_looked_at():
    assert {case.modality for case in CASES} == set(media.MODALITIES)
