"""The setting that times and workspaces are measured in: the device, and all else that they depend on."""

from __future__ import annotations

import os
import platform
import zlib

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

__all__ = ["default_device", "setting"]


def default_device() -> str:
    """The first GPU, or else the CPU."""
    return "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0"


def setting(device: str) -> str:
    """What the times of all operations depend on, in words: processor, TensorFlow, threads, oneDNN, kernels."""
    threads = f"{_threads()}of{_cores()}"
    found = f"{_device_name(device)} tf{tf.__version__} threads {threads} onednn {_onednn()}"
    if "GPU" in device.upper():  # other kernels
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


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _device_name(device: str) -> str:
    if "GPU" in device.upper():
        for physical in tf.config.get_visible_devices("GPU"):
            return str(tf.config.experimental.get_device_details(physical).get("device_name", "gpu"))
    return _of_processor("model name") or platform.processor() or platform.machine() or "cpu"


def _of_processor(what: str) -> str:
    """What Linux says of the first processor under a heading; empty elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(what)), "")
    except OSError:
        return ""
