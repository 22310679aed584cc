"""What every child under a hard limit does: it talks to its parent, and ends when the parent is gone.

The child's work comes as one JSON argument. Standard output carries one JSON message a line: `{"stage", "done",
"total", "text"}` while it goes on, `{"planned"}` when something was planned, and one `{"result"}` or `{"failed",
"text"}` at the end. The exit status tells how it ended.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["FAILED", "OUT_OF_MEMORY", "REFUSED", "limit_gpu", "say", "serve", "take_memory_in_one_piece", "tell"]

REFUSED = 2
"""Exit status of a run that ended in an error of this package."""

OUT_OF_MEMORY = 4
"""Exit status of a run that TensorFlow ended for want of memory."""

FAILED = 5
"""Exit status of a run that TensorFlow ended for another reason; kernels do not always tell want of memory as such."""


def say(**message: Any) -> None:
    """One message to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tell(stage: str, done: float, total: float, text: str = "") -> None:
    """Progress, as `compile` reports it."""
    say(stage=stage, done=done, total=total, text=text)


def take_memory_in_one_piece() -> None:
    """Make the CPU's allocator take all of its limit as one region, as a GPU's does, if it has a limit.

    It would otherwise grow by regions of doubling size, and no tensor may span two of them: much of a limit is lost.
    """
    import tensorflow as tf

    limit = int(os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "0")) * 2**20
    if limit > 2**24:
        tf.raw_ops.Empty(shape=[limit - 2**23], dtype=tf.uint8, init=False)  # freed at once; the region stays


def limit_gpu(limit_bytes: int) -> None:
    """A hard limit of the first GPU's allocator, if there is a GPU: that of a logical device. Others are not seen."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[:1], "GPU")
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // 2**20)
        tf.config.set_logical_device_configuration(gpus[0], [limit])


def _first_cause(message: str) -> str:
    """The line that says what went wrong. Keras writes where in the model that was before it."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.strip().startswith("[[")]
    other = lines[-1:] if lines and lines[0].startswith("Graph execution error") else lines[:1]
    return next((line for line in lines if "OOM" in line or "memory" in line), "".join(other))[:300]


def follow_parent() -> None:
    """End when the parent is gone: it holds the other end of standard input."""

    def wait() -> None:
        sys.stdin.buffer.read()
        _thread.interrupt_main()
        time.sleep(5.0)
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()


def _run(execute: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Run what the argument says; the exit status tells how it ended."""
    try:
        say(result=execute(json.loads(sys.argv[1])))
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        import tensorflow as tf

        from ..errors import CheckmateError
        from .measure import ran_out

        name = type(error).__name__
        if isinstance(error, CheckmateError):
            figures = {k: getattr(error, k) for k in ("minimum_bytes",) if hasattr(error, k)}
            say(failed=name, text=str(error), **figures)
            return REFUSED
        if isinstance(error, tf.errors.OpError):
            say(failed=name, text=_first_cause(str(error.message)))
            return OUT_OF_MEMORY if ran_out(error) else FAILED
        raise


def serve(execute: Callable[[dict[str, Any]], dict[str, Any]]) -> NoReturn:
    """Run `execute` on the argument, tell what came of it, and end the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    follow_parent()
    status = _run(execute)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # TensorFlow's own shutdown can hang after an out-of-memory
