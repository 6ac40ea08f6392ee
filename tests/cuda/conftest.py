"""Fixtures for the tests on a real CUDA device. Run with ``make test-cuda``."""

from __future__ import annotations

import contract_runs
import pytest


@pytest.fixture(autouse=True)
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(scope="session")
def labs(tmp_path_factory):
    """As in tests/contract: the shared runs of a case and its company."""
    return contract_runs.Labs(tmp_path_factory.mktemp)


@pytest.fixture
def lab(case, labs):
    """The shared runs of the test's case, once its media can be decoded and its weights are there."""
    why = contract_runs.undecodable(case.modality)
    if why:
        pytest.skip(f"{case.modality}: {why}")
    contract_runs.have_weights(case)
    return labs(case)
