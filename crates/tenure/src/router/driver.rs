//! The task that has a router's machine: hears what the records say and what the transport reports, and has the transport
//! and the session do what the machine decides. Decides nothing itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, NodeName, SessionId, ShardId};
use tenure_core::machine::Event as NodeEvent;
use tenure_core::record::{KeyspaceKind, Owner};
use tenure_core::router::{
    Action, Event, OwnerSessionState, RefusalDecision, RequestRefusal, RouterMachine as Machine,
    ShardObservation,
};
use tenure_core::rules::Rules;
use tenure_core::time::Time;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::atomic_entry::OwnerSnapshot;
use super::lookup_table::{KeyspaceTable, LookupTable, PeerNode, Route};
use super::transport::{DrainedReport, FlushAmount, ProbeReport, Transport};
use crate::clock::Clock;
use crate::driver::DriverSender;
use crate::metrics::Metrics;

/// How much is heard before anything is told, at most.
const AT_ONCE: usize = 4096;

/// One shard: its keyspace by number, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardPosition {
    keyspace: usize,
    place: usize,
}

/// What the keeper is told.
#[derive(Debug)]
pub(crate) enum RouterInput {
    /// There is such a keyspace, or it is gone.
    Keyspace {
        name: KeyspaceName,
        kind: Option<KeyspaceKind>,
    },
    /// A shard's record says this.
    Shard {
        shard: ShardId,
        owner: Option<Owner>,
        sight: ShardObservation,
    },
    /// A session lives and is here, or it is over.
    Session {
        session: SessionId,
        at: Option<(NodeName, BTreeMap<String, String>)>,
    },
    /// Nothing is in flight for a shard.
    Drained { at: ShardPosition, hold: u64 },
    /// An owner takes requests again.
    Answered { at: ShardPosition },
    /// A request was refused.
    Refused {
        shard: ShardId,
        refused: RequestRefusal,
        verdict: oneshot::Sender<Option<Route>>,
    },
    /// Says when everything up to here was heard.
    Sync(oneshot::Sender<()>),
}

/// What a keeper is made of.
pub(crate) struct RouterDriverParts {
    pub(super) table: Arc<LookupTable>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tell: mpsc::UnboundedSender<RouterInput>,
    pub(super) told: mpsc::UnboundedReceiver<RouterInput>,
    pub(super) over: CancellationToken,
}

impl RouterDriverParts {
    /// The metrics of the router.
    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// The way to the keeper.
    pub(crate) fn tell(&self) -> mpsc::UnboundedSender<RouterInput> {
        self.tell.clone()
    }
}

/// What was said of a shard before its keyspace was heard of.
type Early = BTreeMap<ShardId, (Option<Owner>, ShardObservation)>;

pub(crate) struct RouterDriver {
    parts: RouterDriverParts,
    inputs: DriverSender,
    machine: Machine<ShardPosition>,
    keyspaces: Vec<Arc<KeyspaceTable>>,
    numbers: HashMap<KeyspaceName, usize>,
    early: Early,
    peers: HashMap<SessionId, usize>,
}

impl RouterDriver {
    pub(crate) fn new(parts: RouterDriverParts, inputs: DriverSender) -> Self {
        Self {
            parts,
            inputs,
            machine: Machine::new(Rules::sound()),
            keyspaces: Vec::new(),
            numbers: HashMap::new(),
            early: BTreeMap::new(),
            peers: HashMap::new(),
        }
    }

    /// Runs until the router is dropped.
    pub(crate) async fn run(mut self) {
        let (over, clock) = (self.parts.over.clone(), self.parts.clock.clone());
        loop {
            let wake = self.machine.wake();
            tokio::select! {
                biased;
                () = over.cancelled() => return,
                told = self.parts.told.recv() => match told {
                    Some(told) => self.hear_with_all_that_waits(told),
                    None => return,
                },
                () = clock.sleep_until(wake.unwrap_or(Time::NEVER)) => {}
            }
            self.tick();
        }
    }

    /// Moves that come together are told of together, and what waits to be heard came together.
    fn hear_with_all_that_waits(&mut self, first: RouterInput) {
        self.hear(first);
        for _ in 0..AT_ONCE {
            match self.parts.told.try_recv() {
                Ok(told) => self.hear(told),
                Err(_) => return,
            }
        }
    }

    fn hear(&mut self, told: RouterInput) {
        match told {
            RouterInput::Keyspace { name, kind } => self.keyspace(name, kind),
            RouterInput::Shard {
                shard,
                owner,
                sight,
            } => self.shard(shard, owner, sight),
            RouterInput::Session { session, at } => self.session(session, at),
            RouterInput::Drained { at, hold } => self.step(at, Event::Drained(hold)),
            RouterInput::Answered { at } => self.step(at, Event::Answered),
            RouterInput::Refused {
                shard,
                refused,
                verdict,
            } => {
                let route = self.refused(&shard, refused);
                // Whoever asked may have gone away.
                let _ = verdict.send(route);
            }
            RouterInput::Sync(heard) => drop(heard.send(())),
        }
    }

