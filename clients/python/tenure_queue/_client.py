"""Submitting tasks, waiting for them, and looking at them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

from ._errors import NoResult, error_of
from ._pipe import Pipe, decode, encode

FINAL = ("done", "dead", "cancelled")
#: How many tasks are submitted with one request.
BATCH = 500


@dataclass(frozen=True)
class Task:
    """A task as it stood when it was read."""

    id: str
    state: str
    attempts: int
    payload: Any
    result: Any
    reason: Optional[str]
    meta: Mapping[str, str]
    history: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any] = field(repr=False)

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.state in FINAL

    @staticmethod
    def of(record: Mapping[str, Any]) -> "Task":
        """A task from its record in the store."""
        state = record["state"]
        return Task(
            id=record["id"],
            state=state["status"],
            attempts=record["attempts"],
            payload=decode(record["payload"]),
            result=decode(state.get("result")),
            reason=state.get("reason"),
            meta=record.get("metadata", {}),
            history=record["history"],
            record=record,
        )


@dataclass(frozen=True)
class Page:
    """Some of the tasks that were asked for. ``next`` is where to go on; none at the end."""

    tasks: Sequence[Task]
    corrupt: Sequence[Tuple[str, str]]
    next: Optional[str]


@dataclass(frozen=True)
class Stats:
    """How many tasks there are in each state."""

    ready: int
    delayed: int
    running: int
    done: int
    dead: int
    paused: bool
    shards: int


@dataclass(frozen=True)
class Submitted:
    """A task that was submitted, or one that was there already with the same key."""

    id: str
    created: bool
    differs: bool
    queue: "Queue" = field(repr=False)

    def wait(self, timeout: float) -> Task:
        """Waits until the task has ended."""
        return self.queue.wait(self.id, timeout)

    def result(self, timeout: float) -> Any:
        """Waits for the task's result."""
        task = self.wait(timeout)
        if task.state == "done":
            return task.result
        reason = task.reason or f"it was {task.state}"
        raise NoResult("no_result", f"task {self.id!r} ended without a result: {reason}")


def _spec(payload: Any, options: Mapping[str, Any]) -> Dict[str, Any]:
    spec = encode(payload)
    seconds = {
        "delay": "delay_ms",
        "attempt_timeout": "attempt_timeout_ms",
        "claim_timeout": "claim_timeout_ms",
        "retry_delay": "retry_delay_ms",
        "retry_delay_max": "retry_delay_max_ms",
    }
    for name, value in options.items():
        if value is None:
            continue
        if name in seconds:
            spec[seconds[name]] = round(value * 1000)
        elif name == "at":
            spec["at"] = _moment(value)
        elif name in ("key", "priority", "max_attempts", "meta"):
            spec[name] = value
        else:
            raise TypeError(f"a task has no {name!r}")
    return spec


def _moment(value: datetime) -> str:
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone; give it one")
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


