"""LPIPS against the authors' own package: the same weights and bytes must give the same number, for every network."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genmeter.contract import ImageMedia, Prepared
from genmeter.encoders.registry import create_encoder
from genmeter.goldens import GoldenCase, read_cases
from genmeter.registry import get_metric, make_scorer, parse_variant

lpips = pytest.importorskip("lpips")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NETS = ("alex", "vgg", "squeeze")
ARCHITECTURES = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}
LEAST = {"alex": 31, "vgg": 16, "squeeze": 17}
TOLERANCE = 1e-6


def package(net: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        return lpips.LPIPS(net=net, pnet_rand=True, verbose=False, **options).eval()


def distance(model: Any, first: np.ndarray, second: np.ndarray) -> float:
    """What a user of the package gets, by its documented scaling x / 127.5 - 1."""
    x, y = (torch.from_numpy(a).permute(2, 0, 1)[None].float() / 127.5 - 1 for a in (first, second))
    with torch.no_grad():
        return float(model(x, y).mean())


def tensors_of(model: Any) -> dict[str, np.ndarray]:
    """The package's weights under our names."""
    found = {f"features.{k.split('.', 1)[1]}": v.numpy() for k, v in model.net.state_dict().items()}
    for i, lin in enumerate(model.lins):
        found[f"lin.{i}.weight"] = lin.model[-1].weight.detach().numpy()
    return found


def put(model: Any, tensors: dict[str, np.ndarray]) -> Any:
    """Our weights into the package."""
    state = model.net.state_dict()
    model.net.load_state_dict({k: torch.from_numpy(tensors[f"features.{k.split('.', 1)[1]}"]) for k in state})
    for i, lin in enumerate(model.lins):
        lin.model[-1].weight.data.copy_(torch.from_numpy(tensors[f"lin.{i}.weight"]))
    return model


def load(net: str, path: Any) -> Any:
    entry = SimpleNamespace(id=f"test-{net}", architecture=ARCHITECTURES[net], preprocessing={}, extra={}, digest="0")
    encoder = create_encoder("lpips", entry, lambda: path)  # type: ignore[arg-type]
    encoder.load("cpu", "exact")
    return encoder


def join(encoder: Any, first: np.ndarray, second: np.ndarray, view: Any = None) -> Prepared:
    view = view or {"resize": "none", "alpha": "white"}
    return encoder.join([encoder.prepare(ImageMedia(a), view) for a in (first, second)], view)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """net -> (package, encoder) on the same random trunk and the package's own heads."""
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("nets")
    made: dict[str, tuple[Any, Any]] = {}

    def get(net: str) -> tuple[Any, Any]:
        if net not in made:
            model = package(net)
            for weight in model.net.parameters():
                # torch's own start makes features fade from layer to layer, and with them what could differ.
                spread = np.sqrt(2 / weight[0].numel()) if weight.ndim == 4 else 0.05
                weight.data.normal_(0, spread, generator=torch.Generator().manual_seed(weight.numel()))
            path = folder / f"{net}.safetensors"
            save_file({k: np.ascontiguousarray(v) for k, v in tensors_of(model).items()}, path)
            made[net] = (model, load(net, path))
        return made[net]

    return get


def sizes(net: str) -> list[tuple[int, int]]:
    least = LEAST[net]
    fixed = [(least, least), (least, 70), (71, least), (64, 64), (65, 63), (97, 50), (128, 128)]
    rng = np.random.default_rng(len(net))
    return fixed + [tuple(int(v) for v in rng.integers(least, 150, 2)) for _ in range(4)]  # type: ignore[misc]


