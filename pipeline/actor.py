"""The actors of the job's three stages. EmbedActor owns one Driver, its weights and tokenizer.

All three are actors, not tasks: Ray ends idle task workers beyond the number of CPUs, and a new
process a shard would cost more than reading or writing it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from drivers import DriverPlan
from drivers.errors import DeviceLost
from pipeline.config import RunConfig
from pipeline.embedder import Embedder, open_configured
from pipeline.errors import RayvecError
from pipeline.model_identity import ModelIdentity, identify
from pipeline.shard_work import Payload, ShardEmbedder, ShardReader, ShardTask, ShardWriter

logger = logging.getLogger(__name__)

DEVICE_LOST_EXIT = 75  # of the process; EX_TEMPFAIL of sysexits.h: another attempt may succeed


@dataclass(frozen=True)
class WorkerPlan:
    """What every worker of a run must be: decided once, where the run was started."""

    config: RunConfig
    driver: DriverPlan
    dtype: str
    identity: ModelIdentity


class ReadActor:
    """Reads one shard a call: a task's row in, a payload's row out."""

    def __init__(self, config: RunConfig) -> None:
        self._read = ShardReader(config)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """One task in, one payload out."""
        return self._read(ShardTask.from_json(row["task"])).to_row()


class WriteActor:
    """Writes one shard a call: a payload's row in, one without its table out."""

    def __init__(self, writer: ShardWriter) -> None:
        self._write = writer

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """One payload in, one out."""
        return self._write(Payload.from_row(row)).to_row()


class EmbedActor:
    """Embeds one shard a call: a table of one payload row in, one out."""

    def __init__(self, plan: WorkerPlan) -> None:
        """Raises RayvecError where this node's model is not the one the run was planned for."""
        embedder: Embedder = open_configured(
            plan.config, driver=plan.driver.new_for_clone(), dtype=plan.dtype
        )
        found = identify(embedder.model.checkpoint)
        if found != plan.identity:
            raise RayvecError(
                f"{embedder.model.checkpoint.root}: the model on this node has hash "
                f"{found.model_sha256[:12]}, the run was planned with "
                f"{plan.identity.model_sha256[:12]}"
            )
        self._embed = ShardEmbedder(plan.config, embedder)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """One payload row in, one out.

        Where the device is lost the process ends: Ray starts another, which gets the shard again,
        as often as `failure.max_shard_retries` says.
        """
        try:
            return self._embed(Payload.from_row(row)).to_row()
        except DeviceLost as error:
            logger.critical("this worker ends: %s", error)
            os._exit(DEVICE_LOST_EXIT)
