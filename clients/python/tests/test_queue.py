"""The client and its workers, against the real ``tenure`` command on a SQLite file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable, List

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tenure_queue import (  # noqa: E402
    GiveUp,
    Job,
    Later,
    NoResult,
    PipeClosed,
    Queue,
    QueueError,
    Ref,
    StillGoing,
    Text,
    Worker,
)

BINARY = os.environ.get("TENURE_BIN", "tenure")
# Longer than a disk that is busy with something else may take.
os.environ["TENURE_WORKER_OWNERSHIP_TTL_SECS"] = "6"
PATIENCE = 60.0


class Site(unittest.TestCase):
    """A store in a temporary directory, with one queue."""

    def setUp(self) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.store = f"sqlite:{self.dir.name}/q.db"
        self.run_tenure("create", "q", "--claim-timeout", "6s", "--retry-delay", "50ms", "--retry-delay-max", "50ms")
        self.queue = Queue("q", store=self.store, cluster="c", binary=BINARY)
        self.addCleanup(self.queue.close)

    def run_tenure(self, *args: str) -> str:
        command = [BINARY, "--store", self.store, "--cluster", "c", "queue", *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def work(self, handler: Callable[[Any, Job], Any], **options: Any) -> Worker:
        worker = Worker("q", store=self.store, cluster="c", binary=BINARY, **options)
        worker.handler(handler)
        worker.start()
        self.addCleanup(worker.stop)
        return worker


class Submitting(Site):
    def test_what_is_submitted_can_be_read_listed_counted_and_cancelled(self) -> None:
        task = self.queue.submit({"a": 1}, meta={"user": "42"}, priority=9, attempt_timeout=5, max_attempts=2)
        self.assertTrue(task.created)
        read = self.queue.get(task.id)
        self.assertEqual((read.payload, read.state, read.meta), ({"a": 1}, "ready", {"user": "42"}))
        self.assertEqual((read.record["priority"], read.record["attempt_timeout_ms"]), (9, 5000))
        self.queue.submit("other")
        found = [t.id for t in self.queue.list(states=["ready"], meta={"user": "42"})]
        self.assertEqual(found, [task.id])
        self.assertEqual(self.queue.stats().ready, 2)
        self.assertEqual(self.queue.cancel(task.id), "cancelled")
        self.queue.retry(task.id)
        self.assertEqual(self.queue.get(task.id).state, "ready")

    def test_a_key_makes_a_second_submission_the_same_task(self) -> None:
        first = self.queue.submit(1, key="k")
        again = self.queue.submit(1, key="k")
        other = self.queue.submit(2, key="k")
        self.assertEqual((again.id, again.created, again.differs), (first.id, False, False))
        self.assertEqual((other.id, other.created, other.differs), (first.id, False, True))

    def test_many_are_submitted_at_once_and_listed_page_by_page(self) -> None:
        tasks = self.queue.submit_many({"payload": n, "key": f"n-{n}"} for n in range(620))
        self.assertEqual(len({task.id for task in tasks}), 620)
        self.assertEqual(sorted(t.payload for t in self.queue.list()), list(range(620)))

    def test_errors_say_what_is_wrong(self) -> None:
        with self.assertRaisesRegex(QueueError, "priority"):
            self.queue.submit(1, priority=12)
        with self.assertRaisesRegex(QueueError, "bytes"):
            self.queue.submit("x" * 100_000)
        with self.assertRaises(QueueError) as caught:
            self.queue.get("nothing")
        self.assertEqual(caught.exception.kind, "no_task")
        with self.assertRaisesRegex(PipeClosed, "no queue"):
            Queue("other", store=self.store, cluster="c", binary=BINARY)
        with self.assertRaisesRegex(PipeClosed, "not found"):
            Queue("q", binary="/nowhere/tenure")
        with self.assertRaises(StillGoing):
            self.queue.submit(1).wait(timeout=0.2)
        with self.assertRaises(TypeError):
            self.queue.submit_many([{"payload": 1, "colour": "blue"}])

    def test_a_process_that_dies_is_told_to_who_waits(self) -> None:
        waiting = self.queue._pipe.ask("wait", task=self.queue.submit(1).id, timeout_ms=60_000)
        os.kill(self.queue._pipe.pid, signal.SIGKILL)
        with self.assertRaises(PipeClosed):
            waiting.result(PATIENCE)
        with self.assertRaises(PipeClosed):
            self.queue.submit(2)


class Working(Site):
    def test_results_come_back_as_they_were_returned(self) -> None:
        self.work(lambda payload, job: payload, concurrency=4)
        for value in [None, 7, "text", [1, {"a": None}], Text("plain"), b"\x00\xff", Ref("s3://b/k")]:
            back = self.queue.submit(value).result(PATIENCE)
            self.assertEqual((back, isinstance(back, (Text, Ref))), (value, isinstance(value, (Text, Ref))))

    def test_tasks_are_handled_at_the_same_time_by_one_process(self) -> None:
        together = threading.Barrier(4)
        self.work(lambda payload, job: together.wait(PATIENCE), concurrency=4)
        tasks = self.queue.submit_many({"payload": n} for n in range(4))
        self.assertEqual(sorted(task.result(PATIENCE) for task in tasks), [0, 1, 2, 3])

    def test_failures_are_tried_again_and_told(self) -> None:
        def handle(payload: Any, job: Job) -> Any:
            if payload == "flaky" and job.attempt == 1:
                raise RuntimeError("not yet")
            if payload == "hopeless":
                raise GiveUp("no such user")
            if payload == "broken":
                raise KeyError("x")
            if payload == "later" and not marks:
                marks.append(1)
                raise Later(0.05, "a moment")
            return object() if payload == "odd" else "fine"

        marks: List[int] = []
        self.work(handle)
        self.assertEqual(self.queue.submit("flaky").result(PATIENCE), "fine")
        self.assertEqual(self.queue.submit("later").result(PATIENCE), "fine")
        hopeless = self.queue.submit("hopeless").wait(PATIENCE)
        self.assertEqual((hopeless.state, hopeless.attempts), ("dead", 1))
        with self.assertRaisesRegex(NoResult, "no such user"):
            self.queue.submit("hopeless").result(PATIENCE)
        broken = self.queue.submit("broken", max_attempts=2).wait(PATIENCE)
        self.assertEqual((broken.state, broken.attempts), ("dead", 2))
        self.assertIn("KeyError: 'x'", broken.reason or "")
        odd = self.queue.submit("odd").wait(PATIENCE)
        self.assertIn("cannot be written as JSON", odd.reason or "")

    def test_handlers_are_chosen_by_kind(self) -> None:
        worker = Worker("q", store=self.store, cluster="c", binary=BINARY)

        @worker.handler("double")
        def double(payload: int, job: Job) -> int:
            return payload * 2

        @worker.handler
        def rest(payload: Any, job: Job) -> str:
            return "rest"

        worker.start()
        self.addCleanup(worker.stop)
        self.assertEqual(self.queue.submit(4, meta={"kind": "double"}).result(PATIENCE), 8)
        self.assertEqual(self.queue.submit(4).result(PATIENCE), "rest")
        with self.assertRaises(TypeError):
            Worker("q").start()

    def test_cancellation_and_timeouts_reach_the_handler(self) -> None:
        begun, stopped = threading.Event(), threading.Event()

        def handle(payload: Any, job: Job) -> Any:
            job.report(50, "half way")
            begun.set()
            if job.cancelled.wait(PATIENCE):
                stopped.set()
            raise RuntimeError("stopped")

        self.work(handle)
        task = self.queue.submit(1)
        self.assertTrue(begun.wait(PATIENCE))
        self.queue.cancel(task.id)
        self.assertTrue(stopped.wait(PATIENCE))
        self.assertEqual(task.wait(PATIENCE).state, "cancelled")
        stopped.clear()
        late = self.queue.submit(1, attempt_timeout=0.3, max_attempts=1).wait(PATIENCE)
        self.assertTrue(stopped.wait(PATIENCE))
        self.assertIn("longer than", late.reason or "")

    def test_a_stop_lets_what_runs_finish_and_claims_nothing_more(self) -> None:
        begun = threading.Event()

        def handle(payload: Any, job: Job) -> Any:
            begun.set()
            time.sleep(0.5)
            return "finished"

        worker = self.work(handle, concurrency=1)
        first = self.queue.submit(1)
        self.assertTrue(begun.wait(PATIENCE))
        worker.stop()
        self.assertEqual(self.queue.get(first.id).result, "finished")
        second = self.queue.submit(2)
        self.assertEqual(self.queue.get(second.id).state, "ready")


PROGRAM = """
import os, sys, time
sys.path.insert(0, {package!r})
from tenure_queue import Worker
worker = Worker("q", store={store!r}, cluster="c", binary={binary!r}, concurrency=2)

