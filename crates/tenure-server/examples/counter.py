"""A counter per key, in memory, behind `tenure sidecar`: Python's standard library alone.

It hands its state over when a shard moves: `seal` writes it to a directory that all nodes share, `load` reads it there.
(What a crash takes is gone: an application that must not lose anything writes before it answers.)

    tenure --store sqlite:shop.db --cluster shop sidecar --listen :8001 --keyspace counters --shards 16 --data-dir n1 \
        --app http://127.0.0.1:9001 --hooks http://127.0.0.1:9001/hooks -- python3 counter.py 9001 state
    tenure --store sqlite:shop.db --cluster shop router --listen :8080 --keyspace counters --key-from path:1
    curl -X POST http://127.0.0.1:8080/apples
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, DIRECTORY = int(sys.argv[1]), sys.argv[2]
lock = threading.Lock()
shards = {}  # name -> (epoch, {key: count})


def path_of(shard):
    return os.path.join(DIRECTORY, shard.replace("/", "-") + ".json")


def load(shard, epoch):
    counts = {}
    if os.path.exists(path_of(shard)):
        with open(path_of(shard)) as file:
            counts = json.load(file)
    shards[shard] = (epoch, counts)
    return ""


def seal(shard, epoch):
    # Nothing is in flight now, and nothing comes before the next owner has loaded this.
    with open(path_of(shard) + ".new", "w") as file:
        json.dump(shards[shard][1], file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path_of(shard) + ".new", path_of(shard))
    return str(epoch)


def release(shard, epoch):
    if shard in shards and shards[shard][0] <= epoch:
        del shards[shard]
    return ""


HOOKS = {"/hooks/load": load, "/hooks/seal": seal, "/hooks/release": release}


class Counter(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        shard, epoch = self.headers["Tenure-Shard"], int(self.headers["Tenure-Epoch"])
        with lock:
            if self.path.startswith("/hooks/"):
                hook = HOOKS.get(self.path)
                return self.answer(200, hook(shard, epoch)) if hook else self.answer(404, "")
            counts, key = shards[shard][1], self.headers["Tenure-Key"]
            counts[key] = counts.get(key, 0) + 1
            self.answer(200, f"{counts[key]}\n")

    def do_GET(self):
        with lock:
            counts = shards[self.headers["Tenure-Shard"]][1]
            self.answer(200, f"{counts.get(self.headers['Tenure-Key'], 0)}\n")

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    os.makedirs(DIRECTORY, exist_ok=True)
    ThreadingHTTPServer(("127.0.0.1", PORT), Counter).serve_forever()
