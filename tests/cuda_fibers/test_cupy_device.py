"""The device on a stand-in for CuPy: copies, launches, memory, and what becomes of errors."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from drivers import DriverError
from drivers.cuda.build import themes
from drivers.cuda.cupy_device import open_device
from drivers.cuda.launch import storage_types
from drivers.cuda.launches import memory
from drivers.cuda.norms import CudaNorms
from drivers.cuda.opening import device_index, import_cupy
from drivers.cuda.pinned import SLOT_BYTES, SLOTS
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.errors import DeviceLost, KernelCompileError, KernelError, OutOfDeviceMemory
from tests.cuda_fibers.cuda_driver import FakeDevice
from tests.cuda_fibers.device import FiberDevice
from tests.cuda_fibers.fake_cupy import CUDADriverError, CUDARuntimeError, FakeCupy

LIMIT = 1 << 20  # bytes of a device that has little memory
KERNEL = "norm_held_1"
UINT8 = np.dtype(np.uint8)


@pytest.fixture
def fake():
    return FakeCupy()


@pytest.fixture
def device(fake):
    return FakeDevice(fake)


def normed(device, rng):
    """One launch, with a null pointer among its arguments."""
    x = device.upload(rng.standard_normal((7, 192)).astype(np.float16))
    weight = device.upload(np.ones(192, np.float16))
    return CudaNorms(device).layer_norm(x, weight, None, eps=1e-5)


# ---- opening


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:0", 0), ("cuda:13", 13)])
def test_a_name_is_a_device(name, index):
    assert device_index(name) == index


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", "cuda:0:1", "gpu", "cuda:²"])
def test_another_name_is_refused(name):
    with pytest.raises(DriverError, match="no device .*, wanted cuda or cuda:0"):
        device_index(name)


def test_without_cupy_the_message_says_what_to_install():
    assert "cupy" not in sys.modules
    with pytest.raises(DriverError, match=r"^cuda:0: .*(CuPy is not|no NVIDIA driver).*$") as said:
        import_cupy("cuda:0")
    assert len(str(said.value).splitlines()) == 1


def test_without_a_device_the_message_says_what_hides_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        DriverError, match=r"cuda:0: no device is visible .*VISIBLE_DEVICES is ''.*"
    ):
        open_device(FakeCupy(devices=0), 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(
        DriverError, match=r"cuda:2: this process sees 2 devices, from 0; .*not set"
    ):
        open_device(FakeCupy(devices=2), 2)


# ---- copies


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.int32, np.uint8])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (7, 31), (SLOT_BYTES + 1,)])
def test_what_goes_up_comes_down_as_it_was(device, rng, dtype, shape):
    array = (100 * rng.standard_normal(shape)).astype(np.uint8).astype(dtype)
    x = device.upload(array)
    assert (x.shape, x.dtype) == (array.shape, array.dtype)
    back = device.download(x)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_an_array_that_is_not_contiguous_goes_up_in_its_own_order(device):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(device.download(device.upload(array.T)), array.T)


def test_slots_are_used_in_turn_and_hold_nothing_back(device):
    arrays = [np.full((9,), n, np.float32) for n in range(3 * SLOTS)]
    sent = [device.upload(array) for array in arrays]
    for array in arrays:
        array += 100
    for n, x in enumerate(sent):
        assert (device.download(x) == n).all()


def test_every_array_is_on_the_boundary_that_kernels_load_from(device):
    device.open_arena()
    addresses = [device.new((n,), np.float16).data.ptr for n in range(1, 9)]
    device.close_arena()
    device.open_arena()
    addresses += [device.new((n,), np.float16).data.ptr for n in range(1, 9)]
    device.close_arena()
    assert not [address for address in addresses if address % 256]


# ---- launches


def test_a_launch_is_the_one_that_the_fibers_run(device, fake, rng):
    want = normed(FiberDevice("warp_greedy"), np.random.default_rng(1))
    got = device.download(normed(device, np.random.default_rng(1)))
    assert np.array_equal(got, want)
    assert fake.launched == [KERNEL]


def test_all_kernels_are_loaded_ahead_and_none_in_a_launch(device, fake, rng):
    device.load_kernels(FLOAT16)
    loaded = fake.loaded_total
    assert loaded == device.modules.loaded_total == len(themes())
    device.load_kernels(FLOAT16)
    normed(device, rng)
    assert fake.loaded_total == loaded
    device.load_kernels(FLOAT32)
    assert fake.loaded_total == loaded + len([t for t in themes() if FLOAT32 in storage_types(t)])


def test_a_kernel_that_wants_more_shared_memory_is_allowed_it_once(device):
    kernel = device.modules.kernel("norms", FLOAT16, KERNEL, 0)
    assert kernel.max_dynamic_shared_size_bytes == 48 * 1024
    for size, allowed in ((60_000, 60_000), (50_000, 60_000), (70_000, 70_000)):
        again = device.modules.kernel("norms", FLOAT16, KERNEL, size)
        assert again is kernel
        assert kernel.max_dynamic_shared_size_bytes == allowed


def test_a_source_that_does_not_compile_is_refused_ahead(device, fake):
    fake.broken_source = KERNEL
    with pytest.raises(KernelCompileError, match="sm_90: told to fail"):
        device.load_kernels(FLOAT16)


@pytest.mark.parametrize("error", [CUDARuntimeError(1), CUDADriverError(1)])
def test_a_launch_that_is_refused_names_itself_and_harms_no_other(device, fake, rng, error):
    fake.fail_at[0] = error
    with pytest.raises(KernelError) as said:
        normed(device, rng)
    for part in ("cuda:0", KERNEL, "grid=(", "float16 (7, 192)", "null"):
        assert part in str(said.value)
    normed(device, rng)


@pytest.mark.parametrize("how", ["told", "a write past the end"])
def test_a_device_that_fails_is_lost_for_good(device, fake, rng, how):
    if how == "told":
        fake.fail_at[0] = CUDARuntimeError(700)
    x = device.upload(np.ones(3, np.float32))
    with pytest.raises(DeviceLost, match=r"cuda:0: .*; the device is lost to this process, which"):
        normed(device, rng) if how == "told" else over_the_end(device)
    for call in (
        lambda: normed(device, rng),
        lambda: device.new((3,), FLOAT32),
        lambda: device.upload(np.ones(3, np.float32)),
        lambda: device.download(x),
        device.synchronize,
        device.open_arena,
        lambda: device.load_kernels(FLOAT16),
    ):
        with pytest.raises(DeviceLost, match="IllegalAddress.*is lost"):
            call()


def over_the_end(device):
    """A copy of more bytes than there are."""
    x = device.upload(np.ones((7, 192), np.float16))
    size = 1 << 20
    arguments = (device.new((7, 192), FLOAT16), x, np.int64(size))
    device.launch("memory", FLOAT32, memory.copy_bytes(size_bytes=size), arguments)


def test_any_thread_may_use_it_whatever_its_current_device(rng):
    device = FakeDevice(FakeCupy(devices=2), 1)
    with ThreadPoolExecutor(1) as other:
        x = other.submit(normed, device, rng).result()
        for call in (device.synchronize, device.open_arena, lambda: device.stream_address):
            other.submit(call).result()
        assert np.isfinite(other.submit(device.download, x).result()).all()


# ---- memory


def batch(device, rng):
    """A batch's tensors: what is left of it, on the host."""
    device.open_arena()
    x = normed(device, rng)
    y = normed(device, rng)
    out = device.download(x), device.download(y)
    device.close_arena()
    return out


