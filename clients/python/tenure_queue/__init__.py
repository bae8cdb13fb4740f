"""Client and workers of Tenure's task queue, through the ``tenure`` command."""

from ._client import Page, Queue, Stats, Submitted, Task
from ._errors import (
    GiveUp,
    Later,
    NoResult,
    PipeClosed,
    QueueError,
    StillGoing,
)
from ._pipe import Bytes, Ref, Text
from ._worker import Job, Worker

__all__ = [
    "Bytes",
    "GiveUp",
    "Job",
    "Later",
    "NoResult",
    "Page",
    "PipeClosed",
    "Queue",
    "QueueError",
    "Ref",
    "Stats",
    "StillGoing",
    "Submitted",
    "Task",
    "Text",
    "Worker",
]
