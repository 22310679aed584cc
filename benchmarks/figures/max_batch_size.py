"""Figure 6 of Checkmate: the largest batch on a V100 (16e9 bytes) at a cost of one forward pass more, at most.

For each network: our largest batch, the proven upper bound, the batch without recomputation and those of Chen's
heuristics on any graph, beside the published figures (`data/published.csv`). Graphs are at layer level with the
artifact's costs; parameters count twice (for their gradients), the batch of inputs not at all, as published.

    python benchmarks/figures/max_batch_size.py                # 20 s a network
    python benchmarks/figures/max_batch_size.py --quick        # 10 s
    python benchmarks/figures/max_batch_size.py --full         # 60 s; results on disk are kept, --again solves anew
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import kept
from benchmarks.lib.options import options_for
from benchmarks.lib.provenance import MADE, made_here
from benchmarks.lib.published import published
from benchmarks.lib.tables import new_figure, write_csv, write_table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

NETWORKS = ("U-Net", "FCN8", "FCN8, plain encoder", "SegNet", "MobileNet", "VGG19", "ResNet50")

NOTE = """\
Cost at most 2 x forward + backward; 16e9 bytes less twice the parameters (for their gradients); sizes and costs of
Checkmate's artifact. "Real batch" is (memory - fixed) / (peak of one sample) before it is rounded down, found and
proved in a search of its own: Checkmate's program has a real B, and the log in its artifact's README shows 289.03459
for VGG19, which is ours, too. "Freed early": our checkpoint-all frees a value after its last reader; as published, all
forward values are held to the last stage, and the parameters come off twice more (`lib/models.py`). "At least"
is what the artifact's README says that Gurobi can reach; figure 6 is itself a lower bound, after a day a network.

Why FCN8 and SegNet end below the published figures. At 416 x 608 the gradient of the first convolution (VGG16 encoder)
or normalisation (plain encoder) needs four values of 416 x 608 x 64 floats at once: itself, two activations and the
gradient that it reads, 258,998,272 bytes a sample. No schedule avoids that, so no batch of these graphs is above
16e9 / 258,998,272 = 61.8, even without parameters. The layouts are those of image-segmentation-keras as far as this
peak goes: what its versions differ in (a softmax at the end) is not part of it.

- SegNet: the published 62 is above that. The real optimum is 61.66, which rounds to 62; a batch of 62 does not fit.
- FCN8: with the VGG16 encoder and 4,096 units (134 million parameters) the real optimum is 57.62. The artifact's
  commands name this network (`fcn_8_vgg`), and say "at least 60", and 57 after 10 minutes; 60 is above what is proved
  possible in its graph. With parameters counted once the bound would be 59.70, and with the collection's plain encoder
  (`fcn_8`, 70 million parameters) the real optimum is 59.62; both round to 60. Which of them made the figure cannot be
  told from what is public.
- U-Net: the real optimum is 61.40, published 61. So the published figures of U-Net, SegNet and VGG19 are consistent
  with a real batch rounded to the nearest whole one, not with the largest whole batch that fits.
"""


BASELINES_NOTE = """\
The heuristics before Checkmate, each with the best of its keep-sets whose schedule costs at most one forward pass more
("costs more": none). The first figure is ours: our evaluator, which frees a value after its last reader. The second is
counted as published: what is kept is held to the last stage, and parameters and gradients come off the memory twice.
The third holds what is computed again to the last stage as well.

VGG19 is published with 167 (checkpoint-all), 197 (sqrt(n)) and 266 (greedy). The second way gives 167 and 266; sqrt(n)
is 229 with it, and 218 to 266 with any other even spacing of two to eight layers. With the third way greedy stays at
266, and sqrt(n) gives 199 wherever block1_conv2 is kept and block1_conv1 is not: 197 is then one value of 0.4 MB more.