def test_a_batch_like_those_before_allocates_nothing(device, fake, rng):
    batch(device, rng)
    assert device.memory.spilled_total > 0
    batch(device, rng)
    assert device.memory.blocks_total == 1
    allocations, spilled = fake.allocations_total, device.memory.spilled_total
    for _ in range(5):
        batch(device, rng)
    assert fake.allocations_total == allocations
    assert device.memory.spilled_total == spilled
    assert device.memory.blocks_total == 1


def test_a_larger_batch_makes_the_arena_larger_and_a_smaller_one_leaves_it(device, rng):
    def sized(rows):
        device.open_arena()
        device.new((rows,), UINT8)
        device.close_arena()
        return device.memory.arena_bytes

    assert [sized(n) for n in (1000, 10, 5000, 5000, 100, 100)] == [0, 1024, 1024, 5120, 5120, 5120]


def test_the_same_batch_has_its_tensors_at_the_same_addresses(device):
    def addresses():
        device.open_arena()
        held = [device.new((n,), FLOAT32) for n in (100, 7, 1000)]
        del held[1]
        held.append(device.new((3,), FLOAT32))
        device.close_arena()
        return [x.data.ptr for x in held]

    addresses()
    assert addresses() == addresses()


def test_what_is_held_keeps_its_values_through_batches_and_new_blocks(device, rng):
    batch(device, rng)
    device.open_arena()
    kept = device.upload(np.full((3, 4), 7, np.float32))[1:]
    device.close_arena()
    for rows in (10, 1000, 100_000):
        device.open_arena()
        for _ in range(3):
            device.upload(np.zeros(rows, np.float32))
        device.close_arena()
    assert (device.download(kept) == 7).all()


