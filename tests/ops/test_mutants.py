"""The faults of `make mutants` still have their places in the source."""

from __future__ import annotations

import pytest

from tests.mutants.faults import FAULTS
from tests.mutants.plant import ROOT, planted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_planted_and_has_its_tests(fault):
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    assert planted(source, fault) != source
    for name in fault.tests.split():
        assert (ROOT / f"tests/ops/test_{name}.py").is_file()


def test_faults_are_many_and_differ():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
    assert len({fault[1:4] for fault in FAULTS}) == len(FAULTS)
