"""The command line, `checkmate-tf COMMAND`.

Commands: demo, plan, graph, profile, solve, max-batch, tradeoff, operators, report, strategies, doctor, check.

Options are declared here; what a command does is in the module of its name, imported when it runs, so that help comes
without TensorFlow.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..version import __version__

if TYPE_CHECKING:
    from ..fit.options import Page, Planning

__all__ = ["app", "main"]

app = typer.Typer(
    name="checkmate-tf",
    help="Train Keras models under a hard memory budget, with the same numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on standard output; all else goes to standard error.")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples in a batch. Default: 32.")]
Strategy = Annotated[str, typer.Option(help="How to schedule.")]
Costs = Annotated[str, typer.Option(help="profile (this device), roofline or flops.")]
TimeLimit = Annotated[float, typer.Option(min=0.1, help="Seconds that solving may take.")]
Gap = Annotated[float, typer.Option(min=0.0, help="Stop solving at this proven gap.")]
_GAP = 0.002  # that of `compile`: what it finds next is soon found, and what is run then is run for hours
Verify = Annotated[bool, typer.Option(help="Run the plan on the device, and plan again if it needs more.")]
InputShape = Annotated[str | None, typer.Option(help="For keras.applications, e.g. 96,96,3.")]
Classes = Annotated[int | None, typer.Option(min=1, help="For keras.applications.")]
Optimizer = Annotated[str | None, typer.Option(help="For a model that is not compiled. Default: adam.")]
Loss = Annotated[str | None, typer.Option(help="For a model that is not compiled. Default: from its output.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"checkmate-tf {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the picture and the figures.")] = Path("demo-output"),
    quick: Annotated[bool, typer.Option("--quick", help="MobileNet instead of ResNet50: a minute.")] = False,
    json: Json = False,
) -> None:
    """Train a network under a limit that is too low for it: plainly, which fails, and compiled, which trains.

    Real images (scikit-learn's handwritten digits, nothing is downloaded), each run in a process of its own.
    """
    from .console import guarded
    from .demo.command import run_demo

    guarded(json, lambda: run_demo(output, quick, json))


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A name in keras.applications (random weights), a .keras file, or file.py:function, a function that "
            "returns a Keras model, or (model, (x, y)) with a batch of its data."
        ),
    ],
    batch_size: BatchSize = None,
    budget: Annotated[
        str, typer.Option(help='"60%" of the plain peak, a size ("700MB", "1.5GiB"), or "auto".')
    ] = "60%",
    strategy: Strategy = "checkmate",
    costs: Costs = "profile",
    time_limit: TimeLimit = 60.0,
    gap: Gap = _GAP,
    verify: Verify = True,
    input_shape: InputShape = None,
    classes: Classes = None,
    optimizer: Optimizer = None,
    loss: Loss = None,
    operators: Annotated[
        str, typer.Option(help='"choose": gradients may read codes of values; "default": as TensorFlow has them.')
    ] = "default",
    page: Annotated[
        str, typer.Option(help='"auto": on a GPU, values may wait in the host\'s memory; "never": they may not.')
    ] = "auto",
    cache: Annotated[bool, typer.Option(help="Use a schedule that was solved before, and keep a new one.")] = True,
    schedule: Annotated[
        Path | None, typer.Option(help="Use this file of --save or Schedule.save instead of solving.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the schedule here (JSON), for compile(..., schedule=PATH) elsewhere."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the schedule here (PNG, PDF or SVG).")] = None,
    json: Json = False,
) -> None:
    """Plan a model's training step within a budget, without training, and print the report.

    Exit status: 0 planned, 2 bad input, 3 no schedule fits the budget.
    """
    from .console import guarded
    from .plan import PlanCommand, run_plan
    from .planned import Asked

    planning: Planning = {
        "strategy": strategy, "costs": costs, "time_limit": time_limit, "gap": gap, "verify": verify, "cache": cache,
        "schedule": schedule, "operators": operators, "page": cast("Page", page),
    }  # fmt: skip
    asked = Asked(
        model=model, batch_size=batch_size, budget=budget, planning=planning, input_shape=input_shape, classes=classes,
        optimizer=optimizer, loss=loss,
    )  # fmt: skip
    command = PlanCommand(asked, save, plot, json)
    guarded(json, lambda: run_plan(command))


@app.command()
def graph(
    model: Annotated[
        str | None,
        typer.Argument(help="As for plan: a name in keras.applications, a .keras file, or file.py:function."),
    ] = None,
    batch_size: BatchSize = None,
    level: Annotated[str, typer.Option(help="A node for each layer, or for each op of the training step.")] = "layer",
    costs: Annotated[
        str,
        typer.Option(
            help="flops; profile (measured: this device, or the file of --profile); at layer level v100 (modelled V100 "
            "kernel costs), at op level roofline, too."
        ),
    ] = "flops",
    profile: Annotated[
        Path | None,
        typer.Option(
            help="For --costs profile: a file, or a folder of them, that checkmate-tf profile wrote; at layer level "
            "also a profile of Checkmate's artifact (.npy)."
        ),
    ] = None,
    input_shape: InputShape = None,
    classes: Classes = None,
    optimizer: Annotated[
        str | None, typer.Option(help="At op level, if the model is not compiled. Default: adam.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="At op level, if the model is not compiled. Default: from its output.")
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(min=6, help="Instead of a MODEL: draw a layered graph of so many nodes, as in Moccasin's paper."),
    ] = None,
    edges: Annotated[
        int | None, typer.Option(min=0, help="Edges of the random graph. Default: as many as in Moccasin's paper.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the random graph. Default: 0.")] = None,
    dtr_log: Annotated[
        Path | None,
        typer.Option(help="Instead of a MODEL: a log of operator calls by Dynamic Tensor Rematerialization (PyTorch)."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write. Default: standard output.")] = None,
    json: Json = False,
) -> None:
    """Write a model's training step, a logged one, or a random graph, in the JSON format "checkmate-graph/1".

    Exit status: 0 written, 2 bad input.
    """
    from .console import guarded
    from .graph import GraphCommand, run_graph

    command = GraphCommand(
        model=model,
        batch_size=batch_size,
        level=level,
        costs=costs,
        input_shape=input_shape,
        classes=classes,
        optimizer=optimizer,
        loss=loss,
        output=output,
        json=json,
        profile=profile,
        random=random,
        edges=edges,
        seed=seed,
        dtr_log=dtr_log,
    )
    guarded(json, lambda: run_graph(command))


@app.command()
def profile(
    model: Annotated[
        str, typer.Argument(help="As for plan: a name in keras.applications, a .keras file, or file.py:function.")
    ],
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes to run, e.g. 8,16,32.")],
    output: Annotated[Path, typer.Option(help="Folder for the files; a run that was stopped goes on from there.")],
    level: Annotated[str, typer.Option(help="A node for each layer, or for each op of the training step.")] = "layer",
    precision: Annotated[
        str | None, typer.Option(help="For keras.applications: float32, mixed_float16 or mixed_bfloat16.")
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Timed runs. Default: at least 5 of a layer, 3 of all ops.")
    ] = None,
    input_shape: Annotated[
        list[str] | None,
        typer.Option(help="For keras.applications, e.g. 96,96,3. Give it again for further shapes, a file each."),
    ] = None,
    classes: Classes = None,
    optimizer: Annotated[str | None, typer.Option(help="At op level, if it is not compiled. Default: adam.")] = None,
    loss: Annotated[str | None, typer.Option(help="If it is not compiled. Default: from its output.")] = None,
    json: Json = False,
) -> None:
    """Measure what a model's layers or ops take on this device, and write it in the JSON format "checkmate-profile/1".

    Exit status: 0 written, 2 bad input, 130 stopped (what was measured is kept).
    """
    from .console import guarded
    from .profile import ProfileCommand, run_profile

    command = ProfileCommand(
        model=model,
        batch_sizes=batch_sizes,
        output=output,
        level=level,
        precision=precision,
        repetitions=repetitions,
        input_shapes=tuple(input_shape or ()),
        classes=classes,
        optimizer=optimizer,
        loss=loss,
        json=json,
    )
    guarded(json, lambda: run_profile(command))


@app.command()
def solve(
    graph: Annotated[Path, typer.Argument(help='A file in the format "checkmate-graph/1".')],
    budget: Annotated[
        str,
        typer.Option(
            help='Bytes, a size ("4GB", "512MiB"), or "60%" of the peak without rematerialization, constants apart.'
        ),
    ],
    strategy: Strategy = "checkmate",
    solver: Annotated[
        str, typer.Option(help="For strategies that solve programs: auto, gurobi, highs, scip, cp-sat or pdlp.")
    ] = "auto",
    time_limit: TimeLimit = 60.0,
    gap: Annotated[float, typer.Option(min=0.0, help="Stop when cost / bound - 1 is proven to be below this.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random search.")] = 0,
    order: Annotated[
        str, typer.Option(help='Of first computations, for "checkmate": fixed (the graph\'s), or free (searched, too).')
    ] = "fixed",
    memory_limit: Annotated[str | None, typer.Option(help='Memory that a solver may take, e.g. "4GB".')] = None,
    copies: Annotated[int, typer.Option(min=1, help="Most computations of a node in Moccasin (its C).")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Threads of CP-SAT in Moccasin; 0 for one a core.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Where to write. Default: standard output.")] = None,
    json: Json = False,
) -> None:
    """Solve a graph within a budget, and write the answer in the JSON format "checkmate-result/1".

    Exit status: 0 solved, 2 bad input, 3 no schedule fits the budget, or none was found.
    """
    from .console import guarded
    from .solve import SolveCommand, run_solve

    command = SolveCommand(
        graph=graph,
        budget=budget,
        strategy=strategy,
        solver=solver,
        time_limit=time_limit,
        gap=gap,
        seed=seed,
        order=order,
        memory_limit=memory_limit,
        output=output,
        json=json,
        copies=copies,
        workers=workers,
    )
    guarded(json, lambda: run_solve(command))


@app.command(name="max-batch")
def max_batch(
    model: Annotated[
        str,
        typer.Argument(
            help="A name in keras.applications, a .keras file, file.py:function, or a checkmate-graph/1 file (.json) "
            "of one sample, whose constant_bytes do not grow with the batch."
        ),
    ],
    memory: Annotated[str, typer.Option(help='Bytes, or a size ("16GB", "16e9").')],
    costs: Annotated[str, typer.Option(help="What layers cost: flops.")] = "flops",
    max_overhead: Annotated[
        str, typer.Option(help='Most recomputation: a share of the step\'s cost ("10%"), or "one-forward".')
    ] = "one-forward",
    inputs: Annotated[bool, typer.Option(help="Count the batch of inputs, too; the published figures do not.")] = False,
    time_limit: TimeLimit = 60.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random search.")] = 0,
    input_shape: InputShape = None,
    classes: Classes = None,
    form: Annotated[
        str,
        typer.Option(
            help="How it is found: search (search and bound, for networks); linear or quadratic: exact programs for "
            "small graphs, the latter the paper's, in Gurobi."
        ),
    ] = "search",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Train the answer under that limit in a process of its own; less of it until it trains."
        ),
    ] = False,
    optimizer: Annotated[str | None, typer.Option(help="To verify, if the model is not compiled: adam.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="To verify, if it is not compiled. Default: from its output.")
    ] = None,
    json: Json = False,
) -> None:
    """Find the largest batch that trains in a memory at a bounded cost, with a proven upper bound.

    Exit status: 0 found, 2 bad input, 3 not even one sample fits.
    """
    from .console import guarded
    from .max_batch import MaxBatchCommand, run_max_batch

    command = MaxBatchCommand(
        model=model,
        memory=memory,
        costs=costs,
        max_overhead=max_overhead,
        inputs=inputs,
        time_limit=time_limit,
        seed=seed,
        input_shape=input_shape,
        classes=classes,
        verify=verify,
        optimizer=optimizer,
        loss=loss,
        json=json,
        form=form,
    )
    guarded(json, lambda: run_max_batch(command))


@app.command()
def tradeoff(
    model: Annotated[
        str,
        typer.Argument(
            help="As for plan: a name in keras.applications, a .keras file, or file.py:function; or a .json graph."
        ),
    ],
    batch_size: BatchSize = None,
    budgets: Annotated[int, typer.Option(min=2, help="How many, from the plain peak to the least.")] = 10,
    costs: Costs = "profile",
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds that solving may take, all together.")] = 30.0,
    gap: Gap = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random search.")] = 0,
    input_shape: InputShape = None,
    classes: Classes = None,
    optimizer: Optimizer = None,
    loss: Loss = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture here (PNG, PDF or SVG).")] = None,
    json: Json = False,
) -> None:
    """Show what less memory costs: more computation for each of several budgets. Nothing is trained.

    Exit status: 0 shown, 2 bad input.
    """
    from .console import guarded
    from .tradeoff import TradeoffCommand, run_tradeoff

    command = TradeoffCommand(
        model=model, batch_size=batch_size, budgets=budgets, costs=costs, time_limit=time_limit, gap=gap, seed=seed,
        input_shape=input_shape, classes=classes, optimizer=optimizer, loss=loss, plot=plot, json=json,
    )  # fmt: skip
    guarded(json, lambda: run_tradeoff(command))


@app.command()
def operators(
    model: Annotated[
        str, typer.Argument(help="As for plan: a name in keras.applications, a .keras file, or file.py:function.")
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    budget: Annotated[
        str,
        typer.Option(
            help='Bytes, a size ("4GB", "512MiB"), or "60%" of the peak without rematerialization, constants apart.'
        ),
    ] = "60%",
    method: Annotated[
        str,
        typer.Option(
            help="choose (a search around Checkmate), monet (MONeT's program), gist (a rule that computes nothing "
            "again), or checkmate (operators as they are)."
        ),
    ] = "choose",
    solver: Annotated[str, typer.Option(help="For monet: auto, gurobi, highs, scip, cp-sat or pdlp.")] = "auto",
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds that choosing may take.")] = 60.0,
    gap: Annotated[float, typer.Option(min=0.0, help="Stop when cost / bound - 1 is proven to be below this.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random search.")] = 0,
    inexact: Annotated[
        bool, typer.Option("--inexact", help="Allow ways to compute a value that give other bits, as MONeT does.")
    ] = False,
    sparsity: Annotated[
        float | None, typer.Option(help="Offer sparse storage, for this share of zeros after ReLUs.")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(help="Offer values in so many bits: 16, 10 or 8. This changes the gradients.")
    ] = None,
    input_shape: InputShape = None,
    classes: Classes = None,
    json: Json = False,
) -> None:
    """Choose implementations of a model's operators and a schedule, at layer level with modelled V100 costs.

    Exit status: 0 chosen, 2 bad input, 3 nothing fits the budget, or nothing was found.
    """
    from .console import guarded
    from .operators import OperatorsCommand, run_operators

    command = OperatorsCommand(
        model=model,
        batch_size=batch_size,
        budget=budget,
        method=method,
        solver=solver,
        time_limit=time_limit,
        gap=gap,
        seed=seed,
        inexact=inexact,
        sparsity=sparsity,
        bits=bits,
        input_shape=input_shape,
        classes=classes,
        json=json,
    )
    guarded(json, lambda: run_operators(command))


@app.command()
def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Graphs (checkmate-graph/1), each followed by the results for it (checkmate-result/1), as .json "
            "files; and models as for plan, which are planned within --budget."
        ),
    ],
    html: Annotated[Path, typer.Option(help="Where to write the page.")],
    budget: Annotated[str | None, typer.Option(help="Budget of each model, as for plan. Default: 60%.")] = None,
    batch_size: BatchSize = None,
    strategy: Strategy = "checkmate",
    costs: Costs = "profile",
    time_limit: TimeLimit = 60.0,
    gap: Gap = _GAP,
    verify: Verify = True,
    input_shape: InputShape = None,
    classes: Classes = None,
    optimizer: Optimizer = None,
    loss: Loss = None,
    json: Json = False,
) -> None:
    """Write one self-contained page with pictures and tables of graphs, results and planned models.

    Exit status: 0 written, 2 bad input, 3 no schedule of a model fits the budget.
    """
    from .console import guarded, is_json
    from .planned import Asked
    from .report import ReportCommand, run_report

    files = [source for source in sources if is_json(source)]
    planning: Planning = {
        "strategy": strategy, "costs": costs, "time_limit": time_limit, "gap": gap, "verify": verify,
    }  # fmt: skip
    models = [
        Asked(
            model=source, batch_size=batch_size, budget=budget or "60%", planning=planning, input_shape=input_shape,
            classes=classes, optimizer=optimizer, loss=loss,
        )
        for source in sources
        if source not in files
    ]  # fmt: skip
    given = {
        "--budget": budget, "--batch-size": batch_size, "--input-shape": input_shape, "--classes": classes,
        "--optimizer": optimizer, "--loss": loss, "--strategy": None if strategy == "checkmate" else strategy,
        "--costs": None if costs == "profile" else costs, "--time-limit": None if time_limit == 60 else time_limit,
        "--gap": None if gap == _GAP else gap, "--no-verify": not verify,
    }  # fmt: skip
    command = ReportCommand(files, models, given, html, json)
    guarded(json, lambda: run_report(command))


@app.command()
def strategies(json: Json = False) -> None:
    """List the strategies, and what each takes into account: any graph, costs, the budget."""
    from .console import guarded
    from .strategies import run_strategies

    guarded(json, lambda: run_strategies(json))


@app.command()
def doctor(json: Json = False) -> None:
    """Show what checkmate_tf finds here: TensorFlow, devices, allocator statistics, solvers and licences."""
    from .console import guarded
    from .machine.doctor import run_doctor

    guarded(json, lambda: run_doctor(json))


@app.command()
def check(
    device: Annotated[list[str] | None, typer.Option(help='Only this one, e.g. "GPU:0". May be given again.')] = None,
    network: Annotated[
        list[str] | None, typer.Option(help="Only this one. May be given again. Default: six on a GPU, three on a CPU.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="What plain steps fill, beside variables. Default: 2GB on a GPU, 100MB on a CPU.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=30.0, help="For each device; what has no time left is not run.")
    ] = 600.0,
    jobs: Annotated[
        int, typer.Option(min=0, help="Processes side by side. Default: as many as there are cores for.")
    ] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for check.json and check.md.")] = None,
    json: Json = False,
) -> None:
    """Check that everything holds on this machine: statistics, limits, budgets, equal bits, times. A line each.

    Exit status: 0 nothing failed, 1 something failed, 2 bad input.
    """
    from .console import guarded
    from .machine.check import CheckCommand, run_check

    command = CheckCommand(
        device=device or [], network=network or [], memory=memory, seconds=seconds, jobs=jobs, output=output, json=json
    )
    status: list[int] = []
    guarded(json, lambda: status.append(run_check(command)))
    raise typer.Exit(status[0])


def main() -> None:
    """The console script."""
    app()