def test_outside_batches_memory_is_not_the_arenas(device, rng):
    batch(device, rng)
    batch(device, rng)
    x = device.new((100,), FLOAT32)
    assert device.memory.spilled_total > 0
    assert not hasattr(x.data.mem, "_owner")


def test_out_of_memory_says_what_was_wanted_and_what_there_is():
    device = FakeDevice(FakeCupy(limit=LIMIT))
    kept = device.new((1000,), UINT8)
    with pytest.raises(OutOfDeviceMemory) as said:
        device.new((2, 1 << 20), UINT8)
    assert "cuda:0: a tensor uint8 (2, 1048576): Out of memory" in str(said.value)
    assert "of 1 MiB are free" in str(said.value)
    assert device.new((1 << 19,), UINT8).shape == (1 << 19,)
    del kept


def test_memory_that_is_kept_for_reuse_is_given_back_before_there_is_none():
    device = FakeDevice(FakeCupy(limit=LIMIT))
    device.new((1 << 19,), UINT8)
    device.new((700_000,), UINT8)
    device.new((1 << 20,), UINT8)


def test_a_batch_that_was_too_large_does_not_make_the_arena_too_large():
    device = FakeDevice(FakeCupy(limit=LIMIT))
    device.open_arena()
    first = device.new((1 << 19,), UINT8)
    with pytest.raises(OutOfDeviceMemory):
        device.new((1 << 20,), UINT8)
    device.close_arena()
    del first
    for _ in range(3):
        device.open_arena()
        device.new((1 << 19,), UINT8)
        device.close_arena()


# ---- time, and what a measurement says of its device


def test_the_time_between_two_marks_is_that_of_the_work_between_them(device, rng):
    marks = [device.mark()]
    normed(device, rng)
    marks += [device.mark(), device.mark()]
    whole, half = (device.milliseconds(marks[0], end) for end in (marks[2], marks[1]))
    assert 0 < half < whole


def test_marks_on_a_lost_device_say_so(device, fake):
    start = device.mark()
    fake.sticky = 700
    with pytest.raises(DeviceLost, match="cuda:0: a mark in time: cudaErrorIllegalAddress"):
        device.mark()
    with pytest.raises(DeviceLost, match="cuda:0"):
        device.milliseconds(start, start)


def test_facts_name_the_card_and_the_versions(device):
    assert device.facts() == {
        "name": "Fibers",
        "memory_bytes": 141 * 10**9,
        "multiprocessors": 1,
        "compute_capability": "90",
        "cupy": "14.2.0",
        "cuda_of_driver": "13.0",
        "cuda_runtime": "13.0",
    }