The "1.73 times the best baseline" of figure 6 is U-Net's, as its caption says: its 61 samples are 1.73 times 35, which
linearized greedy reaches in 12e9 bytes, the memory that its published checkpoint-all (16 samples) belongs to as well.
"""


def main() -> None:
    parser = options_for(__doc__, "max_batch_size")
    parser.add_argument("--quick", action="store_true", help="10 s a network")
    parser.add_argument("--full", action="store_true", help="60 s a network")
    parser.add_argument("--time-limit", type=float, help="seconds a network (default 20)")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, help="only these")
    parser.add_argument("--again", action="store_true", help="solve what has a result, too")
    options = parser.parse_args()
    seconds = options.time_limit or (10.0 if options.quick else 60.0 if options.full else 20.0)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.networks or NETWORKS:
        path = options.output / (name.lower().replace(", ", "-").replace(" ", "-") + ".json")
        known = None if options.again else kept(path, {"time_limit": seconds})
        if known is not None and "baselines" in known:
            print(f"{name}: {path} is there already", flush=True)
            continue
        made = made_here()  # its code is that of now, whatever is committed while it runs
        result = solve(name, seconds) | {"baselines": baselines(name), MADE: made}
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{name}: {result['batch']}, at most {result['upper_bound']} ({result['status']})", flush=True)
    rows = [json.loads(path.read_text()) for path in options.output.glob("*.json")]
    rows.sort(key=lambda row: NETWORKS.index(row["network"]))
    if rows:
        write(options.output, rows, published_batches())


def solve(name: str, time_limit: float) -> dict:
    """One network: what was found and proved, in samples, bytes and seconds."""
    from dataclasses import replace

    import keras

    from benchmarks.lib.models import MODELS, V100_BYTES, retained_peak_bytes
    from checkmate_tf.layers.graph import layer_graph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions
    from checkmate_tf.strategies.max_batch import max_batch

    model = MODELS[name]()
    graph = layer_graph(model, 1, "artifact")
    fixed = 2 * graph.constant_bytes - layer_graph(model, 2, "artifact").constant_bytes  # twice the parameters
    graph = replace(graph, constant_bytes=fixed)
    keras.backend.clear_session()

    def told(seconds: float, batch: float, bound: float, _: float) -> None:
        print(f"  {name} {seconds:5.1f} s  {batch:.0f}, at most {bound:.0f}", flush=True)

    found = max_batch(graph, V100_BYTES, options=SolveOptions(time_limit=time_limit, progress=told))
    room, peak = V100_BYTES - fixed, keep_all(graph).peak_bytes - fixed
    # A batch that need not be whole, to three decimals: whole batches in a thousand times the memory.
    real = max_batch(graph, fixed + 1000 * room, options=SolveOptions(time_limit=time_limit))
    return {
        "network": name,
        "nodes": len(graph),
        "edges": len(graph.edges),
        "memory_bytes": V100_BYTES,
        "fixed_bytes": fixed,
        "batch": found.batch_size,
        "upper_bound": found.upper_bound,
        "status": found.status,
        "real_batch": real.batch_size / 1000,
        "real_upper_bound": real.upper_bound / 1000,
        "overhead": found.schedule.overhead,
        "most_overhead": found.max_cost / found.schedule.graph.base_cost - 1,
        "checkpoint_all": room // peak,
        "checkpoint_all_as_published": (room - fixed) // retained_peak_bytes(graph),
        "seconds": round(found.seconds, 2),
        "time_limit": time_limit,
    }


def baselines(name: str) -> dict[str, list[int]]:
    """By heuristic: the largest batch freed early, counted as published, and with what is computed again held as well.

    0 where no keep-set costs little enough.
    """
    from dataclasses import replace

    import keras
    import numpy as np

    from benchmarks.lib.models import MODELS, V100_BYTES, retained_peak_bytes
    from checkmate_tf.layers.graph import layer_graph
    from checkmate_tf.schedule import Schedule
    from checkmate_tf.strategies.baselines.articulation import articulation_points
    from checkmate_tf.strategies.baselines.chen import by_segment_size, every_root
    from checkmate_tf.strategies.baselines.keepset import droppable, keepset_sequence
    from checkmate_tf.strategies.max_batch import cost_limit

    model = MODELS[name]()
    graph = layer_graph(model, 1, "artifact")
    fixed = 2 * graph.constant_bytes - layer_graph(model, 2, "artifact").constant_bytes
    graph, room = replace(graph, constant_bytes=0), V100_BYTES - fixed
    keras.backend.clear_session()
    nodes = {"linearized": np.flatnonzero(droppable(graph)).tolist(), "ap": articulation_points(graph)}
    found = {}
    for kind, candidates in nodes.items():
        for way, keepsets in (("sqrt", [every_root(candidates)]), ("greedy", by_segment_size(graph, candidates))):
            most = [0, 0, 0]
            for keepset in keepsets:
                schedule = Schedule(graph, np.array(keepset_sequence(graph, keepset)))
                if schedule.cost > cost_limit(graph, "one-forward"):
                    continue
                held = [(room - fixed) // retained_peak_bytes(graph, set(keepset), again) for again in (False, True)]
                most = [max(pair) for pair in zip(most, [room // schedule.peak_bytes, *held], strict=True)]
            found[f"{kind}-{way}"] = most
    return found


def published_batches() -> dict[str, dict[str, str]]:
    """For each network: `checkmate`, a batch or "at least" one, and `checkpoint-all`, where they are published."""
    found: dict[str, dict[str, str]] = {}
    for row in published("fig6"):
        if row["metric"].startswith("max batch "):
            what = row["metric"].removeprefix("max batch ")
            least = "at least " if what.endswith(" at least") else ""
            found.setdefault(row["network"], {})[what.removesuffix(" at least")] = least + row["value"]
    return found


def write(output: Path, rows: list[dict], known: dict[str, dict[str, str]]) -> None:
    """The table as CSV and Markdown, and the chart."""
    for row in rows:
        figures = known.get(row["network"], {})
        row["published"] = figures.get("checkmate", "")
        row["published_checkpoint_all"] = figures.get("checkpoint-all", "")
        kinds = ("", ", as published", ", as published and computed again held")
        row |= {
            f"{way}{kind}": b for way, found in row["baselines"].items() for kind, b in zip(kinds, found, strict=True)
        }
    write_csv(output / "table.csv", [key for key in rows[0] if key != "baselines"], rows)
    lines = [
        "| network | largest batch | proven bound | real batch: found, bound | published | checkpoint-all, freed early "
        "| counted as published | published, checkpoint-all | cost (limit) | nodes | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        proof = "optimal" if row["status"] == "optimal" else row["upper_bound"]
        cells = [
            row["network"], f"**{row['batch']}**", proof, f"{row['real_batch']:.2f}, {row['real_upper_bound']:.2f}",
            row["published"], row["checkpoint_all"], row["checkpoint_all_as_published"],
            row["published_checkpoint_all"], f"+{row['overhead']:.1%} ({row['most_overhead']:.1%})",
            row["nodes"], f"{row['seconds']:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    table = "\n".join(lines)
    ways = list(rows[0]["baselines"])
    lines = [f"| network | {' | '.join(ways)} |", "| --- |" + " --- |" * len(ways)]
    for row in rows:
        cells = [", ".join(map(str, found)) if any(found) else "costs more" for found in row["baselines"].values()]
        lines.append(f"| {row['network']} | {' | '.join(cells)} |")
    before = "\n".join(lines)
    write_table(output, f"{table}\n\n{NOTE}\n{before}\n\n{BASELINES_NOTE}")
    draw(output / "max_batch_size.png", rows)
    print(f"{table}\n\n{before}")


def draw(path: Path, rows: list[dict]) -> None:
    """Bars in multiples of checkpoint-all as published (so networks share an axis), the batch on each bar."""
    series = [
        ("checkpoint-all, counted as published", "checkpoint_all_as_published", "#bbbbbb"),
        ("checkpoint-all, freed early", "checkpoint_all", "#777777"),
        ("best heuristic, counted as published", "best_as_published", "#e69f00"),
        ("Checkmate, published (* at least)", "published", "#d55e00"),
        ("ours", "batch", "#0072b2"),
    ]
    figure = new_figure(11, 4.8)
    axes = figure.subplots()
    width = 0.8 / len(series)
    rows = [row | {"best_as_published": max(found[1] for found in row["baselines"].values())} for row in rows]
    for k, (label, key, color) in enumerate(series):
        first = True
        for x, row in enumerate(rows):
            text = str(row[key])
            if not text:
                continue
            value = int(text.removeprefix("at least "))
            place, height = x + (k - (len(series) - 1) / 2) * width, value / row["checkpoint_all_as_published"]
            axes.bar(place, height, width * 0.92, color=color, label=label if first else None)
            star = "*" if text.startswith("at least ") else ""
            axes.annotate(
                f"{value}{star}", (place, height), (0, 2), textcoords="offset points", ha="center", fontsize=7
            )
            first = False
    for x, row in enumerate(rows):
        bound = row["upper_bound"] / row["checkpoint_all_as_published"]
        place = x + (len(series) - 1) / 2 * width
        label = "proven upper bound" if x == 0 else None
        axes.plot([place - width / 2, place + width / 2], [bound, bound], color="black", linewidth=1.6, label=label)
        if row["status"] != "optimal":
            axes.annotate(
                f"at most {row['upper_bound']}",
                (place, bound),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    names = [row["network"].replace(", ", ",\n") for row in rows]
    axes.set_xticks(range(len(rows)), names)
    axes.set_ylabel("batch, in multiples of the lightest bar")
    axes.set_title("Largest batch in 16 GB at one forward pass more; numbers are samples", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
