"""Our section of an Anemoi configuration, ``model.neural_lam``: a bundle's manifest, as far as data and graph leave a choice."""

from __future__ import annotations

import json
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor

from neural_lam_anemoi import tree
from neural_lam_anemoi.architecture import Architecture
from neural_lam_anemoi.bundle import Variables
from neural_lam_anemoi.errors import InvalidInputError
from neural_lam_anemoi.forcing import ForcingWindow

SECTION = "neural_lam"
HOST = "host"
"""Under our section, as JSON: what only one host understands. Training in Anemoi carries it along."""
NEEDED = (
    "architecture",
    "variables",
    "statistics",
    "forcing_window",
    "clamping",
    "time_step_seconds",
    "loss",
)
CHECKPOINTING = "gradient_checkpointing"
"""Under our section: whether layers are computed again in the backward pass instead of being kept."""
OPTIONAL = ("format", "format_version", "graph", "provenance", CHECKPOINTING, HOST)


def host_text(host: dict[str, Any]) -> str:
    """What goes under `HOST`: JSON without OmegaConf's mark of an interpolation; nothing if there are tensors in it."""
    tensors: dict[str, Tensor] = {}
    encoded = tree.encode(host, tensors)
    return json.dumps({} if tensors else encoded).replace("${", "\\u0024{")


def read_host(section: dict[str, Any]) -> dict[str, Any]:
    """Inverse of `host_text` for a section that has it; empty for one that hasn't.

    Raises
    ------
    InvalidInputError
        The text is damaged.
    """
    try:
        return dict(tree.decode(json.loads(section.get(HOST) or "{}"), {}))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise InvalidInputError(
            f"model.{SECTION}.{HOST} is damaged ({type(error).__name__}); take the checkpoint it came from"
        ) from None


def read_section(config: Any) -> dict[str, Any]:
    """Our section of a configuration, checked and completed.

    Parameters
    ----------
    config : DictConfig or dict
        The whole configuration.

    Returns
    -------
    dict
        A manifest; the numbers of columns in ``architecture`` may be left out of the configuration.

    Raises
    ------
    InvalidInputError
        Naming the section, or the key in it that is missing, unknown or wrong, and what is allowed.
    """
    section = config["model"].get(SECTION)
    if section is None:
        raise InvalidInputError(
            f"config: model.{SECTION} is missing; choose model=graph_lam, hi_lam or hi_lam_parallel"
        )
    plain: dict[str, Any] = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section  # type: ignore
    known = (*NEEDED, *OPTIONAL)
    problems = [f"unknown key {name!r}, known are {', '.join(known)}" for name in plain if name not in known]
    problems += [f"{name!r} is missing" for name in NEEDED if name not in plain]
    if not isinstance(plain.get(CHECKPOINTING, False), bool):
        problems.append(f"{CHECKPOINTING} is {plain[CHECKPOINTING]!r}; use True or False")
    if problems:
        raise InvalidInputError(f"config: model.{SECTION}: {problems[0]}")
    columns = Variables.from_dict(plain["variables"]).columns(ForcingWindow.from_dict(plain["forcing_window"]))
    complete = {"provenance": []} | plain | {"architecture": columns | plain["architecture"]}
    try:
        Architecture.from_dict(complete["architecture"])
    except InvalidInputError as error:
        raise InvalidInputError(f"config: model.{SECTION}.{error}") from None
    return complete
