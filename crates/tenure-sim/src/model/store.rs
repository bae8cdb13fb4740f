//! The store, and what passes between it and the processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::ids::{NodeName, Revision, Version};
use tenure_core::keys::Key;
use tenure_core::machine::{Event, Expect, Found, Reply, Request, StoreFailure, StoreListing};
use tenure_core::record::{NodeRecord, Record};

use super::canonical::base;
use super::reachability::Sight;
use super::state::{PendingEvent, Process, State};
use super::step_report::StepReport;
use crate::describe;
use crate::world::named;

/// The store: single keys, compare-and-swap, one count of writes.
#[derive(Clone, Debug)]
pub(crate) struct ModelStore {
    pub(crate) keys: BTreeMap<Key, Found>,
    pub(crate) revision: u64,
}

impl ModelStore {
    pub(crate) fn new() -> Self {
        Self {
            keys: BTreeMap::new(),
            revision: base::VERSIONS,
        }
    }

    pub(crate) fn is_at(&self, key: &Key, version: &Version) -> bool {
        self.keys
            .get(key)
            .is_some_and(|found| found.version == *version)
    }
}

impl State {
    /// A request reaches the store and takes effect.
    pub(crate) fn land(&mut self, at: usize, telling: &mut StepReport) {
        let sent = self.requests.remove(at);
        let heard = self.waiter(&sent).is_some();
        telling.line(|| {
            let late = if heard { "" } else { ", unheard" };
            format!(
                "store hears {} of n{}{late}",
                sent.op.0 - base::OPS,
                sent.seat
            )
        });
        let reply = self.apply(&sent.request, heard, telling);
        if !heard {
            return;
        }
        if let Some(process) = self.process(sent.seat) {
            let op = sent.op;
            process.post(Event::Reply { op, reply });
        }
    }

    fn apply(&mut self, request: &Request, heard: bool, telling: &mut StepReport) -> Reply {
        let store = &self.store;
        match request {
            Request::Get(key) => Reply::Got(store.keys.get(key).cloned()),
            Request::Revision => Reply::Revision(Revision(store.revision)),
            Request::List => Reply::Listed(StoreListing {
                entries: store
                    .keys
                    .iter()
                    .map(|(k, f)| (k.clone(), f.clone()))
                    .collect(),
                revision: Revision(store.revision),
                store: "model".to_owned(),
            }),
            Request::Put {
                key,
                expect,
                record,
            } => {
                let fits = match expect {
                    Expect::Absent => !store.keys.contains_key(key),
                    Expect::Version(version) => store.is_at(key, version),
                };
                if !fits {
                    return Reply::Lost;
                }
                if !heard {
                    telling.saw(Sight::LateWrite);
                }
                Reply::Won(self.put(key, record, telling))
            }
            Request::Delete { key, version } => {
                if !store.is_at(key, version) {
                    return Reply::Lost;
                }
                self.remove(key, telling);
                Reply::Won(version.clone())
            }
            Request::CreateLease { .. } | Request::KeepAlive(_) | Request::CheckLease(_) => {
                Reply::Failed(StoreFailure::Denied(
                    "this store has no leases of its own".to_owned(),
                ))
            }
        }
    }

    fn put(&mut self, key: &Key, record: &Record, telling: &mut StepReport) -> Version {
        let store = Arc::make_mut(&mut self.store);
        store.revision += 1;
        let version = Version::Number(store.revision);
        let found = Found {
            version: version.clone(),
            record: record.clone().stored(),
        };
        let before = store.keys.insert(key.clone(), found.clone());
        telling.line(|| format!("store {}", describe::stored(key, Some(&found))));
        if let (Key::Session(_), Record::Session(session)) = (key, record)
            && let Some(ended) = session.ended
        {
            telling.sights |= Sight::of_end(ended.reason);
        }
        let before = before.and_then(|found| found.record.ok());
        self.check_written(key, before.as_ref(), record);
        self.tell_watches(key, Some(found));
        version
    }

    /// An operator cordons the node of a seat.
    pub(crate) fn cordon(&mut self, seat: usize, telling: &mut StepReport) {
        let key = Key::Node(named(NodeName::new(format!("n{seat}"))));
        let found = self.store.keys.get(&key).cloned();
        if let Some(Ok(Record::Node(node))) = found.map(|found| found.record) {
            let mut node = NodeRecord::clone(&node);
            node.head.rev += 1;
            node.cordoned = true;
            self.put(&key, &Record::Node(Arc::new(node)), telling);
        }
    }

    /// A key is removed.
    pub(crate) fn remove(&mut self, key: &Key, telling: &mut StepReport) {
        let store = Arc::make_mut(&mut self.store);
        store.revision += 1;
        store.keys.remove(key);
        telling.line(|| format!("store {}", describe::stored(key, None)));
        self.tell_watches(key, None);
    }

    fn tell_watches(&mut self, key: &Key, now: Option<Found>) {
        let upto = Revision(self.store.revision);
        let event = Arc::new(Event::Changed {
            changes: vec![(key.clone(), now)],
            upto,
        });
        for n in 0..self.seats.len() {
            let paused = self.seats[n].paused;
            if let Some(process) = self.process(n) {
                if paused {
                    // Or what it has not heard would grow without end.
                    process.inbox.retain(|letter| {
                        letter.late
                            || !matches!(&*letter.event, Event::Changed { changes, .. }
                                if changes.iter().any(|(changed, _)| changed == key))
                    });
                }
                process.inbox.push_back(PendingEvent {
                    event: Arc::clone(&event),
                    late: false,
                });
            }
        }
    }

    /// Drops late messages that can have no effect any more.
    pub(crate) fn forget_idle_messages(&mut self) {
        let mut requests = std::mem::take(&mut self.requests);
        requests.retain(|sent| {
            !sent.late
                || self.waiter(sent).is_some()
                || match &*sent.request {
                    Request::Put {
                        expect: Expect::Absent,
                        ..
                    } => true,
                    Request::Put {
                        key,
                        expect: Expect::Version(version),
                        ..
                    }
                    | Request::Delete { key, version } => self.store.is_at(key, version),
                    _ => false,
                }
        });
        self.requests = requests;
        for n in 0..self.seats.len() {
            let idle =
                |process: &Process, letter: &PendingEvent| letter.late && is_idle(process, letter);
            let Some(process) = self.seats[n].process.as_deref() else {
                continue;
            };
            if process.inbox.iter().any(|letter| idle(process, letter))
                && let Some(process) = self.process(n)
            {
                let mut inbox = std::mem::take(&mut process.inbox);
                inbox.retain(|letter| !idle(process, letter));
                process.inbox = inbox;
            }
        }
    }
}

/// Whether hearing a letter would change nothing.
fn is_idle(process: &Process, letter: &PendingEvent) -> bool {
    match &*letter.event {
        Event::Reply { op, .. } => !process.waits_for(*op),
        Event::Changed { changes, .. } => changes.iter().all(|(key, found)| {
            let view = process.machine.view();
            let rev = found
                .as_ref()
                .and_then(|f| f.record.as_ref().ok())
                .map(|r| r.head().rev);
            rev.is_some_and(|rev| rev <= view.mark(key) && !view.is_missing(key))
        }),
        Event::Loaded(activation) => process
            .stays
            .iter()
            .all(|stay| stay.activation != *activation || stay.closing),
        _ => false,
    }
}
