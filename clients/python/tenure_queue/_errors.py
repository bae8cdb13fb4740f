"""What can go wrong, by what the caller may do next."""

from __future__ import annotations

from datetime import datetime
from typing import Optional


class QueueError(Exception):
    """Something was not done. ``kind`` is a word for programs, as in docs/queue-pipe.md."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class PipeClosed(QueueError):
    """The ``tenure`` process has ended, or was never there."""

    def __init__(self, message: str) -> None:
        super().__init__("closed", message)


class StillGoing(QueueError):
    """What was waited for did not come in time."""


class NoResult(QueueError):
    """The task ended without a result: it is a dead letter, or was cancelled."""


class GiveUp(Exception):
    """Raised by a handler: no other attempt would help. The task becomes a dead letter at once."""


class Later(Exception):
    """Raised by a handler: the task is to be tried again at another time. That is no failure."""

    def __init__(
        self,
        seconds: float = 30.0,
        note: Optional[str] = None,
        at: Optional[datetime] = None,
    ) -> None:
        super().__init__(note or f"in {seconds} s")
        self.seconds = seconds
        self.note = note
        self.at = at


def error_of(value: object) -> QueueError:
    """The exception for what the pipe says of a failure."""
    kind, message = "unknown", str(value)
    if isinstance(value, dict):
        kind = str(value.get("kind", kind))
        message = str(value.get("message", message))
    if kind == "timeout":
        return StillGoing(kind, message)
    return QueueError(kind, message)