    fn keyspace(&mut self, name: KeyspaceName, kind: Option<KeyspaceKind>) {
        if let Some(number) = self.numbers.get(&name) {
            let known = &self.keyspaces[*number];
            if Some(known.kind) == kind {
                return;
            }
            // What is held for it runs into its age; requests that come are told that it is gone.
            known.retire();
            self.numbers.remove(&name);
        }
        let Some(kind) = kind else { return };
        let keyspace = Arc::new(KeyspaceTable::new(name.clone(), kind));
        self.numbers.insert(name.clone(), self.keyspaces.len());
        self.keyspaces.push(keyspace.clone());
        self.parts.table.add(keyspace);
        let early = std::mem::take(&mut self.early);
        for (shard, (owner, sight)) in early {
            self.shard(shard, owner, sight);
        }
    }

    fn at(&self, shard: &ShardId) -> Option<ShardPosition> {
        let keyspace = *self.numbers.get(&shard.keyspace)?;
        let place = self.keyspaces[keyspace].of_shard(&shard.shard)?;
        Some(ShardPosition { keyspace, place })
    }

    fn shard(&mut self, shard: ShardId, owner: Option<Owner>, sight: ShardObservation) {
        let Some(&keyspace) = self.numbers.get(&shard.keyspace) else {
            self.early.insert(shard, (owner, sight));
            return;
        };
        // One that is not of the keyspace: it was made by hand, or before the keyspace was made anew.
        let Some(place) = self.keyspaces[keyspace].place(&shard.shard) else {
            return;
        };
        let at = ShardPosition { keyspace, place };
        let peer = owner.map(|owner| self.peer(owner));
        if let Some(slot) = self.keyspaces[keyspace].slot(place) {
            slot.write(OwnerSnapshot {
                peer: peer.or(slot.read().peer),
                free: peer.is_none(),
                mark: sight.mark,
            });
        }
        let now = self.parts.clock.now();
        self.machine.seen(now, at, &shard, sight);
        self.carry_out();
    }

    /// The number of an owner.
    fn peer(&mut self, owner: Owner) -> usize {
        let next = self.peers.len();
        let at = *self.peers.entry(owner.session).or_insert(next);
        if at == next {
            let peer = PeerNode::new(owner.node, owner.session);
            self.parts.table.peers.put(at, Arc::new(peer));
        }
        at
    }

    fn session(&mut self, session: SessionId, at: Option<(NodeName, BTreeMap<String, String>)>) {
        let reach = match at {
            Some(_) => OwnerSessionState::Live,
            None => OwnerSessionState::Ended,
        };
        if let Some((node, addresses)) = at {
            let peer = self.peer(Owner { node, session });
            if let Some(peer) = self.parts.table.peers.get(peer) {
                peer.is_at(addresses);
            }
        }
        let now = self.parts.clock.now();
        self.machine.session(now, session, reach);
        self.carry_out();
    }

    fn refused(&mut self, shard: &ShardId, refused: RequestRefusal) -> Option<Route> {
        let at = self.at(shard)?;
        let now = self.parts.clock.now();
        let verdict = self.machine.refused(now, at, &refused);
        self.carry_out();
        let RefusalDecision::Follow(session) = verdict else {
            return None;
        };
        let peer = self.peers.get(&session).copied();
        let owner = peer.and_then(|peer| self.parts.table.peers.get(peer))?;
        Some(Route {
            shard: shard.clone(),
            owner: owner.clone(),
            epoch: refused.mark.epoch,
            rev: refused.mark.rev,
        })
    }

    fn step(&mut self, at: ShardPosition, event: Event) {
        let now = self.parts.clock.now();
        self.machine.step(now, at, event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        for (at, action) in self.machine.take_actions() {
            let keyspace = self.keyspaces[at.keyspace].clone();
            if let Some(cold) = keyspace.cold(at.place) {
                self.act(at, &cold.id, action);
            }
        }
    }

    fn act(&mut self, at: ShardPosition, shard: &ShardId, action: Action) {
        let transport = self.parts.transport.clone();
        let tell = || self.parts.tell.clone();
        match action {
            Action::Hold(reason) => transport.hold(shard, reason),
            Action::Drain(hold) => {
                let tell = tell();
                transport.drain(shard, DrainedReport { at, hold, tell });
            }
            Action::Switch(_) => {
                let table = &self.parts.table;
                let keyspace = &self.keyspaces[at.keyspace];
                let spot = LookupTable::of_shard(keyspace, &shard.shard);
                if let Some(route) = spot.and_then(|spot| table.route(spot)) {
                    transport.switch(shard, &route);
                }
            }
            Action::Flush => transport.flush(shard, FlushAmount::All),
            Action::FlushOne => {
                let tell = tell();
                transport.flush(shard, FlushAmount::One(ProbeReport { at, tell }));
            }
            // The machine keeps what is to be published, and says so when it ticks.
            Action::Publish(_) | Action::Retract => {}
        }
    }

    fn tick(&mut self) {
        let told = self.machine.tick(self.parts.clock.now());
        self.carry_out();
        if let Some((held, news)) = told {
            if news {
                self.parts.metrics.published();
            }
            self.inputs.event(NodeEvent::Hold(held));
        }
    }
}
