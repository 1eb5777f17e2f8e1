"""``train`` takes neural-lam's arguments as they are, whatever they are."""

from __future__ import annotations

import re
import subprocess
import sys
from unittest import mock

import pytest

from neural_lam_anemoi import cli

NEURAL_LAM = {
    "--ar_steps_eval",
    "--ar_steps_train",
    "--batch_size",
    "--config_path",
    "--create_gif",
    "--devices",
    "--epochs",
    "--eval",
    "--g2m_gnn_type",
    "--graph",
    "--hidden_dim",
    "--hidden_layers",
    "--load",
    "--load_single_member",
    "--logger",
    "--logger-project",
    "--logger_run_name",
    "--loss",
    "--lr",
    "--m2g_gnn_type",
    "--mesh_aggr",
    "--mesh_down_gnn_type",
    "--mesh_up_gnn_type",
    "--metrics_watch",
    "--model",
    "--n_example_pred",
    "--num_future_forcing_steps",
    "--num_nodes",
    "--num_past_forcing_steps",
    "--num_sanity_val_steps",
    "--num_workers",
    "--output_std",
    "--precision",
    "--processor_layers",
    "--restore_opt",
    "--runs_root",
    "--seed",
    "--train_steps_to_log",
    "--val_interval",
    "--val_steps_to_log",
    "--var_leads_metrics_watch",
    "--wandb_id",
}
"""Of neural-lam 0.7.0; one that comes later has to be looked at."""


def flags(text: str) -> set[str]:
    """Options in a command's help."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """neural-lam's are those we know; ours have other names."""
    command = [sys.executable, "-m", "neural_lam.train_model", "--help"]
    theirs = flags(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
    assert theirs - {"--help"} == NEURAL_LAM
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    ours = flags(capsys.readouterr().out)
    assert len(ours) > 5
    assert ours & theirs <= {"--help"}


def test_neural_lam_gets_its_own() -> None:
    """Without abbreviations being taken for ours, and in their order."""
    given = [
        "--config_path",
        "config.yaml",
        "--num_nodes",
        "2",
        "--devices",
        "0",
        "1",
        "--partition",
        "rcb",
        "--part",
        "x",
    ]
    with mock.patch("neural_lam_anemoi.adapters.neural_lam.train.run_train_model") as run:
        assert cli.main(["train", *given]) == 0
    (arguments,) = run.call_args.args
    assert list(arguments) == [*given[:7], *given[9:]]
