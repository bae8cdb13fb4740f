#!/usr/bin/env python3
"""Says whether every task was done, from what the tasks' programs left behind and what the queue says of itself.

usage: judge.py IDS TASKS EFFECTS
  IDS      the ids that were submitted, one on each line
  TASKS    `tenure task list QUEUE --all --json`
  EFFECTS  lines `ID ATTEMPT CLAIM`, appended by the programs

Shares no code with what it judges. Prints one JSON object; exits with 1 if anything speaks against the queue.
"""

import collections
import json
import sys

#: How an attempt may have ended that left an effect and did not finish its task.
CUT_SHORT = {"expired", "released", "rescheduled"}


def main(ids_file, tasks_file, effects_file):
    with open(ids_file) as lines:
        ids = [line.strip() for line in lines if line.strip()]
    with open(tasks_file) as lines:
        tasks = {task["id"]: task for task in map(json.loads, lines)}
    effects = collections.defaultdict(list)
    with open(effects_file) as lines:
        for line in lines:
            task, attempt, claim = line.split()
            effects[task].append((int(attempt), claim))

    against = []
    claims = duplicates = expired = 0
    if len(set(ids)) != len(ids):
        against.append("an id was given twice")
    for task in sorted(set(tasks) - set(ids)):
        against.append(f"{task}: nobody submitted it")
    for task in sorted(set(effects) - set(ids)):
        against.append(f"{task}: an effect of a task that nobody submitted")
    for task in ids:
        record = tasks.get(task)
        if record is None:
            against.append(f"{task}: lost")
            continue
        left = effects.get(task, [])
        history = record["history"]
        claimed = {e["claim"]: e["attempt"] for e in history if e["event"] == "claimed"}
        cut = {e["claim"] for e in history if e["event"] in CUT_SHORT}
        finished = [e["claim"] for e in history if e["event"] == "finished"]
        claims += len(claimed)
        expired += sum(e["event"] == "expired" for e in history)
        duplicates += max(0, len(left) - 1)
        if record.get("dropped_events", 0):
            against.append(f"{task}: its history is not whole")
            continue
        if record["state"]["status"] != "done" or len(finished) != 1:
            against.append(f"{task}: is {record['state']['status']}, finished {len(finished)} times")
            continue
        if record["state"]["claim"] != finished[0]:
            against.append(f"{task}: finished by another claim than its history says")
        if finished[0] not in [claim for _, claim in left]:
            against.append(f"{task}: finished without an effect")
        for claim, count in collections.Counter(claim for _, claim in left).items():
            if count > 1:
                against.append(f"{task}: {count} effects of one attempt")
            if claim not in claimed:
                against.append(f"{task}: an effect of claim {claim}, which is not in its history")
            elif claim != finished[0] and claim not in cut:
                against.append(f"{task}: an effect of claim {claim}, which nothing has cut short")
        for attempt, claim in left:
            if claimed.get(claim) not in (None, attempt):
                against.append(f"{task}: claim {claim} was attempt {claimed[claim]}, not {attempt}")

    print(
        json.dumps(
            {
                "tasks": len(ids),
                "effects": sum(map(len, effects.values())),
                "claims": claims,
                "expired": expired,
                "duplicates": duplicates,
                "against": against[:20],
                "against_count": len(against),
            }
        )
    )
    return 1 if against else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]) if len(sys.argv) == 4 else __doc__)
