"""What can't be converted is refused in one line that names the cause, and leaves nothing behind."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
import yaml
from anemoi.utils.checkpoints import load_metadata, replace_metadata

from neural_lam_anemoi.adapters.anemoi.section import read_host
from neural_lam_anemoi.adapters.bridge.verify import Comparison
from neural_lam_anemoi.adapters.neural_lam.checkpoint import PREFIX
from neural_lam_anemoi.errors import InvalidInputError

from ..commands import run_process, run_refused
from .conftest import Converted
from .random_models import write_random_checkpoint

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def checkpoint(era5_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A neural-lam checkpoint on the flat graph."""
    return write_random_checkpoint(
        era5_project, tmp_path_factory.mktemp("random") / "good.ckpt", "graph_lam", "flat", processor_layers=1
    )


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, era5_project: Path) -> Refused:
    """Runs a conversion that has to fail for each target, and returns the one line that it says."""

    def run(source: Path, config: Path | None = era5_project, *options: object) -> str:
        said = set()
        for target in ("anemoi", "neural-lam", "bundle"):
            output = tmp_path / "outputs" / target
            given = ["--config_path", config] if config else []
            said.add(run_refused(capsys, "convert", source, "--to", target, "--output", output, *given, *options))
            assert not output.exists()
            assert not output.parent.exists() or not any(output.parent.iterdir())
        assert len(said) == 1
        return said.pop()

    return run


