"""Grid nodes in an order in which contiguous ranges are boxes: the same forecast, and nothing lost on the way home."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import zarr

from neural_lam_anemoi.adapters.anemoi.dataset import ATTRIBUTE
from neural_lam_anemoi.adapters.bridge.convert import Conversion, convert, read_any
from neural_lam_anemoi.adapters.bridge.demo import ALLOWED, require_identical
from neural_lam_anemoi.adapters.bridge.forecast import anemoi_forecast, neural_lam_forecast
from neural_lam_anemoi.adapters.neural_lam.checkpoint import datastore_rows, load_datastore
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.graph_io import read_graph_directory
from neural_lam_anemoi.weights import read_torch_file

from ..commands import run_process, run_refused
from ..models import assert_same_graph
from .conftest import Trained


@pytest.mark.full
def test_dataset_and_model_in_boxes(trained: Trained, era5_project: Path, era5_dataset: Path, tmp_path: Path) -> None:
    source, anemoi, dataset = trained("graph_lam"), tmp_path / "anemoi", tmp_path / "boxes.zarr"
    run_process("dataset", era5_project, "--output", dataset, "--order", "rcb")
    options = ["--order", "rcb", "--config_path", era5_project, "--verify"]
    run_process("convert", source, "--to", "anemoi", "--output", anemoi, *options)
    bundle = read_any(anemoi / "inference-last.ckpt", era5_project)
    rows = datastore_rows(bundle, load_datastore(era5_project)[1]).numpy()
    assert not np.array_equal(rows, np.arange(len(rows)))

    plain, boxes = (zarr.open(str(path), mode="r") for path in (era5_dataset, dataset))
    assert boxes.attrs[ATTRIBUTE]["order"] == "rcb"
    np.testing.assert_array_equal(boxes["data"][:], plain["data"][:][..., rows])
    for name, values in (("latitudes", bundle.fields.latitudes), ("longitudes", bundle.fields.longitudes)):
        np.testing.assert_array_equal(boxes[name][:], values.numpy())

    ours = neural_lam_forecast(read_any(source, era5_project), era5_project, steps=4)
    checkpoint, names = anemoi / "inference-last.ckpt", bundle.variables.state
    theirs = anemoi_forecast(checkpoint, dataset, ours.start, "24h", names, tmp_path / "inference")
    interior = ~bundle.fields.boundary.numpy()
    apart = np.abs(ours.states[:, rows] - theirs.states)[:, interior].max(axis=1)
    standardised = apart / bundle.statistics["state_std"].double().numpy()
    for steps, allowed in ALLOWED.items():
        assert standardised[:steps].max() < allowed

    run_process("convert", anemoi / "last.ckpt", "--to", "neural-lam", "--output", tmp_path / "back.ckpt")
    require_identical(read_torch_file(source), read_torch_file(tmp_path / "back.ckpt"))

    home = Conversion(checkpoint, "neural-lam", tmp_path / "again.ckpt", write_graph=tmp_path / "graph")
    with pytest.raises(InvalidInputError, match="neither in rows nor in columns; give --config_path"):
        convert(home)
    convert(dataclasses.replace(home, config_path=era5_project))
    span = bundle.graph.mesh_scaling
    written = read_graph_directory(tmp_path / "graph", bundle.graph.num_grid, span)
    assert_same_graph(written, read_any(source, era5_project).graph)


def test_a_neural_lam_checkpoint_has_no_order(
    trained: Trained, era5_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--order", "rcb", "--config_path", era5_project, "--output", tmp_path / "back.ckpt"]
    line = run_refused(capsys, "convert", trained("graph_lam"), "--to", "neural-lam", *options)
    assert "a neural-lam checkpoint has no grid" in line
