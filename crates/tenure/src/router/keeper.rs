//! The task that has the machines of all shards: hears what the records say and what the transport reports, and has the
//! transport and the session do what the machines decide. Decides nothing itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{KeyspaceName, NodeName, SessionId, ShardId};
use tenure_core::machine::Event as NodeEvent;
use tenure_core::record::{Held, KeyspaceKind, Owner};
use tenure_core::router::{Action, Event, Mark, Reach, Refusal, Shard, Sight, Step, Verdict};
use tenure_core::time::Time;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::slot::Entry;
use super::table::{Keyspace, Peer, Route, Table};
use super::transport::{Drained, Flush, Transport, Trial};
use crate::clock::Clock;
use crate::driver::Inputs;
use crate::metrics::Metrics;

/// How long a move that can be published waits for others, so that one write tells of all.
const GATHER: Duration = Duration::from_millis(1);

/// One shard: its keyspace by number, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct At {
    keyspace: usize,
    place: usize,
}

/// What the keeper is told.
#[derive(Debug)]
pub(crate) enum Told {
    /// There is such a keyspace, or it is gone.
    Keyspace {
        name: KeyspaceName,
        rev: u64,
        kind: Option<KeyspaceKind>,
    },
    /// A shard's record says this.
    Shard {
        shard: ShardId,
        owner: Option<Owner>,
        sight: Sight,
    },
    /// A session lives and is here, or it is over.
    Session {
        session: SessionId,
        at: Option<(NodeName, BTreeMap<String, String>)>,
    },
    /// Nothing is in flight for a shard.
    Drained { at: At, hold: u64 },
    /// An owner takes requests again.
    Answered { at: At },
    /// A request was refused.
    Refused {
        shard: ShardId,
        refused: Refused,
        verdict: oneshot::Sender<Option<Route>>,
    },
    /// Says when everything up to here was heard.
    Sync(oneshot::Sender<()>),
}

/// What a refused request tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) sent_by: Mark,
    pub(crate) owner: Option<SessionId>,
    pub(crate) mark: Mark,
    pub(crate) followed: bool,
}

/// What a keeper is made of.
pub(crate) struct Parts {
    pub(super) table: Arc<Table>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tell: mpsc::UnboundedSender<Told>,
    pub(super) told: mpsc::UnboundedReceiver<Told>,
    pub(super) over: CancellationToken,
}

impl Parts {
    /// The metrics of the router.
    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// The way to the keeper.
    pub(crate) fn tell(&self) -> mpsc::UnboundedSender<Told> {
        self.tell.clone()
    }
}

struct Known {
    keyspace: Arc<Keyspace>,
    shards: Vec<Shard>,
}

/// What was said of a shard before its keyspace was heard of.
type Early = BTreeMap<ShardId, (Option<Owner>, Sight)>;

pub(crate) struct Keeper {
    parts: Parts,
    inputs: Inputs,
    keyspaces: Vec<Known>,
    numbers: HashMap<KeyspaceName, usize>,
    /// Which value of a keyspace's record was heard last.
    revs: HashMap<KeyspaceName, u64>,
    early: Early,
    peers: HashMap<SessionId, usize>,
    sessions: HashMap<SessionId, Reach>,
    timers: BTreeSet<(Time, At)>,
    wakes: HashMap<At, Time>,
    held: Held,
    /// When what is held is to be told, and whether anybody waits for it.
    publish: Option<(Time, bool)>,
}

impl Keeper {
    pub(crate) fn new(parts: Parts, inputs: Inputs) -> Self {
        Self {
            parts,
            inputs,
            keyspaces: Vec::new(),
            numbers: HashMap::new(),
            revs: HashMap::new(),
            early: BTreeMap::new(),
            peers: HashMap::new(),
            sessions: HashMap::new(),
            timers: BTreeSet::new(),
            wakes: HashMap::new(),
            held: Held::new(),
            publish: None,
        }
    }

