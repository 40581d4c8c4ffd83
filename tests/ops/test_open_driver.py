"""Opening drivers by name: what is chosen, what is said about it, what is refused."""

from __future__ import annotations

import logging

import pytest

from drivers import DriverError, NullDriver, NumpyDriver, choose_driver, open_driver


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


@pytest.mark.parametrize("name", ["cuda:0", "NumPy", "", "torch"])
def test_an_unknown_name_is_refused_beside_the_known_ones(name):
    with pytest.raises(
        DriverError, match=f"no driver '{name}' in this build.*auto, cpu, numpy, null"
    ):
        open_driver(name)
