"""One BLAS thread while batches are open, and the process's own count after the last one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from threadpoolctl import OpenBLASController, threadpool_info, threadpool_limits

from drivers import DriverError, NumpyDriver, ShapeError
from drivers.numpy.blas import BlasThreads

OWN = 2  # the process's own count in these tests, whatever the machine has


def blas_threads():
    """The thread counts of the process's BLAS libraries, as a set."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def set_process_count(count):
    """As the process's own code would, from a thread that is gone and owns nothing any more.

    threadpoolctl from 3.8 lets one living thread alone change a process-wide pool and ignores the
    others in silence.
    """
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    setter = threading.Thread(target=threadpool_limits, args=(count, "blas"))
    setter.start()
    setter.join()


@pytest.fixture(autouse=True)
def own_setting(monkeypatch):
    """A known process-wide count, and a count of open batches that no other test has touched."""
    monkeypatch.setattr("drivers.numpy.driver.BLAS_THREADS", BlasThreads())
    (before,) = blas_threads()
    set_process_count(OWN)
    assert blas_threads() == {OWN}
    yield
    set_process_count(before)


class Worker:
    """A thread that stays alive and does what it is told, one thing at a time."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(max_workers=1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.shutdown()

    def do(self, step):
        return self._pool.submit(step).result()


def test_a_batch_runs_on_one_thread_and_gives_the_rest_back():
    driver = NumpyDriver()
    driver.begin_batch()
    assert blas_threads() == {1}
    driver.end_batch()
    assert blas_threads() == {OWN}


def test_batches_one_after_the_other_each_cap_and_restore():
    driver = NumpyDriver()
    for _ in range(3):
        driver.begin_batch()
        assert blas_threads() == {1}
        driver.end_batch()
        assert blas_threads() == {OWN}


def test_only_the_last_of_nested_batches_restores():
    first, second = NumpyDriver(), NumpyDriver().new_for_clone()
    first.begin_batch()
    second.begin_batch()
    first.end_batch()
    assert blas_threads() == {1}
    second.end_batch()
    assert blas_threads() == {OWN}


def test_a_batch_of_another_thread_is_capped_after_one_of_this_thread():
    here, there = NumpyDriver(), NumpyDriver().new_for_clone()
    here.begin_batch()
    here.end_batch()
    with Worker() as worker:
        worker.do(there.begin_batch)
        assert blas_threads() == {1}
        worker.do(there.end_batch)
    assert blas_threads() == {OWN}


def test_batches_of_two_living_threads_are_each_capped():
    first, second = NumpyDriver(), NumpyDriver()
    with Worker() as one, Worker() as other:
        for worker, driver in ((one, first), (other, second), (one, first)):
            worker.do(driver.begin_batch)
            assert blas_threads() == {1}
            worker.do(driver.end_batch)
            assert blas_threads() == {OWN}


def test_the_last_batch_restores_from_whichever_thread_it_ends_in():
    first, second = NumpyDriver(), NumpyDriver()
    with Worker() as one, Worker() as other:
        one.do(first.begin_batch)
        other.do(second.begin_batch)
        one.do(first.end_batch)
        assert blas_threads() == {1}
        other.do(second.end_batch)
        assert blas_threads() == {OWN}


def test_concurrent_batches_of_clones_restore_once_all_are_done():
    clones = [NumpyDriver().new_for_clone() for _ in range(4)]
    together = threading.Barrier(len(clones))
    seen = []

    def work(driver):
        together.wait()
        for _ in range(10):
            driver.begin_batch()
            seen.append(blas_threads())
            driver.end_batch()

    threads = [threading.Thread(target=work, args=(clone,)) for clone in clones]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40
    assert all(counts == {1} for counts in seen)
    assert blas_threads() == {OWN}


def test_a_batch_that_fails_gives_its_threads_back():
    driver = NumpyDriver()
    x = driver.alloc_zeros((2, 3))

    def failing_batch():
        driver.begin_batch()
        try:
            driver.gemm(x, x)
        finally:
            driver.end_batch()

    for _ in range(2):
        with pytest.raises(ShapeError, match="inner sizes differ"):
            failing_batch()
        assert blas_threads() == {OWN}


def test_a_failure_inside_a_nested_batch_leaves_the_outer_one_capped():
    outer, inner = NumpyDriver(), NumpyDriver()
    outer.begin_batch()
    inner.begin_batch()
    try:
        with pytest.raises(ShapeError, match="at least 2 dimensions"):
            inner.l2_normalize(inner.alloc_zeros((3,)))
    finally:
        inner.end_batch()
    assert blas_threads() == {1}
    outer.end_batch()
    assert blas_threads() == {OWN}


def test_closing_a_batch_that_was_never_opened_breaks_no_later_batch():
    counter = BlasThreads()
    with suppress(DriverError):
        counter.release()
    counter.acquire()
    try:
        assert blas_threads() == {1}
    finally:
        counter.release()
    assert blas_threads() == {OWN}
