"""The command line: parses, calls, prints."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import warnings
from pathlib import Path

from .errors import InvalidInputError

USER_ERROR = 2
ORDERS = ("datastore", "rcb")


def main(arguments: list[str] | None = None) -> int:
    """Run ``neural-lam-anemoi``.

    Parameters
    ----------
    arguments : list of str, optional
        Instead of the process's own.

    Returns
    -------
    int
        Exit status: 0, 2 for something the user can mend, 130 when interrupted.
    """
    options = _parse(arguments)
    _quiet(options.verbose)
    try:
        options.run(options)
    except InvalidInputError as error:
        print(f"neural-lam-anemoi {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    """Options; in ``rest`` what a command passes on to a host's own."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.passes_on:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="neural-lam-anemoi", description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="show what the host frameworks log")
    parser.set_defaults(passes_on=False)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_convert(commands)
    _add_dataset(commands)
    _add_plan(commands)
    _add_train(commands)
    _add_eval(commands)
    _add_demo(commands)
    return parser


def _add_convert(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("convert", help="a checkpoint of one framework into one of another")
    parser.add_argument("source", type=Path, help="neural-lam or Anemoi checkpoint, or a bundle")
    parser.add_argument("--to", required=True, choices=("anemoi", "neural-lam", "bundle"))
    parser.add_argument("--output", required=True, type=Path, help="directory (anemoi, bundle) or file (neural-lam)")
    parser.add_argument("--config_path", type=Path, help="neural-lam's configuration: datastore and graph")
    parser.add_argument("--graph", help="name of the graph, if not the one that the checkpoint names")
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0], help="of grid nodes, as in dataset")
    parser.add_argument("--write_graph", type=Path, help="also write the graph as a neural-lam graph directory")
    parser.add_argument("--verify", action="store_true", help="forecast one step on both sides and compare")
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    parser.set_defaults(run=_convert)


def _add_dataset(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("dataset", help="a neural-lam datastore as an Anemoi dataset")
    parser.add_argument("config_path", type=Path, help="neural-lam's configuration")
    parser.add_argument("--output", required=True, type=Path, help="zarr directory to make")
    parser.add_argument("--num_past_forcing_steps", type=int, default=1, help="as in training (default 1)")
    parser.add_argument("--num_future_forcing_steps", type=int, default=1, help="as in training (default 1)")
    parser.add_argument("--member", type=int, help="ensemble member to take")
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0], help="rcb: contiguous ranges are boxes")
    parser.add_argument("--ranks", type=int, default=1, help="chunk the grid for so many readers (default 1)")
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    parser.set_defaults(run=_dataset)


