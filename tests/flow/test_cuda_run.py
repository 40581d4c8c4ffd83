"""A run with the CUDA driver, from the config to a version, on the stand-ins for its libraries."""

from __future__ import annotations

import numpy as np
import pytest
from run_builder import column_of, run_whole, small_shards, stand_in_for_ray

from drivers.cuda.driver import CudaDriver
from drivers.errors import DeviceLost, DriverError, OutOfDeviceMemory
from pipeline import Embedder, actor
from pipeline.commands.run import _estimate
from pipeline.errors import UsageError
from pipeline.run import prepare
from tests.cuda_fibers.cuda_driver import FakeDevice
from tests.cuda_fibers.fake_cupy import CUDARuntimeError, FakeCupy
from tests.models.folders import TinyBert, build

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def shards_done(monkeypatch):
    return stand_in_for_ray(monkeypatch)


@pytest.fixture
def fake(monkeypatch):
    """A machine with one device."""
    made = FakeCupy()
    monkeypatch.setattr("drivers.cuda.planned.import_cupy", lambda name: made)
    monkeypatch.setattr("drivers.cuda.cupy_device.open_device", FakeDevice)
    return made


def cuda_run(place, **sections):
    return small_shards(place, workers={"driver": "cuda"}, **sections)


def test_a_run_writes_what_numpy_writes_within_float16(tmp_path, fake):
    version = run_whole(cuda_run(tmp_path))
    assert version.rows == 23
    assert version.summary["driver"] == "cuda:0"
    assert version.summary["dtype"] == "float16"
    plain = small_shards(tmp_path, None, sink={"uri": f"{tmp_path}/plain"})
    run_whole(plain)
    got, want = (np.array(column_of(config, "vector")) for config in (cuda_run(tmp_path), plain))
    assert 0 < np.abs(got - want).max() < 5e-3
    assert fake.launched


def test_a_run_is_planned_where_there_is_no_device(tmp_path, monkeypatch):
    def missing(name):
        raise DriverError(f"{name}: CuPy is not installed")

    monkeypatch.setattr("drivers.cuda.planned.import_cupy", missing)
    prepared = prepare(cuda_run(tmp_path))
    assert (prepared.model.driver.name, prepared.model.dtype) == ("cuda:0", "float16")
    assert _estimate(prepared) == "no estimate: cuda:0: CuPy is not installed"
    with pytest.raises(DriverError, match="cuda:0: CuPy is not installed"):
        run_whole(cuda_run(tmp_path))


def test_a_type_that_cuda_lacks_is_refused_at_plan_time(tmp_path):
    assert prepare(cuda_run(tmp_path, model={"dtype": "bfloat16"})).model.dtype == "bfloat16"
    with pytest.raises(UsageError, match="'cuda:0' has no dtype 'int8', have auto, float16, bfloa"):
        prepare(cuda_run(tmp_path, model={"dtype": "int8"}))


def test_a_worker_whose_device_is_lost_ends_its_process(tmp_path, fake, monkeypatch):
    class Ended(BaseException):
        """In the place of the process."""

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(actor.os, "_exit", end)
    fake.fail_at[len(fake.launched) + 5] = CUDARuntimeError(700)
    with pytest.raises(Ended) as ended:
        run_whole(cuda_run(tmp_path))
    assert ended.value.args == (actor.DEVICE_LOST_EXIT,)
    assert isinstance(ended.value.__context__, DeviceLost)


def test_a_batch_beyond_the_devices_memory_is_halved(tmp_path):
    build(tmp_path / "model", TinyBert())
    texts = [f"the cat is {'a river ' * (n % 5)}" for n in range(40)]

    def embedded(limit):
        driver = CudaDriver(FakeDevice(FakeCupy(limit=limit)))
        fake, memory = driver.device._cupy, driver.device.memory
        with Embedder.open(tmp_path / "model", driver=driver) as embedder:
            before = fake.allocated
            vectors = [embedder.encode(texts) for _ in range(3)]
            return vectors, before, memory.arena_bytes

    whole, before, needed = embedded(None)
    halved, _, arena = embedded(before + needed * 6 // 10)
    assert 0 < arena < needed
    for vectors in (*whole, *halved):
        assert np.abs(vectors - whole[0]).max() < 2e-3
    with pytest.raises(OutOfDeviceMemory, match="a text of .* tokens does not fit .* nothing did"):
        embedded(before + 2048)
