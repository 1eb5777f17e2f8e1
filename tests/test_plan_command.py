"""``neural-lam-anemoi plan`` says of a real graph what can be counted in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neural_lam_anemoi import InvalidInputError, cli
from neural_lam_anemoi.adapters.bridge.processes import executable
from neural_lam_anemoi.adapters.neural_lam.planning import read_project
from neural_lam_anemoi.forcing import ForcingWindow
from neural_lam_anemoi.graph import GRID, edge_ends
from neural_lam_anemoi.graph_io import read_lone_graph_directory
from neural_lam_anemoi.plan import parse_bytes
from neural_lam_anemoi.sharding.cuts import make_partition, passes_per_step

from .commands import run_process, run_refused
from .distributed.graphs import write_graph
from .test_graph_io import COORDINATES, GRID_FIRST, make_legacy


def found(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What the command prints as JSON."""
    assert cli.main(["plan", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def load(directory: Path, name: str) -> Any:
    """One file of a graph directory."""
    return torch.load(directory / f"{name}.pt", weights_only=True)


def test_as_a_process_with_a_picture(era5_project: Path, tmp_path: Path) -> None:
    graph = era5_project.parent / "graph" / "multiscale"
    options = ["--hidden_dim", 128, "--processor_layers", 8, "--batch_size", 1, "--rollout", 4, "--ranks", 1, 2, 4]
    said = run_process("plan", "--graph", graph, *options, "--gpu_memory", "80GiB", "--plot", tmp_path / "plan.png")
    for word in ("contiguous", "rcb", "halo", "MB/step", "imbalance", "optimizer", "checkpoint_steps, bf16-mixed"):
        assert word in said
    assert said.splitlines()[-1] == "cheapest that fits: 1 ranks, contiguous, keep, 32-true"
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_counts_are_those_of_the_edge_lists(era5_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one rank all of them, on two about half."""
    directory = era5_project.parent / "graph" / "flat"
    options = ["--graph", directory, "--ranks", 1, 2, "--hidden_dim", 32, "--processor_layers", 3]
    whole, half, _ = (row for row in found(capsys, *options)["rows"])
    g2m, m2g = load(directory, "g2m_edge_index"), load(directory, "m2g_edge_index")
    (m2m,) = load(directory, "m2m_edge_index")
    num_grid, num_mesh = int(m2g[1].max()) + 1, len(load(directory, "mesh_features")[0])
    assert (whole["grid_nodes"], whole["mesh_nodes"]) == (num_grid, num_mesh)
    assert whole["edges"] == g2m.shape[1] + m2g.shape[1] + m2m.shape[1]
    assert whole["halo_rows"] == whole["exchanged_mb"] == 0
    assert half["grid_nodes"] == -(-num_grid // 2)
    assert whole["edges"] / 2 <= half["edges"] <= 0.55 * whole["edges"]
    assert 0 < half["halo_rows"] < 0.1 * num_grid
    assert whole["parameters_mb"] == half["parameters_mb"]
    assert whole["optimizer_mb"] == pytest.approx(2 * whole["parameters_mb"])


def counted_halo(senders: list[int], receivers: list[int], sender_owner: list[int], receiver_owner: list[int]) -> set:
    """Every (rank, sender) that an edge needs and that another rank owns."""
    pairs = ((receiver_owner[r], s) for s, r in zip(senders, receivers, strict=True))
    return {(rank, sender) for rank, sender in pairs if sender_owner[sender] != rank}


@pytest.mark.parametrize("kind", ["contiguous", "rcb"])
@pytest.mark.parametrize("name", ["multiscale", "hierarchical"])
def test_loads_of_the_ranks_are_those_counted_one_by_one(
    name: str, kind: str, era5_project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes and edges sum to all there are; halo rows and bytes are those of sets made from the edge list."""
    directory, width, layers = era5_project.parent / "graph" / name, 16, 3
    graph, places = read_lone_graph_directory(directory)
    model, ranks = ("hi_lam_parallel", 2) if graph.hierarchical else ("graph_lam", 4)
    options = ["--model", model, "--hidden_dim", width, "--processor_layers", layers, "--batch_size", 3, "--rollout", 2]
    rows = found(capsys, "--graph", directory, "--ranks", ranks, *options)["rows"]
    (row,) = (row for row in rows if row["kind"] == kind)
    passes = passes_per_step(graph.num_levels) | {f"m2m_{level}": layers for level in range(graph.num_levels)}
    passes |= {edges: layers + 1 for edges in passes if edges.startswith(("mesh_up", "mesh_down"))}
    partition = make_partition(graph, ranks, kind, places, passes, replicate=None)
    assert partition.replicated == ()
    owners = {set_: owner.tolist() for set_, owner in partition.owners.items()}
    halo, received = [0] * ranks, [0] * ranks
    for edges, (sender, receiver) in edge_ends(graph.num_levels).items():
        index = graph.edge_sets()[edges].index.tolist()
        for rank, _ in counted_halo(*index, owners[sender], owners[receiver]):
            halo[rank] += 1
            received[rank] += passes[edges] * width * 4
    loads = row["loads"]
    assert [load["halo_rows"] for load in loads] == halo
    assert [load["exchanged_mb"] for load in loads] == pytest.approx([2 * 3 * 2 * size / 1e6 for size in received])
    assert [load["grid_nodes"] for load in loads] == [owners[GRID].count(rank) for rank in range(ranks)]
    assert sum(load["mesh_nodes"] for load in loads) == sum(graph.num_mesh)
    assert sum(load["edges"] for load in loads) == sum(edges.num_edges for edges in graph.edge_sets().values())
    for field in ("grid_nodes", "mesh_nodes", "edges", "halo_rows", "exchanged_mb"):
        assert row[field] == max(load[field] for load in loads)


def test_settings_get_cheaper_and_the_choice_fits(era5_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--graph", era5_project.parent / "graph" / "multiscale", "--rollout", 4, "--hidden_dim", 256]
    ample = found(capsys, *options)
    assert ample["cheapest"]["knob"] == "keep"
    needed = {(s["precision"], s["knob"]): s["total_mb"] for s in ample["rows"][0]["settings"]}
    for precision in ("32-true", "bf16-mixed"):
        assert needed[precision, "checkpoint_steps"] < needed[precision, "keep"]
    for knob in ("keep", "checkpoint_layers", "checkpoint_steps"):
        assert needed["bf16-mixed", knob] < needed["32-true", knob]
    least = min(needed.values())
    small = found(capsys, *options, "--gpu_memory", f"{least:.0f}MB")
    assert small["cheapest"]["ranks"] > 1
    assert small["cheapest"]["total_mb"] <= 0.9 * least + 1
    tiny = found(capsys, *options, "--gpu_memory", "1MiB")
    assert tiny["cheapest"] is None


@pytest.mark.parametrize("kind", ["flat", "hierarchical"])
def test_a_lone_directory_and_a_project_agree(kind: str, era5_project: Path) -> None:
    """Grid coordinates are recovered from the vectors between mesh and grid."""
    graph, coordinates, counts = read_project(era5_project, kind, ForcingWindow())
    lone, recovered = read_lone_graph_directory(era5_project.parent / "graph" / kind)
    assert lone.node_sets() == graph.node_sets()
    assert recovered is not None
    span = float(np.ptp(coordinates.numpy()))
    assert (recovered - coordinates).abs().max() < 1e-4 * span
    assert counts == {"num_state": 5, "num_forcing": 3, "num_static": 1}


def test_the_command_says_the_same_of_either(era5_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a directory with the project's numbers of variables, and of the project."""
    counts = ["--num_state", 5, "--num_forcing", 3, "--num_static", 1]
    lone = found(capsys, "--graph", era5_project.parent / "graph" / "flat", "--ranks", 4, *counts)
    project = found(capsys, "--config_path", era5_project, "--graph", "flat", "--ranks", 4)
    (_, in_boxes), (_, in_lone_boxes) = (plan["rows"][:2] for plan in (project, lone))
    assert project["rows"][0] == lone["rows"][0]
    assert in_boxes["kind"] == in_lone_boxes["kind"] == "rcb"
    assert in_boxes["parameters_mb"] == in_lone_boxes["parameters_mb"]
    assert in_boxes["edges"] == pytest.approx(in_lone_boxes["edges"], rel=0.02)  # nodes on a cut may fall either way


def test_a_legacy_directory_has_no_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_graph(tmp_path / "current", "flat", COORDINATES, distance=2000.0)
    make_legacy(tmp_path / "current", tmp_path / "graph", GRID_FIRST)
    rows = found(capsys, "--graph", tmp_path / "graph", "--ranks", 2)["rows"]
    assert "rcb" not in {row["kind"] for row in rows}
    assert cli.main(["plan", "--graph", str(tmp_path / "graph")]) == 0
    assert "rcb is left out" in capsys.readouterr().out
    options = ["--graph", tmp_path / "graph", "--plot", tmp_path / "plan.png"]
    assert "a map needs grid_coordinates" in run_refused(capsys, "plan", *options)
    assert not (tmp_path / "plan.png").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("plan.doc", "its suffix has to be one of"), ("file/plan.png", "can't be written")]
)
def test_a_picture_that_cannot_be(
    name: str, message: str, era5_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    options = ["--graph", era5_project.parent / "graph" / "flat", "--ranks", 1, "--plot", tmp_path / name]
    assert message in run_refused(capsys, "plan", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_picture_needs_matplotlib(
    era5_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    options = ["--graph", era5_project.parent / "graph" / "flat", "--ranks", 1]
    assert "pip install matplotlib" in run_refused(capsys, "plan", *options, "--plot", tmp_path / "plan.png")
    assert found(capsys, *options)["rows"]


def test_a_refusal_as_a_process(tmp_path: Path) -> None:
    command = [executable("neural-lam-anemoi"), "plan", "--graph", str(tmp_path), "--gpu_memory", "much"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (cli.USER_ERROR, "")
    assert done.stderr.splitlines() == [line for line in done.stderr.splitlines() if "'much' is no amount" in line]
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--graph", "absent"], "absent: no such graph directory"),
        (["--graph", "{}", "--gpu_memory", "80Gb"], "'80Gb' is no amount of memory"),
        (["--graph", "{}", "--ranks", "0"], "ranks is 0"),
        (["--graph", "{}", "--model", "hi_lam"], "hi_lam needs a mesh of several levels"),
        (["--graph", "{}", "--hidden_dim", "0"], "hidden_dim is 0"),
        (["--graph", "flat", "--config_path", "nowhere.yaml"], "nowhere.yaml: no such file"),
    ],
)
def test_bad_input(options: list[str], message: str, era5_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = era5_project.parent / "graph" / "flat"
    assert message in run_refused(capsys, "plan", *(option.format(directory) for option in options))


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 * 2**30), ("80 GB", 80 * 10**9), ("1.5MiB", 3 * 2**19), ("7", 7)]
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e3", "80 G B"])
def test_no_amounts_of_memory(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is no amount of memory"):
        parse_bytes(text)
