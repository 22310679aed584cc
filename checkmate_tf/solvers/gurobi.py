"""Which Gurobi licence is here: `python -m checkmate_tf.cli.licence` prints "none", "size-limited" or "full", and why.

In a process of its own, since a licence server that does not answer would hang the caller.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

__all__ = ["LIMIT", "gurobi_licence"]

LIMIT = 2_000
"""Variables and constraints that the licence in gurobipy's wheel allows."""

_TOO_LARGE = 10010


def gurobi_licence(timeout: float = 30.0) -> dict[str, str]:
    """Probe, and never fail.

    Returns
    -------
    dict with "licence" ("none", "size-limited" or "full") and "detail"
    """
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.append({root!r}); from {__name__} import probe; probe()"]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return {"licence": "none", "detail": f"Gurobi did not answer in {timeout:.0f} s (a licence server?)"}
    except OSError as error:
        return {"licence": "none", "detail": str(error)}
    for line in reversed(run.stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "licence" in found:
            return found
    lines = run.stderr.strip().splitlines()
    return {"licence": "none", "detail": lines[-1] if lines else f"the probe ended with status {run.returncode}"}


def probe() -> None:
    """Optimize a model just over the limit of the wheel's licence."""
    try:
        import gurobipy

        with gurobipy.Env(empty=True) as env:
            env.setParam("OutputFlag", 0)
            env.start()
            with gurobipy.Model(env=env) as model:
                model.addVars(LIMIT + 1)
                try:
                    model.optimize()
                    found = {"licence": "full", "detail": "no limit on size"}
                except gurobipy.GurobiError as error:
                    if error.errno != _TOO_LARGE:
                        raise
                    limit = f"models up to {LIMIT:,} variables and {LIMIT:,} constraints"
                    found = {"licence": "size-limited", "detail": limit}
    except ImportError as error:
        found = {"licence": "none", "detail": f"gurobipy is not installed ({error})"}
    except Exception as error:  # noqa: BLE001 - a licence can fail in any way; that is the finding
        found = {"licence": "none", "detail": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    probe()
