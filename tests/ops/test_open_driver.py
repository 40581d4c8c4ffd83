"""Opening drivers by name: what is chosen, what is said about it, what is refused."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from drivers import (
    DriverError,
    NullDriver,
    NumpyDriver,
    choose_driver,
    gpus_of,
    open_driver,
    plan_driver,
)


@pytest.mark.parametrize(("name", "kind"), [("numpy", NumpyDriver), ("null", NullDriver)])
def test_a_name_opens_its_driver(name, kind):
    driver = open_driver(name)
    assert type(driver) is kind
    assert driver.name == name


def test_every_call_opens_another_driver():
    assert open_driver("null") is not open_driver("null")


def test_auto_is_the_default_and_never_the_driver_without_values():
    assert type(open_driver()) is type(open_driver("auto"))
    assert open_driver().name == choose_driver("auto")[0] != "null"


@pytest.mark.parametrize("name", ["auto", "numpy", "null"])
def test_the_choice_and_its_reason_are_logged(caplog, name):
    chosen, reason = choose_driver(name)
    with caplog.at_level(logging.INFO, logger="drivers"):
        open_driver(name)
    assert reason
    assert f"driver {chosen}: {reason}" in caplog.text


@pytest.mark.parametrize("name", ["gpu:0", "NumPy", "", "torch"])
def test_an_unknown_name_is_refused_beside_the_known_ones(name):
    with pytest.raises(
        DriverError, match=f"no driver '{name}' in this build.*auto, cuda, cpu, numpy, null"
    ):
        open_driver(name)


def without_cupy(name):
    raise DriverError(f"{name}: no CuPy here")


def test_auto_prefers_cuda_and_says_why_it_is_not_there(monkeypatch):
    monkeypatch.setattr("drivers.describe_cuda", lambda name: "a device")
    assert choose_driver("auto") == ("cuda:0", "the best driver of this machine; a device")
    assert choose_driver("cuda") == ("cuda:0", "asked for by name; a device")
    assert choose_driver("cuda:3") == ("cuda:3", "asked for by name; a device")
    monkeypatch.setattr("drivers.describe_cuda", without_cupy)
    chosen, reason = choose_driver("auto")
    assert chosen in ("cpu", "numpy")
    assert "; not cuda: cuda: no CuPy here" in reason
    with pytest.raises(DriverError, match="cuda:1: no CuPy here"):
        open_driver("cuda:1")


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", "cuda:0:1"])
def test_a_device_that_is_no_number_is_refused(name):
    with pytest.raises(DriverError, match=f"no device '{name}', wanted cuda or cuda:0"):
        open_driver(name)


def test_a_plan_names_a_device_without_opening_it(monkeypatch):
    monkeypatch.setattr("drivers.cuda.planned.import_cupy", without_cupy)
    planned = plan_driver("cuda")
    assert (planned.name, gpus_of(planned.name)) == ("cuda:0", 1)
    assert planned.dtypes[0] == np.float16
    with pytest.raises(DriverError, match="cuda:0: no CuPy here"):
        planned.new_for_clone()
    assert type(plan_driver("numpy")) is NumpyDriver
    assert gpus_of("numpy") == gpus_of("cpu:avx2") == 0
    monkeypatch.setattr("drivers.describe_cuda", lambda name: "a device")
    assert plan_driver("auto").name == "cuda:0"
