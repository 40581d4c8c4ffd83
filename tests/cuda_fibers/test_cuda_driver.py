"""The driver of one CUDA device: what it is, what it packs, and the life of a batch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import drivers
from drivers import DriverError, DtypeError, Encoding, NumpyDriver, ShapeError, open_driver
from drivers.cuda import open_cuda
from drivers.cuda.build import themes
from drivers.cuda.driver import CudaDriver
from drivers.cuda.launch import storage_types
from drivers.dtypes import BFLOAT16, FLOAT16, FLOAT32
from drivers.errors import DeviceLost
from tests.cuda_fibers.cuda_driver import FakeDevice, cuda_driver
from tests.cuda_fibers.fake_cupy import CUDARuntimeError, FakeCupy
from tests.ops.test_refusals import WRONG_IDS, WRONG_SHAPES, call


@pytest.fixture
def fake():
    return FakeCupy(devices=2)


@pytest.fixture
def driver(fake):
    return CudaDriver(FakeDevice(fake, 1))


@pytest.fixture
def visible(fake, monkeypatch):
    """The stand-in, found where CuPy is looked for."""
    monkeypatch.setattr("drivers.cuda.planned.import_cupy", lambda name: fake)
    monkeypatch.setattr("drivers.cuda.cupy_device.CupyDevice", FakeDevice)
    return fake


def test_it_is_named_after_its_device_and_prefers_float16(driver):
    assert driver.name == "cuda:1"
    assert driver.preferred_tokens == 16384
    assert driver.dtypes == (FLOAT16, BFLOAT16, FLOAT32)


def test_it_opens_by_name_and_says_which_device_it_is(visible):
    assert open_driver("cuda").name == open_driver("cuda:0").name == "cuda:0"
    assert drivers.choose_driver("cuda:1") == (
        "cuda:1",
        "asked for by name; Fibers, 141 GB, CuPy 14.2.0",
    )
    assert drivers.choose_driver("auto")[0] == "cuda:0"
    with pytest.raises(DriverError, match="cuda:2: this process sees 2 devices"):
        open_driver("cuda:2")


def test_a_device_that_is_too_old_is_refused(visible):
    visible.capability = "75"
    with pytest.raises(DriverError, match="cuda:0: compute capability 7.5, wanted 8.0 or later"):
        open_driver("cuda")


def test_there_is_no_second_driver_of_a_device(driver):
    with pytest.raises(DriverError, match="cuda:1: a device has one driver"):
        driver.new_for_clone()


def test_where_it_is_unpickled_it_opens_the_device_there(visible, driver):
    twin = pickle.loads(pickle.dumps(driver))
    assert type(twin) is CudaDriver
    assert twin.name == "cuda:1"
    assert twin.device is not driver.device


def test_a_plan_is_pickled_without_opening_anything(visible):
    planned = drivers.plan_driver("cuda:1")
    visible.devices = 0
    arrived = pickle.loads(pickle.dumps(planned))
    visible.devices = 2
    assert type(arrived.new_for_clone()) is CudaDriver
    assert arrived.name == arrived.new_for_clone().name == "cuda:1"


@pytest.mark.parametrize(("op", "inputs", "options", "message"), WRONG_SHAPES, ids=WRONG_IDS)
def test_it_refuses_in_the_words_of_numpy(op, inputs, options, message):
    said = []
    for one in (cuda_driver(), NumpyDriver()):
        with pytest.raises(ShapeError, match=message) as caught:
            call(one, op, *inputs, **options)
        said.append(str(caught.value))
    assert said[0] == said[1]


# ---- weights


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32])
def test_a_weight_is_rounded_to_its_storage_type_once(driver, rng, dtype):
    weight = rng.standard_normal((7, 31)).astype(np.float32)
    packed = driver.pack(weight, "linear", dtype)
    assert packed.dtype == dtype
    assert np.array_equal(driver.device.download(packed), weight.astype(dtype))


def test_every_kernel_is_loaded_with_the_first_weight_and_none_later(driver, fake):
    assert fake.loaded_total == 0
    driver.pack(np.ones(3, np.float32), "vector", FLOAT16)
    # float16's, and those for what is float32 whatever the storage
    loaded = sum(
        dtype in storage_types(theme) for theme in themes() for dtype in (FLOAT16, FLOAT32)
    )
    assert fake.loaded_total == loaded
    driver.pack(np.ones(3, np.float32), "vector", FLOAT16)
    assert fake.loaded_total == loaded


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused(driver, bad):
    with pytest.raises(DriverError, match=r"pack: a weight of shape \(2,\) has values beyond"):
        driver.pack(np.array([1, bad], np.float32), "vector", FLOAT32)


def test_a_weight_beyond_float16_is_refused_with_what_holds_it(driver):
    weight = np.array([1, -70000], np.float32)
    with pytest.raises(DriverError, match="value of size 70000, beyond float16: wanted .*bfloat16"):
        driver.pack(weight, "vector", FLOAT16)
    assert driver.device.download(driver.pack(weight, "vector", BFLOAT16))[1] == -70144
    edge = driver.pack(np.array([65504], np.float32), "vector", FLOAT16)
    assert driver.device.download(edge)[0] == 65504


def test_a_storage_type_it_lacks_is_refused(driver):
    with pytest.raises(DtypeError, match="cuda:1: no storage type float64, only float16, bfloat16"):
        driver.pack(np.ones((3, 4)), "linear", np.float64)


# ---- a batch's life


def memory_of(driver):
    return driver.device.memory


def new(driver):
    return driver.device.new((100,), FLOAT32)


def test_what_a_batch_makes_lies_in_the_arena_and_what_is_made_outside_does_not(driver):
    for _ in range(2):
        driver.begin_batch()
        new(driver)
        driver.end_batch()
    assert memory_of(driver).arena_bytes == 512
    inside, spilled = [], memory_of(driver).spilled_total
    driver.begin_batch()
    inside.append(new(driver).data.ptr)
    driver.end_batch()
    saved = driver.save_pool_cursor()
    inside.append(new(driver).data.ptr)
    driver.restore_pool_cursor(saved)
    outside = new(driver)
    assert inside[0] == inside[1] != outside.data.ptr
    assert memory_of(driver).spilled_total == spilled


def test_scopes_within_a_batch_leave_its_arena_open(driver):
    for _ in range(2):
        driver.begin_batch()
        outer = driver.save_pool_cursor()
        inner = driver.save_pool_cursor()
        driver.restore_pool_cursor(inner)
        driver.restore_pool_cursor(outer)
        first = new(driver)
        driver.end_batch()
    assert first.data.mem.size == 400


def test_a_batch_that_was_not_opened_cannot_end(driver):
    with pytest.raises(DriverError, match="end_batch: no batch is open"):
        driver.end_batch()
    driver.begin_batch()
    driver.end_batch()
    with pytest.raises(DriverError, match="end_batch: no batch is open"):
        driver.end_batch()


def test_a_batch_on_a_lost_device_says_so(driver, fake):
    fake.sticky = 700
    driver.device._lost = None
    with pytest.raises(DeviceLost, match="cuda:1: .*must be replaced"):
        driver.device.synchronize()
    with pytest.raises(DeviceLost, match="cuda:1"):
        driver.begin_batch()
    with pytest.raises(DeviceLost, match="cuda:1"):
        driver.prepare_batch_unpadded([Encoding(np.ones(3, np.int32))])


def test_the_error_of_an_opening_is_one_line(visible, monkeypatch):
    visible.sticky = 700
    with pytest.raises(DriverError, match="^cuda:0: cannot be opened: .*$") as said:
        open_cuda("cuda:0")
    assert len(str(said.value).splitlines()) == 1
    assert not isinstance(said.value, DeviceLost)
    assert isinstance(said.value.__cause__.__cause__, CUDARuntimeError)
