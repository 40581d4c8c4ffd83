"""The device on a stand-in for CuPy: copies, launches, memory, and what becomes of errors."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from drivers import DriverError
from drivers.cuda.cupy_device import CupyDevice, open_device
from drivers.cuda.launch import Launch
from drivers.cuda.opening import device_index, import_cupy
from drivers.cuda.pinned import SLOT_BYTES, SLOTS
from drivers.dtypes import BFLOAT16
from drivers.errors import DeviceLost, KernelError, OutOfDeviceMemory
from tests.cuda_fibers.device import FiberDevice
from tests.cuda_fibers.driver import run_attention
from tests.cuda_fibers.fake_cupy import CUDADriverError, CUDARuntimeError, FakeCupy

HEADS = {"num_heads": 2, "kv_heads": 2, "head_dim": 32, "scale": 0.2, "max_seq": 5}
CU_SEQLENS = np.array([0, 2, 7], np.int32)


@pytest.fixture
def fake():
    return FakeCupy()


@pytest.fixture
def device(fake):
    return CupyDevice(fake, 0)


def attend(device, rng, dtype=np.float16, **heads):
    qkv = rng.standard_normal((7, 192)).astype(dtype)
    return run_attention(device, qkv, CU_SEQLENS, **HEADS | heads)


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
    want = attend(FiberDevice("warp_greedy"), np.random.default_rng(1))
    got = device.download(attend(device, np.random.default_rng(1)))
    assert np.array_equal(got, want)
    assert fake.launched == ["varlen_attention_32"]


def test_all_modules_are_built_ahead_and_none_in_a_launch(device, fake, rng):
    device.compile_all(np.dtype(np.float16))
    built = fake.compiled_total
    assert built == device.modules.compiled_total >= 1
    device.compile_all(np.dtype(np.float16))
    attend(device, rng)
    assert fake.compiled_total == built


def test_a_kernel_that_wants_more_shared_memory_is_allowed_it_once(device):
    kernel = device.modules.kernel(
        "varlen_attention", np.dtype(np.float16), "varlen_attention_32", 0
    )
    assert kernel.max_dynamic_shared_size_bytes == 48 * 1024
    for size, allowed in ((60_000, 60_000), (50_000, 60_000), (70_000, 70_000)):
        again = device.modules.kernel(
            "varlen_attention", np.dtype(np.float16), "varlen_attention_32", size
        )
        assert again is kernel
        assert kernel.max_dynamic_shared_size_bytes == allowed


def test_a_source_that_does_not_compile_is_named(device, fake):
    fake.broken_source = "varlen_attention"
    with pytest.raises(KernelError, match=r"cuda:0: varlen_attention for float16: .*error: told"):
        device.compile_all(np.dtype(np.float16))


@pytest.mark.parametrize("error", [CUDARuntimeError(1), CUDADriverError(1)])
def test_a_launch_that_is_refused_names_itself_and_harms_no_other(device, fake, rng, error):
    fake.fail_at[0] = error
    with pytest.raises(KernelError) as said:
        attend(device, rng)
    for part in ("cuda:0", "varlen_attention_32", "grid=(1, 2, 2)", "float16 (7, 192)", "null"):
        assert part in str(said.value)
    attend(device, rng)


@pytest.mark.parametrize("how", ["told", "a write past the end"])
def test_a_device_that_fails_is_lost_for_good(device, fake, rng, how):
    if how == "told":
        fake.fail_at[0] = CUDARuntimeError(700)
    x = device.upload(np.ones(3, np.float32))
    with pytest.raises(DeviceLost, match=r"cuda:0: varlen_attention.*process, which must be repl"):
        attend(device, rng) if how == "told" else over_the_end(device)
    for call in (
        lambda: attend(device, rng),
        lambda: device.new((3,), np.dtype(np.float32)),
        lambda: device.upload(np.ones(3, np.float32)),
        lambda: device.download(x),
        device.synchronize,
        device.open_arena,
        lambda: device.compile_all(np.dtype(np.float16)),
    ):
        with pytest.raises(DeviceLost, match="varlen_attention"):
            call()


def over_the_end(device):
    """A launch over 700 tokens of an array that has 7."""
    out = device.new((7, 64), np.dtype(np.float16))
    qkv = device.upload(np.ones((7, 192), np.float16))
    ends = device.upload(np.array([0, 70_000], np.int32))
    launch = Launch("varlen_attention_32", (1, 2, 1), (128, 1, 1), 12416)
    sizes = [np.int32(n) for n in (0, 2, 2, 32)]
    arguments = (out, qkv, ends, None, *sizes, np.float32(1), np.int32(-1), np.int32(-1))
    device.launch("varlen_attention", np.dtype(np.float16), launch, arguments)


# ---- memory


def batch(device, rng):
    """A batch's tensors: what is left of it, on the host."""
    device.open_arena()
    x = attend(device, rng)
    y = attend(device, rng)
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
        device.new((rows,), np.dtype(np.uint8))
        device.close_arena()
        return device.memory.arena_bytes

    assert [sized(n) for n in (1000, 10, 5000, 5000, 100, 100)] == [0, 1024, 1024, 5120, 5120, 5120]


def test_the_same_batch_has_its_tensors_at_the_same_addresses(device):
    def addresses():
        device.open_arena()
        held = [device.new((n,), np.dtype(np.float32)) for n in (100, 7, 1000)]
        del held[1]
        held.append(device.new((3,), np.dtype(np.float32)))
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
    x = device.new((100,), np.dtype(np.float32))
    assert device.memory.spilled_total > 0
    assert not hasattr(x.data.mem, "_owner")


def test_out_of_memory_says_what_was_wanted_and_what_there_is():
    device = CupyDevice(FakeCupy(limit=1 << 20), 0)
    kept = device.new((1000,), np.dtype(np.uint8))
    with pytest.raises(OutOfDeviceMemory) as said:
        device.new((2, 1 << 20), np.dtype(np.uint8))
    assert "cuda:0: a tensor uint8 (2, 1048576): Out of memory" in str(said.value)
    assert "of 1 MiB are free" in str(said.value)
    assert device.new((1 << 19,), np.dtype(np.uint8)).shape == (1 << 19,)
    del kept


def test_memory_that_is_kept_for_reuse_is_given_back_before_there_is_none():
    device = CupyDevice(FakeCupy(limit=1 << 20), 0)
    device.new((1 << 19,), np.dtype(np.uint8))
    device.new((700_000,), np.dtype(np.uint8))
    device.new((1 << 20,), np.dtype(np.uint8))


def test_a_batch_that_was_too_large_does_not_make_the_arena_too_large():
    device = CupyDevice(FakeCupy(limit=1 << 20), 0)
    device.open_arena()
    first = device.new((1 << 19,), np.dtype(np.uint8))
    with pytest.raises(OutOfDeviceMemory):
        device.new((1 << 20,), np.dtype(np.uint8))
    device.close_arena()
    del first
    for _ in range(3):
        device.open_arena()
        device.new((1 << 19,), np.dtype(np.uint8))
        device.close_arena()