@worker.handler
def handle(payload, job):
    with open({marks!r}, "a") as marks:
        marks.write(f"{{job.id}} {{os.getpid()}}\\n")
    time.sleep(600 if payload == "long" else 0)
    return "done"

worker.run()
"""


class Processes(Site):
    def start(self) -> subprocess.Popen[str]:
        self.marks = f"{self.dir.name}/marks"
        program = textwrap.dedent(PROGRAM).format(
            package=str(Path(__file__).resolve().parent.parent),
            store=self.store,
            binary=BINARY,
            marks=self.marks,
        )
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)

        def end() -> None:
            process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def until(self, come: Callable[[], bool]) -> None:
        limit = time.monotonic() + PATIENCE
        while not come():
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.02)

    def test_the_tasks_of_a_killed_process_go_back_at_once(self) -> None:
        process = self.start()
        task = self.queue.submit("long", claim_timeout=60)
        self.until(lambda: self.queue.get(task.id).state == "running")
        self.until(lambda: os.path.exists(self.marks))
        process.kill()
        # Long before its lease has run out.
        begun = time.monotonic()
        self.until(lambda: self.queue.get(task.id).state == "ready")
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(self.queue.get(task.id).attempts, 0)

    def test_a_signal_ends_a_worker_in_good_order(self) -> None:
        process = self.start()
        self.assertEqual(self.queue.submit("short").result(PATIENCE), "done")
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, said)

    def test_a_worker_whose_queue_is_missing_says_so(self) -> None:
        worker = Worker("other", store=self.store, cluster="c", binary=BINARY)
        worker.handler(lambda payload, job: None)
        with self.assertRaisesRegex(PipeClosed, "no queue"):
            worker.start()


if __name__ == "__main__":
    unittest.main()