class Queue:
    """A queue, through a ``tenure queue pipe`` process of its own. Safe to use from many threads.

    Where ``store`` or ``cluster`` is not given, the environment and the configuration file of ``tenure`` say it.
    """

    def __init__(
        self,
        name: str,
        *,
        store: Optional[str] = None,
        cluster: Optional[str] = None,
        binary: Optional[str] = None,
    ) -> None:
        self.name = name
        self._pipe = Pipe(name, store=store, cluster=cluster, binary=binary)

    def __enter__(self) -> "Queue":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process behind it."""
        self._pipe.close()

    def submit(
        self,
        payload: Any = None,
        *,
        key: Optional[str] = None,
        priority: Optional[int] = None,
        delay: Optional[float] = None,
        at: Optional[datetime] = None,
        attempt_timeout: Optional[float] = None,
        claim_timeout: Optional[float] = None,
        max_attempts: Optional[int] = None,
        retry_delay: Optional[float] = None,
        retry_delay_max: Optional[float] = None,
        meta: Optional[Mapping[str, str]] = None,
    ) -> Submitted:
        """Submits a task. Times are in seconds; a payload is JSON, or one of ``Text``, ``bytes`` and ``Ref``."""
        spec = _spec(
            payload,
            {
                "key": key,
                "priority": priority,
                "delay": delay,
                "at": at,
                "attempt_timeout": attempt_timeout,
                "claim_timeout": claim_timeout,
                "max_attempts": max_attempts,
                "retry_delay": retry_delay,
                "retry_delay_max": retry_delay_max,
                "meta": meta,
            },
        )
        (answer,) = self._pipe.ask("submit", tasks=[spec]).result()
        return self._submitted(answer)

    def submit_many(self, tasks: Iterable[Mapping[str, Any]]) -> List[Submitted]:
        """Submits tasks, each a mapping with ``payload`` and whatever else ``submit`` takes, in few calls to the store.

        The first that cannot be submitted raises; those before it are submitted.
        """
        batch: List[Dict[str, Any]] = []
        submitted: List[Submitted] = []

        def flush() -> None:
            if batch:
                answers = self._pipe.ask("submit", tasks=batch).result()
                submitted.extend(self._submitted(answer) for answer in answers)
                batch.clear()

        for task in tasks:
            options = dict(task)
            batch.append(_spec(options.pop("payload", None), options))
            if len(batch) >= BATCH:
                flush()
        flush()
        return submitted

    def _submitted(self, answer: Mapping[str, Any]) -> Submitted:
        if "error" in answer:
            raise error_of(answer["error"])
        return Submitted(answer["id"], answer["created"], answer["differs"], self)

    def get(self, task: str) -> Task:
        """Reads a task."""
        return Task.of(self._pipe.ask("get", task=task).result())

    def wait(self, task: str, timeout: float) -> Task:
        """Waits until a task has ended, for so many seconds at most."""
        asked = self._pipe.ask("wait", task=task, timeout_ms=round(timeout * 1000))
        return Task.of(asked.result())

    def page(
        self,
        *,
        states: Sequence[str] = (),
        meta: Optional[Mapping[str, str]] = None,
        since: Optional[datetime] = None,
        before: Optional[datetime] = None,
        limit: int = 100,
        start: Optional[str] = None,
    ) -> Page:
        """Some tasks, from where the last page ended."""
        fields: Dict[str, Any] = {"states": list(states), "meta": dict(meta or {}), "limit": limit}
        if since is not None:
            fields["since"] = _moment(since)
        if before is not None:
            fields["before"] = _moment(before)
        if start is not None:
            fields["from"] = start
        page = self._pipe.ask("list", **fields).result()
        corrupt = [(key, why) for key, why in page["corrupt"]]
        return Page([Task.of(record) for record in page["tasks"]], corrupt, page["next"])

    def list(
        self,
        *,
        states: Sequence[str] = (),
        meta: Optional[Mapping[str, str]] = None,
        since: Optional[datetime] = None,
        before: Optional[datetime] = None,
    ) -> Iterator[Task]:
        """All tasks that fit, a page at a time. What cannot be read is left out; ``page`` names it."""
        start: Optional[str] = None
        while True:
            page = self.page(states=states, meta=meta, since=since, before=before, start=start)
            yield from page.tasks
            start = page.next
            if start is None:
                return

    def cancel(self, task: str) -> str:
        """Calls a task off; gives the state that it is in now. A running handler is told."""
        return str(self._pipe.ask("cancel", task=task).result()["state"])

    def retry(self, task: str) -> None:
        """Lets a task that is dead or cancelled be tried again from the beginning."""
        self._pipe.ask("retry", task=task).result()

    def stats(self) -> Stats:
        """Counts the tasks in each state."""
        stats = self._pipe.ask("stats").result()
        return Stats(**{name: stats[name] for name in Stats.__dataclass_fields__})
