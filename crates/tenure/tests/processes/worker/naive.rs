//! A lease as it is often written: a row with a time in it, and an owner that goes on until it is told otherwise.
//!
//! It renews in time, counts from before the write, and never takes a row that has not run out. All that it lacks is
//! a look at the clock before the work. The judge must catch it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use tenure_judge::LogEvent;

use super::record::{Record, Subject};
use super::{BEAT, KEYSPACE, Work, now};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS lease
    (shard TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT";

/// Takes the row, or keeps it: a change of owner raises the epoch.
const TAKE: &str = "INSERT INTO lease VALUES (?1, ?2, ?3, 1) ON CONFLICT DO UPDATE SET
        epoch = epoch + (owner <> excluded.owner), owner = excluded.owner, expires = excluded.expires
    WHERE owner = excluded.owner OR expires < ?4
    RETURNING epoch";

type Held = Mutex<BTreeMap<String, Subject>>;

/// Leases and works until it is killed.
pub(crate) fn serve(work: &Work) -> i32 {
    let (record, held) = (Record::open(work), Held::default());
    thread::scope(|scope| {
        scope.spawn(|| beat(&record, &held));
        scope.spawn(|| lease(work, &record, &held));
    });
    0
}

fn beat(record: &Record, held: &Held) {
    loop {
        for subject in held.lock().expect("no panic").values() {
            record.line(now(), LogEvent::Beat, subject);
        }
        thread::sleep(BEAT);
    }
}

fn lease(work: &Work, record: &Record, held: &Held) {
    let store = Connection::open(work.site.join("naive.db")).expect("the store");
    store.busy_timeout(Duration::from_secs(5)).expect("a wait");
    let _ = store.pragma_update(None, "journal_mode", "wal");
    store.execute(TABLE, []).expect("a table");
    // A process is an owner of its own: one that was killed is waited for.
    let owner = format!("{}/{}", work.node, std::process::id());
    loop {
        for number in 0..work.shards {
            let shard = format!("{KEYSPACE}/{number}");
            let taken = take(&store, &shard, &owner, work.ttl);
            let mut held = held.lock().expect("no panic");
            match taken {
                Some(epoch) if held.get(&shard).is_none_or(|known| known.epoch != epoch) => {
                    let subject = Subject {
                        shard: shard.clone(),
                        epoch,
                        session: owner.clone(),
                    };
                    record.line(now(), LogEvent::Start, &subject);
                    held.insert(shard, subject);
                }
                Some(_) => {}
                None => drop(held.remove(&shard)),
            }
        }
        thread::sleep(work.ttl / 6);
    }
}

/// The epoch at which the shard is this owner's, if it is.
fn take(store: &Connection, shard: &str, owner: &str, ttl: Duration) -> Option<u64> {
    let now = now();
    let expires = now + ttl.as_nanos() as u64;
    let row = params![shard, owner, expires.cast_signed(), now.cast_signed()];
    let taken = store
        .query_row(TAKE, row, |row| row.get::<_, i64>(0))
        .optional();
    taken.expect("a store that answers").map(i64::cast_unsigned)
}