def changed(checkpoint: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint whose content was changed."""
    content = torch.load(checkpoint, weights_only=False)
    change(content)
    torch.save(content, path)
    return path


def test_a_truncated_checkpoint(checkpoint: Path, refused: Refused, tmp_path: Path) -> None:
    whole = checkpoint.read_bytes()
    for part in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        short = tmp_path / "short.ckpt"
        short.write_bytes(whole[:part])
        assert "short.ckpt" in refused(short)


def test_a_flipped_bit(checkpoint: Path, refused: Refused, tmp_path: Path) -> None:
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(content)
    assert "damaged" in refused(damaged)


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": {}}, {"weights": torch.ones(2)}, torch.ones(3), None])
def test_a_torch_file_that_is_no_checkpoint(content: Any, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)
    assert "no checkpoint of neural-lam 0.7 or of Anemoi" in refused(path)


def test_no_torch_file_at_all(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("this is a text\n" * 100)
    assert "notes.txt: not a readable torch file" in refused(path)
    assert "absent.ckpt: no such file" in refused(tmp_path / "absent.ckpt")
    (tmp_path / "empty").mkdir()
    assert "no bundle" in refused(tmp_path / "empty")


def test_widths_that_disagree_with_the_datastore(checkpoint: Path, refused: Refused, tmp_path: Path) -> None:
    def drop_a_column(content: dict[str, Any]) -> None:
        name = f"{PREFIX}grid_embedder.0.weight"
        content["state_dict"][name] = content["state_dict"][name][:, 1:].clone()

    line = refused(changed(checkpoint, tmp_path / "narrow.ckpt", drop_a_column))
    assert "grid_embedder reads 13 columns, but the datastore gives 14" in line
    assert "t2m, u10, v10, msl, tp" in line and "3 x 1 forcing (toa)" in line and "1 static (lsm)" in line

    def drop_an_output(content: dict[str, Any]) -> None:
        for part in ("weight", "bias"):
            name = f"{PREFIX}output_map.2.{part}"
            content["state_dict"][name] = content["state_dict"][name][1:].clone()

    line = refused(changed(checkpoint, tmp_path / "short.ckpt", drop_an_output))
    assert "output_map writes 4 columns" in line and "5 state variables" in line


def test_a_graph_with_other_levels(checkpoint: Path, refused: Refused, era5_project: Path) -> None:
    line = refused(checkpoint, era5_project, "--graph", "hierarchical")
    assert "graph_lam" in line and "3 levels" in line


def test_variables_in_another_order(checkpoint: Path, refused: Refused, era5_project: Path, tmp_path: Path) -> None:
    def swap_limits(content: dict[str, Any]) -> None:
        name = f"{PREFIX}clamp_lower_idx"
        content["state_dict"][name] = content["state_dict"][name] - 1

    line = refused(changed(checkpoint, tmp_path / "swapped.ckpt", swap_limits))
    assert "clamp_lower_idx" in line and "another order" in line


def test_a_converted_model_beside_variables_in_another_order(
    converted: Converted, refused: Refused, era5_project: Path, tmp_path: Path
) -> None:
    description = yaml.safe_load((era5_project.parent / "era5.datastore.yaml").read_text())
    description["inputs"]["state"]["variables"].reverse()
    (tmp_path / "era5.datastore.yaml").write_text(yaml.safe_dump(description, sort_keys=False))
    shutil.copy(era5_project, tmp_path / "config.yaml")
    line = refused(converted("graph_lam") / "anemoi" / "last.ckpt", tmp_path / "config.yaml")
    assert "state variables are tp, msl, v10, u10, t2m; the model has in another order" in line


@pytest.mark.parametrize(
    "name", ["g2m_edge_index.pt", "m2g_features.pt", "m2m_edge_index.pt", "mesh_features.pt", "metainfo.yaml"]
)
def test_a_graph_with_a_file_missing(
    name: str, checkpoint: Path, refused: Refused, era5_project: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(era5_project.parent, project, ignore=shutil.ignore_patterns("hierarchical", "multiscale"))
    (project / "graph" / "flat" / name).unlink()
    line = refused(checkpoint, project / "config.yaml")
    if name == "metainfo.yaml":
        assert "graph/flat" in line
    else:
        assert f"graph/flat/{name}: missing from the graph directory" in line


def test_a_configuration_that_is_missing_or_broken(checkpoint: Path, refused: Refused, tmp_path: Path) -> None:
    assert "give --config_path" in refused(checkpoint, None)
    assert "nowhere.yaml: no such file" in refused(checkpoint, tmp_path / "nowhere.yaml")
    (tmp_path / "broken.yaml").write_text("datastore: [")
    assert "broken.yaml: neural-lam can't load it" in refused(checkpoint, tmp_path / "broken.yaml")


def test_an_output_that_exists(checkpoint: Path, era5_project: Path, tmp_path: Path, capsys: Any) -> None:
    for target, make in (("anemoi", Path.mkdir), ("neural-lam", Path.touch), ("bundle", Path.mkdir)):
        output = tmp_path / target
        make(output)
        options = ["--to", target, "--output", output, "--config_path", era5_project]
        line = run_refused(capsys, "convert", checkpoint, *options)
        assert f"{output}: exists already" in line and "--force" in line
        assert output.is_file() or not any(output.iterdir())


def test_graph_efm_is_refused_by_name(checkpoint: Path, refused: Refused, tmp_path: Path) -> None:
    def rename(content: dict[str, Any]) -> None:
        content["hyper_parameters"]["args"].model = "graph_efm"

    line = refused(changed(checkpoint, tmp_path / "efm.ckpt", rename))
    assert "graph_efm is a Graph-EFM model" in line and "graph_lam, hi_lam, hi_lam_parallel" in line


@pytest.mark.parametrize(("name", "value"), [("loss", {}), ("graph", None), ("hidden_dim", "wide"), ("model", 3)])
def test_training_arguments_of_another_type(
    name: str, value: Any, checkpoint: Path, refused: Refused, tmp_path: Path
) -> None:
    def spoil(content: dict[str, Any]) -> None:
        setattr(content["hyper_parameters"]["args"], name, value)

    assert f"training argument {name} is {value!r}" in refused(changed(checkpoint, tmp_path / "odd.ckpt", spoil))


def test_training_arguments_that_are_missing(checkpoint: Path, refused: Refused, tmp_path: Path) -> None:
    def forget(content: dict[str, Any]) -> None:
        del content["hyper_parameters"]["args"].mesh_aggr

    line = refused(changed(checkpoint, tmp_path / "odd.ckpt", forget))
    assert "training argument mesh_aggr is missing" in line


class Malicious:
    """Unpickling this with plain pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, (f"touch {self.path}",)


def test_a_malicious_pickle_is_never_executed(
    checkpoint: Path, era5_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone and among the values of a checkpoint, in every format that torch reads."""
    proof = tmp_path / "executed"
    pickle.loads(pickle.dumps(Malicious(proof)))
    assert proof.exists(), "the attack itself doesn't work"
    proof.unlink()

    def poison(content: dict[str, Any]) -> None:
        content["callbacks"] = Malicious(proof)
        content["hyper_parameters"]["args"].seed = Malicious(proof)

    alone = tmp_path / "alone.ckpt"
    torch.save(Malicious(proof), alone)
    legacy = tmp_path / "legacy.ckpt"
    torch.save(Malicious(proof), legacy, _use_new_zipfile_serialization=False)
    plain = tmp_path / "plain.pkl"
    plain.write_bytes(pickle.dumps(Malicious(proof)))
    poisoned = changed(checkpoint, tmp_path / "poisoned.ckpt", poison)
    for source, target in [(poisoned, "neural-lam"), (alone, "bundle"), (legacy, "bundle"), (plain, "bundle")]:
        output = tmp_path / f"{source.stem}-{target}"
        run_refused(capsys, "convert", source, "--to", target, "--output", output, "--config_path", era5_project)
        assert not proof.exists() and not output.exists(), source
    run_process("convert", poisoned, "--to", "bundle", "--output", tmp_path / "kept", "--config_path", era5_project)
    assert not proof.exists(), "what a host keeps travels as data, and stays that"


def test_a_poisoned_graph_is_never_executed(
    checkpoint: Path, refused: Refused, era5_project: Path, tmp_path: Path
) -> None:
    project, proof = tmp_path / "project", tmp_path / "executed"
    shutil.copytree(era5_project.parent, project, ignore=shutil.ignore_patterns("hierarchical", "multiscale"))
    torch.save(Malicious(proof), project / "graph" / "flat" / "m2m_features.pt")
    assert "m2m_features.pt" in refused(checkpoint, project / "config.yaml")
    assert not proof.exists()


def test_an_anemoi_checkpoint_of_another_model(
    converted: Converted, refused: Refused, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign.ckpt"
    shutil.copy(converted("graph_lam") / "anemoi" / "inference-last.ckpt", foreign)
    metadata = load_metadata(str(foreign))
    del metadata["config"]["model"]["neural_lam"]
    replace_metadata(str(foreign), metadata)
    capsys.readouterr()  # Anemoi's progress bar
    assert "foreign.ckpt: an Anemoi checkpoint, but not of a neural-lam model" in refused(foreign, None)


def test_a_datastore_with_other_statistics(
    converted: Converted, era5_project: Path, refused: Refused, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(era5_project.parent, project, ignore=shutil.ignore_patterns("hierarchical", "flat"))
    store = project / "era5.datastore.zarr"
    with xr.open_zarr(store) as prepared:
        other = prepared.load()
    other["state__train__std"] = other["state__train__std"] * 1.01
    shutil.rmtree(store)
    other.drop_encoding().to_zarr(store, consolidated=True)
    line = refused(converted("graph_lam") / "anemoi" / "last.ckpt", project / "config.yaml")
    assert "statistics state_std are" in line and "the model was trained with" in line


@pytest.mark.parametrize("difference", [2e-4, float("nan")])
def test_a_difference_between_forecasts_is_an_error(difference: float) -> None:
    comparison = Comparison(("t2m", "msl"), ("K", "Pa"), (1e-5, difference), (1e-4, 1.0))
    with pytest.raises(InvalidInputError, match=r"verification failed.* msl by"):
        comparison.require_agreement()
    Comparison(("t2m",), ("K",), (1e-5,), (1e-4,)).require_agreement()


@pytest.mark.parametrize("text", ["{", "[1", '{"$object": []}', "3"])
def test_damaged_arguments_in_an_anemoi_configuration(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"model\.neural_lam\.host is damaged"):
        read_host({"host": text})
