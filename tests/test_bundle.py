"""A bundle on disk gives back every part bit for bit, and refuses whatever was damaged or doesn't fit."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from neural_lam_anemoi import InvalidInputError
from neural_lam_anemoi.bundle import Loss, ModelBundle, Variables
from neural_lam_anemoi.bundle_io import MANIFEST, load_bundle, save_bundle

from .models import VARIABLES, assert_same_graph, make_bundle, make_graph
from .test_weights import assert_same

PAGE = Path(__file__).parent.parent / "docs" / "bundle.md"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    """A small hi_lam."""
    return make_bundle(make_graph(tmp_path_factory.mktemp("graph") / "hierarchical", "hierarchical"), "hi_lam")


@pytest.fixture
def written(bundle: ModelBundle, tmp_path: Path) -> Path:
    """Its directory."""
    save_bundle(bundle, tmp_path / "bundle")
    return tmp_path / "bundle"


def assert_same_bundle(first: ModelBundle, second: ModelBundle) -> None:
    """Equal in every part."""
    assert_same_graph(first.graph, second.graph)
    for name in ("architecture", "variables", "forcing_window", "clamping", "time_step", "loss", "provenance"):
        assert getattr(first, name) == getattr(second, name), name
    for name in ("weights", "averaged_weights", "statistics"):
        assert_same(dict(getattr(first, name)), dict(getattr(second, name)))
    assert list(first.weights) == list(second.weights)
    assert_same(dataclasses.asdict(first.fields), dataclasses.asdict(second.fields))
    assert_same(first.training, second.training)
    assert repr(first.host) == repr(second.host)


@pytest.mark.parametrize(
    ("kind", "model"), [("flat", "graph_lam"), ("hierarchical", "hi_lam"), ("hierarchical", "hi_lam_parallel")]
)
def test_saved_and_loaded(kind: str, model: str, tmp_path: Path) -> None:
    bundle = make_bundle(make_graph(tmp_path / "graph", kind), model)
    save_bundle(bundle, tmp_path / "bundle")
    assert_same_bundle(bundle, load_bundle(tmp_path / "bundle"))


def test_without_the_optional_parts(bundle: ModelBundle, tmp_path: Path) -> None:
    bare = dataclasses.replace(bundle, averaged_weights=None, training={}, host={})
    save_bundle(bare, tmp_path / "bare")
    again = load_bundle(tmp_path / "bare")
    assert again.averaged_weights is None and again.training == {} and again.host == {}
    assert not (tmp_path / "bare" / "averaged_weights.safetensors").exists()


def test_the_network_in_it_runs(written: Path, bundle: ModelBundle) -> None:
    n = bundle.graph.num_grid
    inputs = (torch.randn(2, n, 3), torch.randn(2, n, 3), torch.randn(2, n, 4), torch.randn(n, 2))
    one, two = (made.network().step(*inputs)[0] for made in (bundle, load_bundle(written)))
    assert torch.equal(one, two)


def test_an_existing_bundle_is_kept_without_force(written: Path, bundle: ModelBundle) -> None:
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    with pytest.raises(InvalidInputError, match="exists already; use --force"):
        save_bundle(bundle, written)
    assert before == {path.name: path.read_bytes() for path in written.iterdir()}
    save_bundle(dataclasses.replace(bundle, loss=Loss("mse", (1.0, 1.0, 1.0))), written, force=True)
    assert load_bundle(written).loss.name == "mse"
    assert [path.name for path in written.parent.iterdir()] == ["bundle"]


def test_nothing_is_left_of_a_bundle_that_fails_half_way(
    bundle: ModelBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(*_args: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", disk_full)
    with pytest.raises(OSError, match="No space"):
        save_bundle(bundle, tmp_path / "bundle")
    assert not any(tmp_path.iterdir())


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="other"), "not the manifest of a neural-lam-anemoi bundle"),
        (lambda m: m.update(format_version=2), "bundle format 2; this version reads 1"),
        (lambda m: m.pop("architecture"), "architecture"),
        (lambda m: m.pop("graph"), "'graph' is missing"),
        (lambda m: m["architecture"].update(hidden_dim=13), "weights don't fit the architecture"),
        (lambda m: m["architecture"].update(model="graph_lam"), "graph_lam"),
        (lambda m: m["variables"]["state"].pop(), "state variables: 2, but the model has 3"),
        (lambda m: m["variables"]["forcing"].append("fog"), "forcing variables in a window of 2: 6"),
        (lambda m: m["statistics"].pop("state_diff_std"), "state_diff_std"),
        (lambda m: m["statistics"]["state_mean"]["values"].pop(), "statistics state_mean must have 3 values"),
        (lambda m: m["loss"]["weights"].pop(), "loss weights: 2"),
        (lambda m: m["clamping"].update(odd={}), "odd"),
        (lambda m: m["graph"].update(num_grid=7), "g2m names sender"),
        (lambda m: m["sha256"]["weights"].popitem(), "tensors don't match the manifest"),
        (lambda m: m["sha256"]["fields"].update(boundary="0"), "boundary is damaged, its checksum is wrong"),
    ],
)
def test_a_manifest_that_does_not_fit(change: Change, message: str, written: Path) -> None:
    content = json.loads((written / MANIFEST).read_text())
    change(content)
    (written / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(InvalidInputError) as caught:
        load_bundle(written)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["weights", "graph", "fields", "averaged_weights", "training"])
def test_a_damaged_file(name: str, written: Path) -> None:
    path = written / f"{name}.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"{name}.safetensors: .* is damaged"):
        load_bundle(written)
    path.write_bytes(content[:20])
    with pytest.raises(InvalidInputError, match=rf"{name}\.safetensors: can't be read"):
        load_bundle(written)
    path.unlink()
    with pytest.raises(InvalidInputError, match=rf"{name}\.safetensors: can't be read"):
        load_bundle(written)


def test_weights_of_another_network(bundle: ModelBundle) -> None:
    weights = dict(bundle.weights)
    weights["extra"] = weights.pop("grid_embedder.0.bias")
    weights["output_map.0.weight"] = weights["output_map.0.weight"][1:]
    with pytest.raises(InvalidInputError) as caught:
        dataclasses.replace(bundle, weights=weights)
    for part in ("grid_embedder.0.bias is missing", "extra is unexpected", "output_map.0.weight has shape (11, 12)"):
        assert part in str(caught.value)


def test_weights_are_kept_in_the_network_s_order(bundle: ModelBundle) -> None:
    shuffled = dataclasses.replace(bundle, weights=dict(reversed(bundle.weights.items())))
    assert list(shuffled.weights) == list(bundle.weights)


def test_a_field_of_another_size(bundle: ModelBundle) -> None:
    fields = dataclasses.replace(bundle.fields, boundary=bundle.fields.boundary[1:])
    with pytest.raises(InvalidInputError, match="fields boundary has shape"):
        dataclasses.replace(bundle, fields=fields)
    with pytest.raises(InvalidInputError, match="static fields: 1"):
        dataclasses.replace(bundle, variables=Variables(VARIABLES.state, VARIABLES.forcing, ("land",)))


def test_the_page_names_every_file_and_key(written: Path) -> None:
    """docs/bundle.md is the specification: it has to name whatever is written."""
    page = PAGE.read_text()
    named = set(re.findall(r"`([^`\n]+)`", page))
    manifest = json.loads((written / MANIFEST).read_text())
    keys = set(manifest) | {key for name in ("graph", "loss", "variables", "forcing_window") for key in manifest[name]}
    keys |= set(manifest["architecture"]) | set(manifest["statistics"]) | set(manifest["clamping"])
    files = {path.name for path in written.iterdir()}
    levels = re.compile(r"(m2m|mesh_up|mesh_down)_\d+|\.\d+$")
    tensors = {
        levels.sub(lambda found: f"{found[1]}_L" if found[1] else ".L", name)
        for group in ("graph", "fields")
        for name in manifest["sha256"][group]
    }
    assert keys | files | tensors <= named, sorted((keys | files | tensors) - named)
