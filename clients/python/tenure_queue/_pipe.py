"""A ``tenure queue pipe`` process, and lines of JSON to and from it."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import threading
from concurrent.futures import Future
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from ._errors import PipeClosed, error_of

PROTOCOL = 1


class Text(str):
    """A payload or result that is text, and not JSON."""


class Bytes(bytes):
    """A payload or result that is bytes."""


class Ref(str):
    """Where a payload or result stands instead: the queue never follows it."""


def encode(value: Any) -> Dict[str, Any]:
    """A payload or result, as the pipe wants it."""
    if isinstance(value, Ref):
        return {"ref": str(value)}
    if isinstance(value, Text):
        return {"text": str(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(bytes(value)).decode("ascii")}
    return {"payload": value}


def decode(value: Any) -> Any:
    """A payload or result, as the pipe has it."""
    if isinstance(value, dict) and len(value) == 1:
        (form, inner), = value.items()
        if form == "json":
            return inner
        if form == "text":
            return Text(inner)
        if form == "base64":
            return Bytes(base64.b64decode(inner))
        if form == "ref":
            return Ref(inner)
    return value


def find_binary(binary: Optional[str]) -> str:
    """The ``tenure`` command."""
    named = binary or os.environ.get("TENURE_BIN") or "tenure"
    found = shutil.which(named)
    if found is None:
        raise PipeClosed(
            f"the command {named!r} is not found; put it in PATH, or name it by TENURE_BIN"
        )
    return found


class Pipe:
    """A process that serves this one. Safe to use from many threads."""

    def __init__(
        self,
        queue: str,
        *,
        store: Optional[str] = None,
        cluster: Optional[str] = None,
        binary: Optional[str] = None,
        options: Sequence[str] = (),
        env: Optional[Mapping[str, str]] = None,
        on_event: Optional[Callable[[Dict[str, Any]], None]] = None,
    ) -> None:
        command: List[str] = [find_binary(binary)]
        if store is not None:
            command += ["--store", store]
        if cluster is not None:
            command += ["--cluster", cluster]
        command += ["queue", "pipe", *options, "--", queue]
        self._on_event = on_event
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: Dict[int, "Future[Any]"] = {}
        self._closed: Optional[str] = None
        self._said: List[str] = []
        self._hello: "Future[Dict[str, Any]]" = Future()
        # A session of its own: Ctrl-C is for this process, which then decides.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        self._hears = threading.Thread(target=self._hear, daemon=True)
        self._reads = threading.Thread(target=self._read, daemon=True)
        self._hears.start()
        self._reads.start()
        try:
            hello = self._hello.result()
        except PipeClosed:
            self.close()
            raise
        if hello.get("protocol") != PROTOCOL:
            self.close()
            raise PipeClosed(
                f"{command[0]} speaks protocol {hello.get('protocol')}, and this client {PROTOCOL}; "
                "use versions that belong together"
            )

    @property
    def pid(self) -> int:
        """The process that serves this one."""
        return self._process.pid

    def ask(self, op: str, **fields: Any) -> "Future[Any]":
        """Sends a request; the answer comes later."""
        answer: "Future[Any]" = Future()
        number = next(self._numbers)
        with self._lock:
            if self._closed is not None:
                raise PipeClosed(self._closed)
            self._waiting[number] = answer
        self.tell(op, id=number, **fields)
        return answer

    def tell(self, op: str, **fields: Any) -> None:
        """Sends a line that has no answer."""
        line = json.dumps({"op": op, **fields}, allow_nan=False) + "\n"
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock:
            if self._closed is not None:
                raise PipeClosed(self._closed)
            try:
                stdin.write(line.encode("utf-8"))
                stdin.flush()
            except (OSError, ValueError) as error:
                raise PipeClosed(f"the tenure process is gone: {error}") from error

    def close(self, timeout: Union[float, None] = 30.0) -> None:
        """Ends the process, and waits for that."""
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock:
            self._closed = self._closed or "this client is closed"
            try:
                stdin.close()
            except OSError:
                pass
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reads.join()
        self._hears.join()

    def _hear(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        with stderr:
            for line in stderr:
                text = line.decode("utf-8", "replace").rstrip()
                self._said = (self._said + [text])[-20:]

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                try:
                    self._take(json.loads(line))
                except ValueError:
                    self._said.append(f"not understood: {line!r}")
        self._process.wait()
        self._hears.join()
        said = "; ".join(line.replace("error: ", "", 1) for line in self._said)
        why = said or f"the tenure process has ended with code {self._process.returncode}"
        with self._lock:
            self._closed = self._closed or why
            waiting, self._waiting = self._waiting, {}
        if not self._hello.done():
            self._hello.set_exception(PipeClosed(why))
        for answer in waiting.values():
            answer.set_exception(PipeClosed(why))
        if self._on_event is not None:
            self._on_event({"event": "closed", "reason": why})

    def _take(self, message: Dict[str, Any]) -> None:
        event = message.get("event")
        if event == "hello":
            self._hello.set_result(message)
        elif event is not None:
            if self._on_event is not None:
                self._on_event(message)
        else:
            with self._lock:
                answer = self._waiting.pop(message.get("id", 0), None)
            if answer is None:
                return
            if "error" in message:
                answer.set_exception(error_of(message["error"]))
            else:
                answer.set_result(message.get("ok"))
