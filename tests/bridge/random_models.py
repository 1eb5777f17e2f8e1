"""neural-lam checkpoints with random weights whose networks write increments of unit scale."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytorch_lightning
import torch
from neural_lam.models import MODELS, ARForecaster, ForecasterModule
from neural_lam.train_model import build_predictor

from neural_lam_anemoi.adapters.bridge.verify import neural_lam_step, read_sample
from neural_lam_anemoi.adapters.neural_lam.checkpoint import load_datastore, read_checkpoint

ARGUMENTS = {
    "hidden_dim": 64,
    "hidden_layers": 1,
    "processor_layers": 2,
    "mesh_aggr": "sum",
    "num_past_forcing_steps": 1,
    "num_future_forcing_steps": 1,
    "output_std": False,
    "g2m_gnn_type": "InteractionNet",
    "m2g_gnn_type": "InteractionNet",
    "mesh_up_gnn_type": "InteractionNet",
    "mesh_down_gnn_type": "InteractionNet",
}


def write_random_checkpoint(config_path: Path, path: Path, model: str, graph: str, **options: Any) -> Path:
    """Write a checkpoint as neural-lam's trainer would, of an untrained network that listens to all its inputs."""
    config, datastore = load_datastore(config_path)
    arguments = Namespace(**{**ARGUMENTS, "model": model, "graph": graph, **options})
    torch.manual_seed(5)
    predictor = build_predictor(MODELS[model], arguments, config, datastore)
    _randomise(predictor)
    module = ForecasterModule(
        forecaster=ARForecaster(predictor, datastore), config=config, datastore=datastore, args=arguments
    )
    _save(module, path)
    bundle = read_checkpoint(path, config_path)
    written: list[torch.Tensor] = []
    handle = predictor.output_map.register_forward_hook(lambda _module, _inputs, output: written.append(output))
    neural_lam_step(predictor, bundle, read_sample(datastore, bundle))
    handle.remove()
    last = predictor.output_map[-1]
    with torch.no_grad():
        scale = written[0].std(dim=(0, 1))
        last.weight /= scale.unsqueeze(1)
        last.bias /= scale
    _save(module, path)
    return path


def _randomise(predictor: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in predictor.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))


def _save(module: ForecasterModule, path: Path) -> None:
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", max_epochs=0, logger=False, enable_checkpointing=False, default_root_dir=path.parent
    )
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
