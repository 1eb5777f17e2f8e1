"""What neural-lam keeps of its trainer's arguments, for a model that another trainer made."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any
from unittest import mock

from neural_lam import train_model

from neural_lam_anemoi.bundle import ModelBundle
from neural_lam_anemoi.weights import Stub, stub_type

CONFIG_PATH = "config.yaml"
"""The one argument without a default; nothing reads it in a checkpoint."""
HYPER_PARAMETERS = (
    "loss",
    "lr",
    "restore_opt",
    "n_example_pred",
    "create_gif",
    "val_steps_to_log",
    "train_steps_to_log",
    "metrics_watch",
    "var_leads_metrics_watch",
)
"""Arguments that ``ForecasterModule`` (0.7.0) takes, and so a checkpoint repeats, beside the namespace of all."""


def kept_configuration(config: Any) -> dict[str, Any]:
    """What a dataset keeps of neural-lam's configuration, so that a model trained on it can become neural-lam's."""
    return {"neural_lam": {"hyper_parameters": {"config": _inert(config)}}}


def checkpoint_content(bundle: ModelBundle, configuration: Stub, graph_name: str | None) -> dict[str, Any]:
    """A checkpoint's content but for weights and training state: neural-lam's defaults, and what the model is.

    Parameters
    ----------
    bundle : ModelBundle
    configuration : Stub
        neural-lam's configuration, as in `kept_configuration`.
    graph_name : str, optional
        Default: neural-lam's own.
    """
    arguments = default_arguments()
    known = bundle.architecture.to_dict() | {"loss": bundle.loss.name}
    known |= {f"num_{side}_forcing_steps": steps for side, steps in bundle.forcing_window.to_dict().items()}
    arguments |= {name: value for name, value in known.items() if name in arguments}
    arguments["graph"] = graph_name or arguments["graph"]
    limits = configuration.stub_state["training"].stub_state["output_clamping"]
    limits.stub_state |= dataclasses.asdict(bundle.clamping)
    namespace = stub_type("argparse", "Namespace")()
    namespace.stub_state = arguments
    chosen = {name: arguments[name] for name in HYPER_PARAMETERS}
    return {
        "pytorch-lightning_version": "2.0.0",
        "hparams_name": "kwargs",
        "hyper_parameters": {"config": configuration, **chosen, "args": namespace},
    }


def default_arguments() -> dict[str, Any]:
    """Every argument of ``neural_lam.train_model`` with its default: what its own parser gives."""

    class Parsed(Exception):
        pass

    def parse(parser: argparse.ArgumentParser, *_: Any) -> None:
        raise Parsed(vars(argparse.ArgumentParser.parse_known_args(parser, ["--config_path", CONFIG_PATH])[0]))

    with mock.patch.object(argparse.ArgumentParser, "parse_args", parse):
        try:
            train_model.main.__wrapped__([])
        except Parsed as parsed:
            arguments = dict(parsed.args[0])
    return arguments | {"var_leads_metrics_watch": {}}


def _inert(value: Any) -> Any:
    """A configuration object as the stand-in that reading a checkpoint would give."""
    if not dataclasses.is_dataclass(value):
        return value
    stub = stub_type(type(value).__module__, type(value).__name__)()
    stub.stub_state = {name: _inert(part) for name, part in vars(value).items()}
    return stub