    /// Runs until the router is dropped.
    pub(crate) async fn run(mut self) {
        let (over, clock) = (self.parts.over.clone(), self.parts.clock.clone());
        loop {
            let timer = self.timers.first().map(|(at, _)| *at);
            let publish = self.publish.map(|(at, _)| at);
            let wake = timer.into_iter().chain(publish).min();
            tokio::select! {
                biased;
                () = over.cancelled() => return,
                told = self.parts.told.recv() => match told {
                    Some(told) => self.hear(told),
                    None => return,
                },
                () = clock.sleep_until(wake.unwrap_or(Time::NEVER)) => {}
            }
            self.tick();
        }
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Keyspace { name, rev, kind } => self.keyspace(name, rev, kind),
            Told::Shard {
                shard,
                owner,
                sight,
            } => self.shard(shard, owner, sight),
            Told::Session { session, at } => self.session(session, at),
            Told::Drained { at, hold } => self.step(at, Event::Drained(hold)),
            Told::Answered { at } => self.step(at, Event::Answered),
            Told::Refused {
                shard,
                refused,
                verdict,
            } => {
                let route = self.refused(&shard, refused);
                // Whoever asked may have gone away.
                let _ = verdict.send(route);
            }
            Told::Sync(heard) => drop(heard.send(())),
        }
    }

    fn keyspace(&mut self, name: KeyspaceName, rev: u64, kind: Option<KeyspaceKind>) {
        let heard = self.revs.entry(name.clone()).or_default();
        if rev <= *heard {
            return;
        }
        *heard = rev;
        if let Some(number) = self.numbers.get(&name) {
            let known = &self.keyspaces[*number];
            if Some(known.keyspace.kind) == kind {
                return;
            }
            // What is held for it runs into its age; requests that come are told that it is gone.
            known.keyspace.retire();
            self.numbers.remove(&name);
        }
        let Some(kind) = kind else { return };
        let keyspace = Arc::new(Keyspace::new(name.clone(), kind));
        self.numbers.insert(name.clone(), self.keyspaces.len());
        self.keyspaces.push(Known {
            keyspace: keyspace.clone(),
            shards: vec![Shard::new(); keyspace.len()],
        });
        self.parts.table.add(keyspace);
        let early = std::mem::take(&mut self.early);
        for (shard, (owner, sight)) in early {
            self.shard(shard, owner, sight);
        }
    }

    fn at(&self, shard: &ShardId) -> Option<At> {
        let keyspace = *self.numbers.get(&shard.keyspace)?;
        let place = self.keyspaces[keyspace].keyspace.of_shard(&shard.shard)?;
        Some(At { keyspace, place })
    }

    fn shard(&mut self, shard: ShardId, owner: Option<Owner>, sight: Sight) {
        let Some(&keyspace) = self.numbers.get(&shard.keyspace) else {
            self.early.insert(shard, (owner, sight));
            return;
        };
        let known = &mut self.keyspaces[keyspace];
        // One that is not of the keyspace: it was made by hand, or before the keyspace was made anew.
        let Some(place) = known.keyspace.place(&shard.shard) else {
            return;
        };
        known.shards.resize_with(known.keyspace.len(), Shard::new);
        if sight.mark < known.shards[place].known() {
            return;
        }
        let peer = owner.map(|owner| self.peer(owner));
        let reach = self.reach(sight.owner);
        if let Some(slot) = self.keyspaces[keyspace].keyspace.slot(place) {
            slot.write(Entry {
                peer: peer.or(slot.read().peer),
                free: peer.is_none(),
                mark: sight.mark,
            });
        }
        self.step(At { keyspace, place }, Event::Seen(sight, reach));
    }

    /// The number of an owner.
    fn peer(&mut self, owner: Owner) -> usize {
        let next = self.peers.len();
        let at = *self.peers.entry(owner.session).or_insert(next);
        if at == next {
            let peer = Peer::new(owner.node, owner.session);
            self.parts.table.peers.put(at, Arc::new(peer));
        }
        at
    }

    fn reach(&self, session: Option<SessionId>) -> Reach {
        session
            .and_then(|session| self.sessions.get(&session))
            .copied()
            .unwrap_or_default()
    }

    fn session(&mut self, session: SessionId, at: Option<(NodeName, BTreeMap<String, String>)>) {
        let reach = match at {
            Some(_) => Reach::Known,
            None => Reach::Ended,
        };
        let known = self.reach(Some(session));
        if known == reach || known == Reach::Ended {
            return;
        }
        if let Some((node, addresses)) = at {
            let peer = self.peer(Owner { node, session });
            if let Some(peer) = self.parts.table.peers.get(peer) {
                peer.is_at(addresses);
            }
        }
        self.sessions.insert(session, reach);
        for keyspace in 0..self.keyspaces.len() {
            for place in 0..self.keyspaces[keyspace].shards.len() {
                if self.keyspaces[keyspace].shards[place].owner() == Some(session) {
                    self.step(At { keyspace, place }, Event::Reach(reach));
                }
            }
        }
    }

    fn refused(&mut self, shard: &ShardId, refused: Refused) -> Option<Route> {
        let at = self.at(shard)?;
        let refusal = Refusal {
            sent_by: refused.sent_by,
            owner: refused.owner.map(|owner| (owner, self.reach(Some(owner)))),
            mark: refused.mark,
            followed: refused.followed,
        };
        let now = self.parts.clock.now();
        let machine = &mut self.keyspaces[at.keyspace].shards[at.place];
        let (verdict, step) = machine.refused(now, &refusal);
        match verdict {
            Verdict::Wait => {
                self.carry_out(at, step);
                None
            }
            Verdict::Follow(session) => {
                let peer = self.peers.get(&session).copied();
                let owner = peer
                    .and_then(|peer| self.parts.table.peers.get(peer))
                    .cloned();
                owner.map(|owner| Route {
                    shard: shard.clone(),
                    owner,
                    epoch: refused.mark.epoch,
                    rev: refused.mark.rev,
                })
            }
        }
    }

    fn step(&mut self, at: At, event: Event) {
        let now = self.parts.clock.now();
        let step = self.keyspaces[at.keyspace].shards[at.place].step(now, event);
        self.carry_out(at, step);
    }

    fn carry_out(&mut self, at: At, step: Step) {
        let keyspace = self.keyspaces[at.keyspace].keyspace.clone();
        if let Some(cold) = keyspace.cold(at.place) {
            for action in step.actions {
                self.act(at, &cold.id, action);
            }
        }
        if let Some(wake) = self.wakes.remove(&at) {
            self.timers.remove(&(wake, at));
        }
        if let Some(wake) = step.wake {
            self.wakes.insert(at, wake);
            self.timers.insert((wake, at));
        }
    }

    fn act(&mut self, at: At, shard: &ShardId, action: Action) {
        let transport = self.parts.transport.clone();
        let tell = || self.parts.tell.clone();
        match action {
            Action::Hold(why) => transport.hold(shard, why),
            Action::Drain(hold) => {
                let tell = tell();
                transport.drain(shard, Drained { at, hold, tell });
            }
            Action::Switch(_) => {
                let table = &self.parts.table;
                let keyspace = &self.keyspaces[at.keyspace].keyspace;
                let spot = Table::of_shard(keyspace, &shard.shard);
                if let Some(route) = spot.and_then(|spot| table.route(spot)) {
                    transport.switch(shard, &route);
                }
            }
            Action::Flush => transport.flush(shard, Flush::All),
            Action::FlushOne => {
                let tell = tell();
                transport.flush(shard, Flush::One(Trial { at, tell }));
            }
            Action::Publish(mv) => {
                let shards = self.held.entry(shard.keyspace.clone()).or_default();
                shards.insert(shard.shard.clone(), mv);
                self.publish_soon(true);
            }
            Action::Retract => {
                if let Some(shards) = self.held.get_mut(&shard.keyspace) {
                    shards.remove(&shard.shard);
                    if shards.is_empty() {
                        self.held.remove(&shard.keyspace);
                    }
                }
                self.publish_soon(false);
            }
        }
    }

    fn publish_soon(&mut self, news: bool) {
        let soon = self.parts.clock.now() + GATHER;
        let (_, told) = self.publish.get_or_insert((soon, false));
        *told |= news;
    }

    fn tick(&mut self) {
        let now = self.parts.clock.now();
        while let Some((wake, at)) = self.timers.first().copied()
            && wake <= now
        {
            self.timers.remove(&(wake, at));
            self.wakes.remove(&at);
            self.step(at, Event::Tick);
        }
        if let Some((_, news)) = self.publish.take_if(|(at, _)| *at <= now) {
            if news {
                self.parts.metrics.published();
            }
            self.inputs.event(NodeEvent::Hold(self.held.clone()));
        }
    }
}
