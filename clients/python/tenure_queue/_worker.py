"""Working on tasks, in threads of one process."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Callable, Dict, List, Mapping, Optional, TypeVar, Union, overload

from ._errors import GiveUp, Later, PipeClosed
from ._pipe import Pipe, decode, encode

Handler = Callable[[Any, "Job"], Any]
H = TypeVar("H", bound=Handler)


class Job:
    """An attempt at a task."""

    def __init__(self, pipe: Pipe, event: Mapping[str, Any]) -> None:
        self._pipe = pipe
        #: What names this attempt: another attempt at the same task never has the same.
        self.claim: str = event["claim"]
        self.id: str = event["task"]
        #: Which attempt this is, counted from one.
        self.attempt: int = event["attempt"]
        self.payload: Any = decode(event["payload"])
        self.meta: Mapping[str, str] = event["meta"]
        left = event.get("time_left_ms")
        #: How many seconds the attempt had when it began, if it has a limit.
        self.time_left: Optional[float] = None if left is None else left / 1000
        #: Set when the attempt should stop. What it returns afterwards may be of no use.
        self.cancelled = threading.Event()

    def report(self, percent: Optional[float] = None, note: str = "") -> None:
        """Says how far the attempt is."""
        fields: Dict[str, Any] = {"claim": self.claim, "note": note}
        if percent is not None:
            fields["percent"] = percent
        self._pipe.tell("progress", **fields)


class Worker:
    """Works on the tasks of a queue.

    Handlers get the payload and a ``Job``; what they return is the result. ``concurrency``, ``stop_timeout`` and ``name``
    (``--node``) are as the flags of ``tenure worker``; ``leasing`` sets ``TENURE_WORKER_OWNERSHIP`` for the process.
    """

    def __init__(
        self,
        queue: str,
        *,
        store: Optional[str] = None,
        cluster: Optional[str] = None,
        concurrency: int = 4,
        stop_timeout: float = 30.0,
        name: Optional[str] = None,
        leasing: Optional[bool] = None,
        binary: Optional[str] = None,
    ) -> None:
        self.queue = queue
        self.concurrency = concurrency
        self.stop_timeout = stop_timeout
        self.name: Optional[str] = name
        self._handlers: Dict[Optional[str], Handler] = {}
        self._jobs: Dict[str, Job] = {}
        self._lock = threading.Lock()
        self._wake: Optional[int] = None
        self._stopping = False
        self._why: Optional[str] = None
        self._pool: Optional[ThreadPoolExecutor] = None
        self._pipe: Optional[Pipe] = None
        options: List[str] = []
        env: Optional[Dict[str, str]] = None
        if name is not None:
            options += ["--node", name]
        if leasing is not None:
            env = {**os.environ, "TENURE_WORKER_OWNERSHIP": "true" if leasing else "false"}
        self._open: Callable[[], Pipe] = lambda: Pipe(
            queue,
            store=store,
            cluster=cluster,
            binary=binary,
            options=options,
            env=env,
            on_event=self._event,
        )

    @overload
    def handler(self, kind: H) -> H: ...

    @overload
    def handler(self, kind: Optional[str] = None) -> Callable[[H], H]: ...

    def handler(self, kind: Union[H, str, None] = None) -> Union[H, Callable[[H], H]]:
        """Makes a function a handler: of all tasks, or of those whose metadata say this ``kind``."""
        if callable(kind):
            self._handlers[None] = kind
            return kind

        def mark(function: H) -> H:
            self._handlers[kind] = function
            return function

        return mark

    def start(self) -> None:
        """Starts working, in threads; returns when the worker has joined."""
        if not self._handlers:
            raise TypeError("a worker needs a handler; decorate a function with @worker.handler")
        self._pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="task")
        self._pipe = self._open()
        asked = self._pipe.ask(
            "work",
            concurrency=self.concurrency,
            stop_timeout_ms=round(self.stop_timeout * 1000),
        )
        try:
            self.name = asked.result()["worker"]
        except BaseException:
            self._pipe.close()
            raise

    def stop(self) -> None:
        """Stops in good order: nothing more is claimed, and what runs may finish within ``stop_timeout``."""
        pipe, pool = self._pipe, self._pool
        if pipe is None or pool is None:
            return
        self._stopping = True
        try:
            pipe.ask("stop").result()
        except PipeClosed:
            pass
        pipe.close()
        # A handler that does not stop has lost its task by now.
        pool.shutdown(wait=False)

    def run(self) -> None:
        """Works until SIGINT or SIGTERM, then stops in good order; a second one ends it at once.

        To be called from the main thread. Raises ``PipeClosed`` if the worker ended by itself.
        """
        asked: List[int] = []

        def ask(number: int, frame: Optional[FrameType]) -> None:
            if asked:
                raise KeyboardInterrupt
            asked.append(number)
            os.write(wake, b"s")

        # A pipe, because a handler of a signal must not touch a lock that the main thread may hold.
        woken, wake = os.pipe()
        self._wake = wake
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, ask) for number in signals]
        try:
            self.start()
            os.read(woken, 1)
            if self._why is not None and not asked:
                raise PipeClosed(self._why)
            self.stop()
        finally:
            if self._pipe is not None:
                self._pipe.close()
            for number, handler in zip(signals, before):
                signal.signal(number, handler)
            self._wake = None
            os.close(wake)
            os.close(woken)

    def _event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "task":
            pipe, pool = self._pipe, self._pool
            assert pipe is not None and pool is not None
            job = Job(pipe, event)
            with self._lock:
                self._jobs[job.claim] = job
            try:
                pool.submit(self._handle, job)
            except RuntimeError:
                pass  # It stops: the task goes back when the pipe ends.
        elif kind == "cancel":
            with self._lock:
                job_or_none = self._jobs.get(event["claim"])
            if job_or_none is not None:
                job_or_none.cancelled.set()
        elif kind == "closed":
            if not self._stopping:
                self._why = str(event.get("reason"))
            with self._lock:
                jobs = list(self._jobs.values())
            for job in jobs:
                job.cancelled.set()
            wake = self._wake
            if wake is not None:
                os.write(wake, b"c")

    def _handle(self, job: Job) -> None:
        try:
            self._say(job)
        except PipeClosed:
            pass  # The task goes to somebody else.
        finally:
            with self._lock:
                self._jobs.pop(job.claim, None)

    def _say(self, job: Job) -> None:
        pipe = self._pipe
        assert pipe is not None
        kind = job.meta.get("kind")
        handler = self._handlers.get(kind, self._handlers.get(None))
        if handler is None:
            why = f"this worker has no handler for kind {kind!r}"
            pipe.tell("fail", claim=job.claim, reason=why)
            return
        try:
            result = encode(handler(job.payload, job))
        except GiveUp as error:
            pipe.tell("fail", claim=job.claim, reason=str(error) or "given up", permanent=True)
        except Later as error:
            fields: Dict[str, Any] = {"in_ms": round(error.seconds * 1000)}
            if error.at is not None:
                fields = {"at": error.at.isoformat()}
            pipe.tell("reschedule", claim=job.claim, note=error.note, **fields)
        except PipeClosed:
            raise
        except BaseException as error:  # noqa: B036: whatever it is, it is the task's failure
            told = traceback.format_exception_only(type(error), error)[-1].strip()
            place = traceback.extract_tb(error.__traceback__)[-1:]
            where = "".join(f" ({frame.filename}:{frame.lineno})" for frame in place)
            pipe.tell("fail", claim=job.claim, reason=told + where)
        else:
            try:
                pipe.tell("done", claim=job.claim, **result)
            except (TypeError, ValueError) as error:
                why = f"the result cannot be written as JSON: {error}"
                pipe.tell("fail", claim=job.claim, reason=why, permanent=True)