def images(height: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A pair of noise, or one image and the same with mild noise: both ends of the scale."""
    rng = np.random.default_rng([height, width, seed])
    first = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if seed % 2:
        return first, rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    nudged = first.astype(int) + rng.integers(-6, 7, first.shape)
    return first, np.clip(nudged, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("net", NETS)
def test_random_pairs_of_many_sizes(both: Any, net: str) -> None:
    model, encoder = both(net)
    for height, width in sizes(net):
        pairs = [images(height, width, seed) for seed in range(3)]
        expected = [distance(model, *pair) for pair in pairs]
        found = [float(f.values[0, 0]) for f in encoder.encode([join(encoder, *pair) for pair in pairs])]
        assert np.abs(np.subtract(found, expected)).max() <= TOLERANCE, (height, width)
        assert max(expected) > 0.05


@pytest.mark.parametrize("net", NETS)
def test_flat_and_extreme_images(both: Any, net: str) -> None:
    """Constant images have features without contrast, where the normalisation's epsilon counts."""
    model, encoder = both(net)
    flat = [np.full((64, 48, 3), level, np.uint8) for level in (0, 1, 128, 255)]
    for first in flat:
        for second in flat:
            [feature] = encoder.encode([join(encoder, first, second)])
            assert float(feature.values[0, 0]) == pytest.approx(distance(model, first, second), abs=TOLERANCE)


def test_a_large_image_crosses_every_block(both: Any) -> None:
    model, encoder = both("alex")
    pair = images(600, 411, 1)
    [feature] = encoder.encode([join(encoder, *pair)])
    assert float(feature.values[0, 0]) == pytest.approx(distance(model, *pair), abs=TOLERANCE)


def test_what_the_package_does_below_the_least_side(both: Any) -> None:
    """The minimum sides are the networks' own: one pixel less and the package fails too."""
    for net, least in LEAST.items():
        model, _ = both(net)
        distance(model, *images(least, least, 1))
        with pytest.raises(RuntimeError):
            distance(model, *images(least - 1, 64, 1))


# --- the published weights ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> Callable[[str], tuple[Any, Any]]:
    """net -> (package, encoder), both on the published weights."""
    from genmeter.weights.load import load_tensors
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    made: dict[str, tuple[Any, Any]] = {}

    def get(net: str) -> tuple[Any, Any]:
        if net not in made:
            entry = get_entry(f"lpips-{net}")
            path = ensure(entry)
            encoder = create_encoder("lpips", entry, lambda: path)
            encoder.load("cpu", "exact")
            made[net] = (put(package(net), load_tensors(path)), encoder)
        return made[net]

    return get


CASES = read_cases(get_metric("lpips").path)


@pytest.mark.weights
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden_values(published: Any, case: GoldenCase) -> None:
    variant = parse_variant(case.variant)
    _, encoder = published(variant.params.net)
    roles = case.inputs()
    [feature] = encoder.encode([join(encoder, roles["prediction"], roles["reference"], variant.needs[0].view)])
    [score] = make_scorer(variant).score([{"pair": feature}], variant.params)
    assert abs(score.value - case.expected) <= case.tolerance


def test_goldens_hold_a_published_value_and_each_network_that_can_be_fetched() -> None:
    assert any(case.published and case.expected > 0 for case in CASES)
    assert {"lpips", "lpips@vgg"} <= {case.variant for case in CASES}


@pytest.mark.weights
@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_published_weights_agree_with_the_package(published: Any, net: str) -> None:
    model, encoder = published(net)
    for height, width in ((64, 64), (83, 121)):
        for seed in range(2):
            pair = images(height, width, seed)
            [feature] = encoder.encode([join(encoder, *pair)])
            assert float(feature.values[0, 0]) == pytest.approx(distance(model, *pair), abs=TOLERANCE)


@pytest.mark.weights
def test_the_wrong_ways_are_told_apart(published: Any) -> None:
    """The comparison above would notice: inputs in [0, 1] or swapped channels, or version 0.0."""
    model, encoder = published("alex")
    first, second = images(64, 64, 1)
    [feature] = encoder.encode([join(encoder, first, second)])
    ours = float(feature.values[0, 0])
    x, y = (torch.from_numpy(a).permute(2, 0, 1)[None].float() / 255 for a in (first, second))
    with torch.no_grad():
        assert abs(float(model(x, y)) - ours) > 1e-4
    assert abs(distance(model, first[..., ::-1].copy(), second[..., ::-1].copy()) - ours) > 1e-4
    old = put(package("alex", version="0.0"), tensors_of(model))
    assert abs(distance(old, first, second) - ours) > 1e-4


@pytest.mark.weights
@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_heads_are_those_the_package_ships(published: Any, net: str) -> None:
    from genmeter.weights.load import load_tensors
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    ours = load_tensors(ensure(get_entry(f"lpips-{net}")))
    for i, lin in enumerate(package(net).lins):
        assert np.array_equal(ours[f"lin.{i}.weight"].ravel(), lin.model[-1].weight.detach().numpy().ravel())


@pytest.mark.weights
def test_the_spatial_mean_others_print_is_another_number(published: Any) -> None:
    """0.81400907 in print is the mean of the spatial map; ours is the distance. Both within the golden's tolerance."""
    model, _ = published("alex")
    black, white = (np.full((64, 64, 3), level, np.uint8) for level in (0, 255))
    model.spatial = True
    try:
        assert distance(model, black, white) == pytest.approx(0.81404, abs=1e-5)
    finally:
        model.spatial = False
    assert distance(model, black, white) == pytest.approx(0.81395, abs=1e-5)
