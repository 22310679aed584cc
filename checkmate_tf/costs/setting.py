"""The setting that times and workspaces are measured in: the device, and all else that they depend on."""

from __future__ import annotations

import os
import platform
import zlib

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from ..errors import CostError, show_value
from ..machine import cores

__all__ = ["device_name", "setting"]


def device_name(device: str | None = None) -> str:
    """A device as TensorFlow's memory statistics call it, e.g. "GPU:0".

    Parameters
    ----------
    device : str, optional
        In any way that TensorFlow reads: "GPU:1", "/gpu:1", "/device:GPU:1". Default: the first GPU, or else the CPU.

    Raises
    ------
    CostError
        If it is no text, or there is no such device; lists those that there are.
    """
    there = [logical.name.rpartition("device:")[2] for logical in tf.config.list_logical_devices()]
    if device is not None and not isinstance(device, str):
        raise CostError(f"device={show_value(device)} is not a device's name: give a text, one of {', '.join(there)}")
    if not device:
        return "GPU:0" if "GPU:0" in there else "CPU:0"
    try:
        asked = tf.DeviceSpec.from_string(device)
    except ValueError:
        asked = tf.DeviceSpec()
    name = f"{asked.device_type}:{asked.device_index or 0}"
    if name not in there:
        raise CostError(f"there is no device {device!r}; there are {', '.join(there)}")
    return name


def setting(device: str) -> str:
    """What the times of all operations depend on, in words: processor, TensorFlow, threads, oneDNN, kernels.

    Raises
    ------
    CostError
        If there is no such device.
    """
    name = device_name(device)
    threads = f"{_threads()}of{cores()}"
    found = f"{_model_of(name)} tf{tf.__version__} threads {threads} onednn {_onednn()}"
    if name.startswith("GPU"):  # other kernels
        found += f" deterministic {is_op_determinism_enabled()}"
        found += f" tf32 {tf.config.experimental.tensor_float_32_execution_enabled()}"
    return found


def _onednn() -> str:
    """What oneDNN chooses its kernels by: whether it is used, the instructions that it may use, those there are.

    Processors of one name can differ in their instructions, as virtual ones do.
    """
    cap = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "-"
    flags = " ".join(sorted(_of_processor("flags").split()))
    return f"{os.environ.get('TF_ENABLE_ONEDNN_OPTS', '-')} {cap} {zlib.crc32(flags.encode()):08x}"


def _threads() -> int:
    """Threads of one operation that the program asks for, or else the environment; 0 if TensorFlow chooses."""
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    given = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    return asked or (int(given) if given.isdecimal() else 0)


def _model_of(name: str) -> str:
    """What a device is sold as. A GPU may be split into several devices, which are numbered one after the other."""
    kind, _, number = name.partition(":")
    if kind == "GPU":
        parts = [
            physical
            for physical in tf.config.get_visible_devices(kind)
            for _ in tf.config.get_logical_device_configuration(physical) or [None]
        ]
        return str(tf.config.experimental.get_device_details(parts[int(number)]).get("device_name", "gpu"))
    return _of_processor("model name") or platform.processor() or platform.machine() or "cpu"


def _of_processor(what: str) -> str:
    """What Linux says of the first processor under a heading; empty elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(what)), "")
    except OSError:
        return ""
