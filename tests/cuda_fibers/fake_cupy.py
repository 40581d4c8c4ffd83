"""Stands in for CuPy: device memory is the host's, and kernels run on CPU fibers.

It has what the driver calls and no more, with the names, the order of arguments and the refusals of
CuPy 14. Fresh memory holds NaN, arrays are no NumPy arrays and never turn into one, a stream runs
everything at once, and it can be told to run out of memory or to fail.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from drivers.cuda.launch import Launch
from drivers.errors import KernelCompileError
from tests.cuda_fibers.engine import FiberError, compile_kernels
from tests.cuda_fibers.host_memory import bytes_at, guarded

POOL_BYTES = 512  # CuPy's pool rounds up to it
POISONED_BYTES = 1 << 20  # of fresh memory: what is larger is a workspace, and costs time
TEXT = {2: "cudaErrorMemoryAllocation", 700: "cudaErrorIllegalAddress", 1: "cudaErrorInvalidValue"}


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"{TEXT[status]}: told to fail")
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"CUDA_ERROR {status}: told to fail")
        self.status = status


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,}).")


class UnownedMemory:
    """Somebody else's memory. What lies there is undefined until it is written: NaN."""

    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id
        bytes_at(ptr, size)[...] = 0xFF


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class Flags:
    def __init__(self, host):
        self.c_contiguous = host.flags.c_contiguous


