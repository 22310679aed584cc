"""Makes the papers' figures and tables, and the comparisons with rivals: one script after the other.

Each script goes on where it was ended, so this does, too. Where nothing is timed, cells run side by side: as many as
there are cores for. A script that fails is named at the end, and the others are run all the same.

    python benchmarks/all_figures.py                        # short ones: about an hour on two cores
    python benchmarks/all_figures.py --full                 # long ones: a day
    python benchmarks/all_figures.py --full --only rounding monet
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = {
    Path(name).name: HERE / f"{name}.py"
    for name in (
        "figures/memory_by_model", "figures/v100_end_to_end", "figures/max_batch_size", "figures/integrality_gap",
        "figures/rounding", "figures/approximation", "figures/budget_sweep", "figures/strategies", "figures/twremat",
        "figures/moccasin", "figures/monet", "figures/monet_details", "figures/paging", "product/peers",
        "product/batch_size_real",
    )
}  # fmt: skip
ONE_LENGTH = ("v100_end_to_end",)  # it has no --full, and takes seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the long runs, which the committed results are of")
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, metavar="NAME", help=f"of {', '.join(SCRIPTS)}")
    options = parser.parse_args()
    names, failed, begun = options.only or list(SCRIPTS), [], time.monotonic()
    for number, name in enumerate(names, 1):
        hours, minutes = divmod(round((time.monotonic() - begun) / 60), 60)
        print(f"{number} of {len(names)}: {name} (after {hours} h {minutes:02} min)", flush=True)
        command = [sys.executable, str(SCRIPTS[name]), *(["--full"] if options.full and name not in ONE_LENGTH else [])]
        script = subprocess.Popen(command)
        try:
            script.wait()
        except KeyboardInterrupt:
            script.wait()  # it ends its children
            raise
        if script.returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
