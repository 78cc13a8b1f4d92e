"""A kernel timer of this process, on CLOCK_BOOTTIME, that sends a signal."""

import ctypes
import os
import threading
import time

_SIGEV_THREAD_ID = 4
_TIMER_ABSTIME = 1
_NS = 1_000_000_000


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_byte * 44),
    )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class KernelTimer:
    """Sends a signal to the thread that made the timer, once for each `set`. A signal to the whole
    process could reach another thread while this one runs on."""

    def __init__(self, number: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        event = _Sigevent(signo=number, notify=_SIGEV_THREAD_ID, thread=threading.get_native_id())
        self._id = ctypes.c_void_p()
        self._settime = libc.timer_settime
        made = libc.timer_create(
            ctypes.c_int(time.CLOCK_BOOTTIME), ctypes.byref(event), ctypes.byref(self._id)
        )
        if made != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def set(self, at_boottime_ns: int | None) -> None:
        """Fire at that time, or at once if it has passed; None disarms the timer."""
        # Zero would disarm it.
        seconds, nanoseconds = divmod(0 if at_boottime_ns is None else max(1, at_boottime_ns), _NS)
        setting = _Itimerspec(value=_Timespec(seconds, nanoseconds))
        if self._settime(self._id, _TIMER_ABSTIME, ctypes.byref(setting), None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