class ndarray:
    """Values in device memory; slices and shapes of them are views."""

    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        assert memptr is not None
        assert (strides, order) == (None, "C")
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        host = bytes_at(memptr.ptr, size).view(dtype).reshape(shape)
        self._set(host, memptr)

    def _set(self, host, memptr):
        self._host, self._memory = host, memptr.mem
        self.shape, self.dtype, self.size = host.shape, host.dtype, host.size
        self.ndim, self.nbytes, self.itemsize = host.ndim, host.nbytes, host.itemsize
        self.strides, self.flags = host.strides, Flags(host)
        self.data = SimpleNamespace(mem=memptr.mem, ptr=host.__array_interface__["data"][0])

    def _view(self, host):
        assert host.base is not None or not host.size, "CuPy would have copied"
        made = object.__new__(ndarray)
        made._set(host, self.data)
        return made

    def __len__(self):
        return len(self._host)

    def __getitem__(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        assert all(isinstance(part, (int, np.integer, slice)) for part in parts), key
        found = self._host[key]
        return self._view(found if isinstance(found, np.ndarray) else self._host[(*parts, ...)])

    def reshape(self, *shape):
        host = self._host.reshape(*shape)
        assert np.shares_memory(host, self._host) or not host.size, "a reshape that copies"
        return self._view(host)

    def ravel(self):
        return self.reshape(-1)

    def view(self, dtype):
        return self._view(self._host.view(dtype))

    @property
    def T(self):
        return self._view(self._host.T)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __setitem__(self, key, value):
        raise AssertionError("the driver computes by launches alone")

    __iter__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __eq__ = __setitem__


class FakeCupy:
    """The module. `devices`: how many there are; `limit`: bytes that may be allocated at once.

    order: of the fibers' threads. `launched` names kernels; `fail_at` maps the number of a launch,
    from 0, to an error that it raises: with a sticky one, everything after it fails too.
    """

    __version__ = "14.2.0"

    def __init__(self, order="warp_greedy", devices=1, limit=None):
        self.order, self.devices, self.limit = order, devices, limit
        self.allocated = 0
        self.allocations_total = 0
        self.launched = []
        self.fail_at = {}
        self.sticky = None
        self.capability = "90"
        self._of_thread = threading.local()  # the current device
        self.loaded_total = 0
        self.broken_source = None
        self._cubins = {}
        fake = self

        def alive(call):
            @functools.wraps(call)
            def checked(*args, **kwargs):
                if fake.sticky is not None:
                    raise CUDARuntimeError(fake.sticky)
                return call(*args, **kwargs)

            return checked

        class Device:
            def __init__(self, device=None):
                self.id = device

            def use(self):
                fake._of_thread.device = self.id

            @property
            def mem_info(self):
                total = fake.limit or 1 << 40
                return total - fake.allocated, total

            @property
            def compute_capability(self):
                return fake.capability

        class Stream:
            ptrs = itertools.count(0x1000, 16)

            def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
                self.ptr = next(self.ptrs)
                self.device_id = fake.current_device
                self.depth = 0

            @alive
            def synchronize(self):
                pass

            def __enter__(self):
                assert fake.current_device == self.device_id
                fake.current_streams.append(self)
                return self

            def __exit__(self, *_):
                fake.current_streams.pop()

        class Event:
            def __init__(self, block=False, disable_timing=False, interprocess=False):
                pass

            @alive
            def record(self, stream=None):
                assert stream is not None
                self.seconds = time.perf_counter()

            @alive
            def synchronize(self):
                pass

        def get_elapsed_time(start_event, end_event):
            return 1e3 * (end_event.seconds - start_event.seconds)

        class Memory:
            def __init__(self, size):
                if fake.limit is not None and fake.allocated + size > fake.limit:
                    raise OutOfMemoryError(size, fake.allocated)
                fake.allocated += size
                fake.allocations_total += 1
                self.size, self._bytes = size, guarded((size,), np.uint8, filled=False)
                self.ptr = self._bytes.ctypes.data

            def free(self):
                fake.allocated -= self.size

        class Pooled:
            """Memory that goes back to its pool with its last holder."""

            def __init__(self, pool, memory):
                self.pool, self.memory, self.ptr = pool, memory, memory.ptr
                memory._bytes[:POISONED_BYTES] = 0xFF

            def __del__(self):
                self.pool.free.append(self.memory)

        class MemoryPool:
            def __init__(self, allocator=None):
                self.device = fake.current_device
                self.free = []
                self.held = 0

            @alive
            def malloc(self, size):
                assert fake.current_device == self.device, "memory of another device"
                size = -(-size // POOL_BYTES) * POOL_BYTES
                for at, memory in enumerate(self.free):
                    if memory.size == size:
                        return MemoryPointer(Pooled(self, self.free.pop(at)), 0)
                memory = Memory(size)
                self.held += size
                return MemoryPointer(Pooled(self, memory), 0)

            def free_all_blocks(self, stream=None):
                for memory in self.free:
                    self.held -= memory.size
                    memory.free()
                self.free.clear()

            def total_bytes(self):
                return self.held

        class PinnedMemoryPointer(np.ndarray):
            """Has the buffer of its bytes, as CuPy's has."""

            @property
            def ptr(self):
                return self.ctypes.data

        @alive
        def alloc_pinned_memory(size):
            return np.zeros(size, np.uint8).view(PinnedMemoryPointer)

        class Runtime:
            CUDARuntimeError = CUDARuntimeError
            memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3

            @staticmethod
            def getDeviceCount():
                if not fake.devices:
                    raise CUDARuntimeError(1)
                return fake.devices

            @staticmethod
            def getDeviceProperties(device):
                sizes = {"totalGlobalMem": 141 * 10**9, "multiProcessorCount": 1}
                return {"name": b"Fibers", **sizes}

            @staticmethod
            def driverGetVersion():
                return 13000

            runtimeGetVersion = driverGetVersion

            @staticmethod
            @alive
            def memcpyAsync(dst, src, size, kind, stream):
                assert kind in (1, 2, 3)
                assert stream
                ctypes.memmove(dst, src, size)

            @staticmethod
            @alive
            def memsetAsync(ptr, value, size, stream):
                assert stream
                ctypes.memset(ptr, value, size)

        class RawKernel:
            def __init__(self, name, build):
                self.name, self._build = name, build
                self.max_dynamic_shared_size_bytes = 48 * 1024

            @property
            def kernel(self):
                return self

            @alive
            def __call__(self, grid, block, args, *, shared_mem=0):
                assert len(grid) == len(block) == 3
                assert shared_mem <= self.max_dynamic_shared_size_bytes
                assert fake.current_streams, "a launch outside the driver's stream"
                fake.run(self._build, Launch(self.name, grid, block, shared_mem), args)

        class RawModule:
            def __init__(self, *, code=None, path=None, options=(), backend="nvrtc"):
                assert (code is None) != (path is None)
                self.build = fake._cubins[path]
                fake.loaded_total += 1

            def get_function(self, name):
                assert name in self.build.kernels
                return RawKernel(name, self.build)

        self.current_streams = []
        self.ndarray = ndarray
        self.RawModule = RawModule
        self.cuda = SimpleNamespace(
            Device=Device,
            Stream=Stream,
            Event=Event,
            MemoryPool=MemoryPool,
            MemoryPointer=MemoryPointer,
            UnownedMemory=UnownedMemory,
            get_elapsed_time=get_elapsed_time,
            alloc_pinned_memory=alloc_pinned_memory,
            runtime=Runtime,
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        )

    def cubin_of(self, build, arch):
        """In the place of a compiler: a name for the build."""
        assert arch == f"sm_{self.capability}"
        if self.broken_source is not None and self.broken_source in build.source:
            raise KernelCompileError(f"{arch}: told to fail")
        path = f"{len(self._cubins)}.cubin"
        self._cubins[path] = build
        return Path(path)

    def run(self, build, launch, args):
        """One launch on the fibers."""
        number = len(self.launched)
        self.launched.append(launch.kernel)
        error = self.fail_at.get(number)
        if error is not None:
            if error.status == 700:
                self.sticky = error.status
            raise error
        values = [self._argument(value) for value in args]
        try:
            compile_kernels(build).run(launch, values, self.order)
        except FiberError as fault:
            self.sticky = 700
            raise CUDARuntimeError(700) from fault

    @property
    def current_device(self):
        """Each thread's own, the first one where it has not said."""
        return getattr(self._of_thread, "device", 0)

    @staticmethod
    def _argument(value):
        if isinstance(value, ndarray):
            return value._host
        if isinstance(value, np.uint64):
            assert value == 0, "addresses are passed as arrays"
            return None
        return value