def _add_plan(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("plan", help="memory and traffic of a graph on several ranks, before they are rented")
    parser.add_argument("--graph", required=True, help="directory of a graph or, with --config_path, its name")
    parser.add_argument("--config_path", type=Path, help="neural-lam's configuration: variables and coordinates")
    parser.add_argument("--model", default="graph_lam", choices=("graph_lam", "hi_lam", "hi_lam_parallel"))
    for name, default in (("hidden_dim", 64), ("hidden_layers", 1), ("processor_layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"as in training (default {default})")
    for name, default in (("num_state", 17), ("num_forcing", 15), ("num_static", 4)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"columns, without a project ({default})")
    for name in ("num_past_forcing_steps", "num_future_forcing_steps"):
        parser.add_argument(f"--{name}", type=int, default=1, help="as in training (default 1)")
    parser.add_argument("--batch_size", type=int, default=1, help="samples per group of ranks (default 1)")
    parser.add_argument("--rollout", type=int, default=1, help="steps that gradients flow through (default 1)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="that share one sample")
    parser.add_argument("--gpu_memory", default="80GiB", help="of one GPU (default 80GiB)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", type=Path, help="image file: the partition on the map, memory against ranks")
    parser.set_defaults(run=_plan)


def _add_train(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "train",
        allow_abbrev=False,
        help="neural_lam.train_model over several ranks",
        description="Further arguments are those of neural_lam.train_model; --devices is a number of processes on CPUs.",
    )
    add = parser.add_argument
    add("--num_gpus_per_model", type=int, default=1, help="ranks that compute one sample together (default 1)")
    add("--partition", default="contiguous", choices=("contiguous", "rcb", "metis"), help="how they share the grid")
    add(
        "--sharding_strategy",
        choices=("auto", "ddp", "zero1", "zero2", "zero3", "fsdp2"),
        help="how parameters, gradients and optimizer state are spread over all ranks (default neural-lam's choice); "
        "auto: ddp if that is expected to fit, else fsdp2",
    )
    add("--offload", default="none", choices=("none", "optimizer", "parameters"), help="what waits in host memory")
    add(
        "--checkpoint_activations",
        default="none",
        choices=("none", "rollout", "layer", "both"),
        help="what is computed again in the backward pass: the insides of steps, of layers (default none)",
    )
    add("--edge_chunks", type=_parts, default=1, help="parts in which messages are computed, or auto (default 1)")
    add("--offload_activations", action="store_true", help="keep what the backward pass needs in host memory")
    add("--meta_init", action="store_true", help="give parameters values only when ranks know their parts")
    parser.set_defaults(run=_train, passes_on=True)


def _add_eval(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "eval",
        allow_abbrev=False,
        help="neural-lam's evaluation of an Anemoi model",
        description="Further arguments, such as --ar_steps_eval, are those of neural_lam.train_model.",
    )
    parser.add_argument("--config_path", required=True, type=Path, help="neural-lam's configuration")
    parser.add_argument("--load", required=True, type=Path, help="Anemoi inference checkpoint; you have to trust it")
    parser.add_argument("--eval", default="test", choices=("val", "test"), help="data split (default test)")
    parser.add_argument("--output", type=Path, help="directory for metrics and plots (default eval-SPLIT-NAME)")
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    parser.set_defaults(run=_eval, passes_on=True)


def _add_demo(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("demo", help="train in neural-lam, forecast in Anemoi, come back: on real ERA5")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="directory for everything it makes")
    parser.add_argument("--model", default="graph_lam", choices=("graph_lam", "hi_lam", "hi_lam_parallel"))
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    parser.set_defaults(run=_demo)


def _convert(options: argparse.Namespace) -> None:
    from .adapters.bridge.convert import Conversion, convert

    job = Conversion(
        options.source,
        options.to,
        options.output,
        options.config_path,
        options.graph,
        options.verify,
        options.force,
        options.order,
        options.write_graph,
    )
    print(*convert(job), sep="\n")


def _dataset(options: argparse.Namespace) -> None:
    from .adapters.bridge.datasets import write_dataset

    summary = write_dataset(
        options.config_path,
        options.output,
        past=options.num_past_forcing_steps,
        future=options.num_future_forcing_steps,
        member=options.member,
        ranks=options.ranks,
        order=options.order,
        force=options.force,
    )
    print(*summary.lines(), sep="\n")


def _plan(options: argparse.Namespace) -> None:
    from .architecture import Architecture
    from .graph_io import read_lone_graph_directory
    from .plan import parse_bytes, plan
    from .plan_drawing import draw_plan
    from .plan_report import plan_json, plan_table

    memory = parse_bytes(options.gpu_memory)
    counts = {name: getattr(options, name) for name in ("num_state", "num_forcing", "num_static")}
    if options.config_path is None:
        graph, coordinates = read_lone_graph_directory(Path(options.graph))
    else:
        from .adapters.neural_lam.planning import read_project
        from .forcing import ForcingWindow

        window = ForcingWindow(options.num_past_forcing_steps, options.num_future_forcing_steps)
        graph, coordinates, counts = read_project(options.config_path, options.graph, window)
    widths = {name: getattr(options, name) for name in ("hidden_dim", "hidden_layers", "processor_layers")}
    architecture = Architecture(options.model, **counts, **widths)
    found = plan(graph, architecture, options.ranks, options.batch_size, options.rollout, memory, coordinates)
    if options.plot:
        draw_plan(found, options.plot)
    print(plan_json(found) if options.json else "\n".join(plan_table(found)))


def _parts(text: str) -> int | None:
    return None if text == "auto" else int(text)


def _train(options: argparse.Namespace) -> None:
    from .adapters.neural_lam.options import TrainingOptions
    from .adapters.neural_lam.train import train

    names = [field.name for field in dataclasses.fields(TrainingOptions)]
    train(TrainingOptions(**{name: getattr(options, name) for name in names}), options.rest)


def _eval(options: argparse.Namespace) -> None:
    from .adapters.bridge.evaluate import evaluate

    output = options.output or Path(f"eval-{options.eval}-{options.load.stem}")
    evaluate(options.config_path, options.load, options.eval, output, options.force, options.rest)
    print(f"{output}: metrics and plots of neural-lam's evaluation")


def _demo(options: argparse.Namespace) -> None:
    from .adapters.bridge.demo import run_demo

    run_demo(options.output, options.model, options.force)


def _quiet(verbose: bool) -> None:
    """Hide what host frameworks log and warn about, unless asked for."""
    if verbose:
        logging.basicConfig(level=logging.INFO)
        return
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.ERROR)
    try:
        from loguru import logger
    except ImportError:
        return
    logger.remove()
    logger.add(sys.stderr, level="WARNING")


if __name__ == "__main__":
    sys.exit(main())
