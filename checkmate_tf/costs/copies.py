"""How fast a device copies to its host and back, measured on this machine, and kept on disk (`cache.py`).

A copy takes its bytes at a rate, and a while before the first byte (`CopyRates`). The rates are those of one large copy
at a time, each way. What is copied back lies in memory that the device can read: it was copied there before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from . import cache as disk
from .setting import setting

__all__ = ["CopyRates", "copied_seconds", "copy_rates", "median_seconds"]

_SIZE = 64 << 20  # bytes of a large copy: its rate is that of larger ones
_SMALL = 4 << 10  # bytes of a small one, of which all is latency
_CALLS = 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CopyRates:
    """How long copies take between a device and its host.

    Attributes
    ----------
    to_host, from_host : float
        Bytes a microsecond.
    latency_us : float
        Of each copy, besides.
    """

    to_host: float
    from_host: float
    latency_us: float


def copy_rates(device: str, host: str, *, cache: bool = True) -> CopyRates | None:
    """How long copies take, as measured now or before.

    Parameters
    ----------
    device, host : str
        "/device:GPU:0" and "/device:CPU:0".
    cache : bool
        Read and write the cache on disk.

    Returns
    -------
    CopyRates or None
        None if there is no memory for the copies: what is measured takes 128 MiB of the device.
    """
    names = [f"a copy of {_SIZE} bytes to {host}", f"a copy of {_SIZE} bytes from {host}", f"a small copy to {host}"]
    path = disk.cache_path(setting(device)) if cache else None
    known = disk.load(path)
    if not known.keys() >= set(names):
        try:
            with tf.init_scope():
                call = median_seconds(lambda: tf.zeros([]))
                small = copied_seconds(device, host, _SMALL)
                large = copied_seconds(device, host, _SIZE)
        except tf.errors.OpError as error:
            _log.warning("copies between %s and %s were not measured: %s", device, host, error.message)
            return None
        latency = sum(small) / 2 - call
        found = large[0] - small[0], large[1] - small[1], latency
        fresh = {name: max(1e6 * seconds, disk.LEAST_US) for name, seconds in zip(names, found, strict=True)}
        disk.save(path, fresh)
        known |= fresh
    to_us, from_us, latency_us = (known[name] for name in names)
    return CopyRates(_SIZE / to_us, _SIZE / from_us, latency_us)


def copied_seconds(device: str, host: str, size_bytes: int) -> tuple[float, float]:
    """Seconds of a function that copies so many bytes to the host, and of one that copies them back.

    Parameters
    ----------
    device, host : str
    size_bytes : int
        A multiple of 4.
    """

    def moved(y: tf.Tensor, to: str) -> tf.Tensor:
        with tf.device(to):
            return tf.identity(y)

    with tf.device(device):
        x = tf.raw_ops.DeepCopy(x=tf.ones([size_bytes // 4]))
    there = tf.function(lambda: moved(x, host), autograph=False)()
    return median_seconds(lambda: moved(x, host)), median_seconds(lambda: moved(there, device))


def median_seconds(run: Callable[[], Any]) -> float:
    """The median time of several calls of a function, all its devices waited for."""
    function, found = tf.function(run, autograph=False).get_concrete_function(), []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        function()
        tf.test.experimental.sync_devices()
        found.append(time.perf_counter() - begun)
    return sorted(found)[len(found) // 2]
