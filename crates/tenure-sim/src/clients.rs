//! Clients: requests by key, sent through routers to whoever owns the shard, over a network that delays and loses.
//!
//! A request carries the epoch that its router knows. A node that does not serve the shard at that epoch says so before it
//! has done anything. What it lets in counts as in flight until it is answered, and is done once.

use tenure_core::hash::{index_of, key_hash};
use tenure_core::ids::SessionId;
use tenure_core::machine::{ActivationId, Close};
use tenure_core::router::RecordVersion;
use tenure_core::router::hold_queue::ArrivalNo;

use crate::check::CheckResult;
use crate::check::requests::{Failure, Sent};
use crate::clock::{Instant, MS};
use crate::event_queue::{Pid, ScheduledEvent};
use crate::fault::Cut;
use crate::process::Work;
use crate::rng::Rng;
use crate::run_config::{Class, RunConfig, nanos};
use crate::world::World;

/// Number of a request, in order of arrival.
pub(crate) type Req = usize;

/// How much clients send, and how nodes serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// How long between two requests, on average.
    pub every: u64,
    /// How many requests come when a shard's record says something new of a move.
    pub burst: u64,
    /// How often a handler answers with an error, in a thousand.
    pub errors: u32,
    /// How often an answer is lost on the way, in a thousand.
    pub lose_reply: u32,
    /// How long what is sent takes on its way, at least and at most.
    pub delay: (u64, u64),
    /// How long a request is worked on, at least and at most.
    pub work: (u64, u64),
    /// How many requests a router holds.
    pub held: u64,
}

impl Traffic {
    /// Little traffic over a good network.
    pub fn calm() -> Self {
        Self {
            every: 50 * MS,
            burst: 2,
            errors: 0,
            lose_reply: 0,
            delay: (MS / 20, MS / 2),
            work: (0, 2 * MS),
            held: 10_000,
        }
    }
}

/// How far a request is at its router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Under way, without having waited.
    Passing,
    /// In its line, since then.
    Waiting(Instant),
    /// Under way, after having waited.
    Running,
    /// Nothing any more.
    Over,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) router: Pid,
    pub(crate) shard: usize,
    pub(crate) key: u64,
    pub(crate) write: bool,
    pub(crate) bytes: u64,
    pub(crate) stage: Stage,
    pub(crate) ticket: ArrivalNo,
    pub(crate) sent_by: RecordVersion,
    pub(crate) followed: bool,
    pub(crate) trial: bool,
    /// Until when it may be held, once it was.
    pub(crate) deadline: Option<Instant>,
    /// For how long it was held.
    pub(crate) held: u64,
    /// The node that it is under way to, or in.
    pub(crate) at: Option<Pid>,
    /// How often it was sent: an answer to an earlier sending is none to this.
    pub(crate) sending: u32,
    /// The sending that a node has answered: that answer is under way, or was lost.
    pub(crate) replied: u32,
    /// How many writes its client knew to be acknowledged.
    pub(crate) knows: u64,
}

/// What a node, or the network, says to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// It was done, well or badly.
    Done { well: bool },
    /// It was not let in.
    NotOwner(Option<SessionId>, RecordVersion),
    /// Nobody knows what became of it.
    Failed(Failure),
}

/// All requests, and where they come from.
#[derive(Debug)]
pub(crate) struct Clients {
    all: Vec<Request>,
    /// The first request that may not be over.
    first: usize,
    rng: Rng,
    /// Some keys of each shard of the first keyspace.
    keys: Vec<Vec<u64>>,
    /// Acknowledgements that have reached a client, of each shard.
    acknowledged: Vec<u64>,
    /// Pairs of router and node between which nothing passes, one way or both, until then.
    severed: Vec<(usize, usize, Cut, Instant)>,
}

/// How many keys of each shard clients use.
const KEYS: usize = 2;

impl Clients {
    pub(crate) fn new(plan: &RunConfig) -> Self {
        let shards = plan.shards as usize;
        let mut keys = vec![Vec::new(); shards];
        if plan.routers > 0 {
            let mut missing = shards;
            for n in 0u64.. {
                let hash = key_hash(&n.to_le_bytes());
                let of = &mut keys[index_of(hash, plan.shards) as usize];
                if of.len() < KEYS {
                    of.push(hash);
                    missing -= usize::from(of.len() == KEYS);
                }
                if missing == 0 {
                    break;
                }
            }
        }
        Self {
            all: Vec::new(),
            first: 0,
            rng: plan.rng(12),
            keys,
            acknowledged: vec![0; shards],
            severed: Vec::new(),
        }
    }

    pub(crate) fn of(&self, req: Req) -> &Request {
        &self.all[req]
    }

    pub(crate) fn of_mut(&mut self, req: Req) -> &mut Request {
        &mut self.all[req]
    }

    /// Requests that are not over, oldest first.
    fn current(&mut self) -> Vec<Req> {
        while self
            .all
            .get(self.first)
            .is_some_and(|r| r.stage == Stage::Over)
        {
            self.first += 1;
        }
        let open = |req: &Req| self.all[*req].stage != Stage::Over;
        (self.first..self.all.len()).filter(open).collect()
    }

    pub(crate) fn sever(&mut self, router: usize, node: usize, how: Cut, until: Instant) {
        self.severed.push((router, node, how, until));
    }

    pub(crate) fn heal(&mut self) {
        self.severed.clear();
    }
}

impl World {
    /// Clients send something, and will again.
    pub(crate) fn traffic(&mut self) -> CheckResult {
        let every = self.traffic.every;
        let after = self.clients.rng.between(every / 4, every * 7 / 4);
        // What comes last is to be over when the run is.
        let last = self.plan.end_at.saturating_sub(nanos(self.plan.timing.ttl));
        if self.now + after < last {
            self.queue.push(self.now + after, ScheduledEvent::Traffic);
        }
        let shard = self.clients.rng.below(u64::from(self.plan.shards)) as usize;
        let count = if self.clients.rng.permille(200) { 3 } else { 1 };
        self.burst(shard, count)
    }

    /// Somebody who watches moves sends something just then.
    pub(crate) fn traffic_follows(&mut self, shard: usize) {
        if self.plan.routers == 0
            || shard >= self.plan.shards as usize
            || self.now >= self.plan.end_at
        {
            return;
        }
        for _ in 0..self.traffic.burst {
            let after = self.clients.rng.skewed(0, 20 * MS);
            self.queue
                .push(self.now + after, ScheduledEvent::Burst { shard });
        }
    }

    pub(crate) fn burst(&mut self, shard: usize, count: u64) -> CheckResult {
        let open = |(pid, p): (usize, &crate::process::Process)| {
            let desk = p.router.as_deref()?;
            (p.alive && p.paused_until.is_none() && desk.is_open()).then_some(pid)
        };
        let routers: Vec<Pid> = self.processes.iter().enumerate().filter_map(open).collect();
        if routers.is_empty() {
            return Ok(());
        }
        let router = *self.clients.rng.pick(&routers);
        let key = *self.clients.rng.pick(&self.clients.keys[shard].clone());
        for _ in 0..count {
            self.request(router, shard, key)?;
        }
        Ok(())
    }

    fn request(&mut self, router: Pid, shard: usize, key: u64) -> CheckResult {
        let write = self.clients.rng.permille(600);
        let bytes = self.clients.rng.below(2000);
        let req = self.clients.all.len();
        let knows = self.clients.acknowledged[shard];
        self.clients.all.push(Request {
            router,
            shard,
            key,
            write,
            bytes,
            stage: Stage::Passing,
            ticket: ArrivalNo::new(0),
            sent_by: RecordVersion::default(),
            followed: false,
            trial: false,
            deadline: None,
            held: 0,
            at: None,
            sending: 0,
            replied: 0,
            knows,
        });
        self.coverage.requests += 1;
        self.requests.came(self.now, req, router, key);
        self.arrives(router, req)
    }

    /// A request travels from its router to a session.
    pub(crate) fn travel(&mut self, router: Pid, req: Req, to: SessionId, mark: RecordVersion) {
        let after = self.hop();
        let pid = self.gates.lease(to).map(|lease| lease.pid);
        let request = self.clients.of_mut(req);
        request.sent_by = mark;
        request.sending += 1;
        request.at = pid;
        let sending = request.sending;
        let Some(pid) = pid else {
            // A session that was never anybody's lease: nobody is there.
            return self.answer(
                req,
                sending,
                Answer::NotOwner(None, RecordVersion::default()),
            );
        };
        if self.is_severed(router, pid, Cut::Requests) {
            return self.lost(req, sending);
        }
        let due = ScheduledEvent::Enter { pid, req, sending };
        self.queue.push(self.now + after, due);
    }

    fn hop(&mut self) -> u64 {
        let (low, high) = self.traffic.delay;
        self.clients.rng.between(low, high)
    }

    fn is_severed(&self, router: Pid, node: Pid, way: Cut) -> bool {
        let (router, node) = (self.processes[router].node, self.processes[node].node);
        let cut = |how: Cut| how == way || how == Cut::Both;
        let here = |&(r, n, how, until): &(usize, usize, Cut, Instant)| {
            r == router && n == node && cut(how) && until > self.now
        };
        self.clients.severed.iter().any(here)
    }

    /// A request, or its answer, is gone for ever; its router gives up after a while.
    fn lost(&mut self, req: Req, sending: u32) {
        self.coverage.lost += 1;
        let patience = nanos(self.plan.timing.ttl);
        let pid = self.clients.of(req).router;
        let answer = Answer::Failed(Failure::Lost);
        let due = ScheduledEvent::Answer {
            pid,
            req,
            sending,
            answer,
        };
        self.queue.push(self.now + patience, due);
    }

    /// An answer begins its way back.
    fn answer(&mut self, req: Req, sending: u32, answer: Answer) {
        let after = self.hop();
        let request = self.clients.of_mut(req);
        request.replied = sending;
        let (pid, at) = (request.router, request.at);
        if at.is_some_and(|at| self.is_severed(pid, at, Cut::Replies))
            || self.clients.rng.permille(self.traffic.lose_reply)
        {
            return self.lost(req, sending);
        }
        let due = ScheduledEvent::Answer {
            pid,
            req,
            sending,
            answer,
        };
        self.queue.push(self.now + after, due);
    }

    /// A request finds nobody: its connection is refused, and nothing was done.
    pub(crate) fn nobody_there(&mut self, req: Req, sending: u32) {
        if self.clients.of(req).sending == sending {
            self.answer(
                req,
                sending,
                Answer::NotOwner(None, RecordVersion::default()),
            );
        }
    }

    /// A request is at a node: it is let in, or told who owns the shard.
    pub(crate) fn enters(&mut self, pid: Pid, req: Req, sending: u32) -> CheckResult {
        let request = self.clients.of(req);
        if request.sending != sending || request.stage == Stage::Over {
            return Ok(());
        }
        let (shard, epoch, write) = (request.shard, request.sent_by.epoch, request.write);
        let knows = request.knows;
        let now = self.now;
        let stay = self.processes[pid]
            .stays
            .iter()
            .find(|s| s.shard == shard && s.open && s.closing.is_none() && s.epoch == epoch)
            .map(|s| (s.activation, s.known));
        let Some((activation, known)) =
            stay.filter(|(activation, _)| self.gates.admits_run(now, shard, pid, *activation))
        else {
            let seen = self.processes[pid].seen.get(&shard).copied();
            let (owner, mark) = seen.unwrap_or_default();
            self.coverage.turned_away += 1;
            self.look_how_smooth(pid, req)?;
            self.answer(req, sending, Answer::NotOwner(owner, mark));
            return Ok(());
        };
        self.requests.admitted(now, req)?;
        if !write && self.plan.reads_tail {
            self.requests
                .reads(now, req, shard, known, knows, self.gates.is_demanded())?;
        }
        let (low, high) = self.traffic.work;
        let takes = self.clients.rng.between(low, high);
        if let Some(stay) = self.processes[pid].stay_mut(activation) {
            stay.in_flight += 1;
            stay.requests.push(req);
        }
        let due = ScheduledEvent::Served {
            pid,
            activation,
            req,
        };
        self.queue.push(now + takes, due);
        Ok(())
    }

    /// In a run in which nothing goes wrong: was there any reason to turn this request away?
    fn look_how_smooth(&self, pid: Pid, req: Req) -> CheckResult {
        let request = self.clients.of(req);
        // An owner may not have heard yet of a router that has just come.
        let known = self.now > self.processes[request.router].since + nanos(self.plan.timing.ttl);
        if self.plan.class != Class::Planned || !known {
            return Ok(());
        }
        let (shard, epoch) = (request.shard, request.sent_by.epoch);
        let mut stays = self.processes[pid].stays.iter();
        let loading = stays.any(|s| {
            let loads = matches!(s.work, Work::Loading(_)) && s.closing.is_none();
            s.shard == shard && s.epoch == epoch && !s.succeeds && loads
        });
        self.smooth
            .turned_away(self.now, shard, pid, epoch, loading)
    }

    /// A node has done what it was asked.
    pub(crate) fn served(&mut self, pid: Pid, activation: ActivationId, req: Req) -> CheckResult {
        if self.processes[pid].wedged_until > self.now {
            let at = self.processes[pid].wedged_until;
            self.queue.push(
                at,
                ScheduledEvent::Served {
                    pid,
                    activation,
                    req,
                },
            );
            return Ok(());
        }
        let Some(stay) = self.processes[pid].stay_mut(activation) else {
            return Ok(());
        };
        let Some(n) = stay.requests.iter().position(|r| *r == req) else {
            return Ok(());
        };
        stay.requests.swap_remove(n);
        stay.in_flight -= 1;
        let (shard, epoch) = (stay.shard, stay.epoch);
        let request = self.clients.of(req);
        let (write, sending) = (request.write, request.sending);
        let fails = self.clients.rng.permille(self.traffic.errors);
        let mut well = !fails;
        if write && !fails {
            let taken = self.journal.write(shard, epoch);
            if let Some(stay) = self.processes[pid].stay_mut(activation) {
                stay.known += u64::from(taken);
            }
            self.coverage.writes += u64::from(taken);
            well = taken;
        }
        self.answer(req, sending, Answer::Done { well });
        self.tell_if_empty(pid, activation)
    }

    /// What a stay was working on is cut off with it.
    pub(crate) fn cut_off(&mut self, requests: Vec<Req>, how: Option<Close>) {
        for req in requests {
            let sending = self.clients.of(req).sending;
            let drained = how == Some(Close::Drain);
            self.answer(req, sending, Answer::Failed(Failure::Cut { drained }));
        }
    }

    /// A process is gone: whatever was in it, or would have reached it, is lost; and so is what a router held.
    ///
    /// A process that exits by itself (`clean`) has closed its connections first, and a connection delivers what was written
    /// to it before its end. The answers of a killed process may be lost with the machine.
    pub(crate) fn died_with(&mut self, pid: Pid, missed: Vec<ScheduledEvent>, clean: bool) {
        if self.plan.routers == 0 {
            return;
        }
        // Its kernel had taken the request, and nobody ever read it.
        for due in missed {
            if let ScheduledEvent::Enter { req, sending, .. } = due {
                self.answer(req, sending, Answer::Failed(Failure::Died));
            }
        }
        let was_router = self.processes[pid].router.is_some();
        for req in self.clients.current() {
            let request = self.clients.of_mut(req);
            if was_router && request.router == pid {
                request.stage = Stage::Over;
                request.sending += 1;
                self.requests.forgotten(req);
            } else if request.at == Some(pid)
                && matches!(request.stage, Stage::Passing | Stage::Running)
            {
                let sending = request.sending;
                let answered = clean && request.replied == sending;
                // Whether it had been let in or was still on its way, its router cannot tell.
                if self.requests.is_in(req) && !answered {
                    self.answer(req, sending, Answer::Failed(Failure::Died));
                }
            }
        }
    }

    /// An answer is back at the router.
    pub(crate) fn is_answered(
        &mut self,
        pid: Pid,
        req: Req,
        sending: u32,
        answer: Answer,
    ) -> CheckResult {
        let request = self.clients.of(req);
        if request.sending != sending || request.stage == Stage::Over {
            return Ok(());
        }
        match answer {
            Answer::NotOwner(owner, mark) => self.turned_away(pid, req, owner, mark),
            Answer::Done { well: false } if self.under.retries_answers => {
                let mark = self.clients.of(req).sent_by;
                self.turned_away(pid, req, None, mark)
            }
            Answer::Done { well } => {
                let request = self.clients.of(req);
                let (shard, acknowledged) = (request.shard, well && request.write);
                self.clients.acknowledged[shard] += u64::from(acknowledged);
                let request = self.clients.of(req);
                let sent = Sent {
                    well,
                    held: request.held,
                };
                self.coverage.answered += 1;
                self.requests.answered(self.now, req, sent);
                self.is_over(pid, req, true)
            }
            Answer::Failed(failure) => self.fails(pid, req, failure),
        }
    }

    /// A request fails.
    pub(crate) fn fails(&mut self, pid: Pid, req: Req, failure: Failure) -> CheckResult {
        self.coverage.failed_requests += 1;
        if self.trace.on() {
            let shard = self.clients.of(req).shard;
            self.tell(pid, || {
                format!("request {req} for shard {shard} fails: {failure:?}")
            });
        }
        if let Some(local) = &self.local {
            let about = (self.clients.of(req).shard, self.requests.came_at(req));
            local.failed(self.now, about, failure)?;
        }
        let planned = self.plan.class == Class::Planned;
        let at_rest = self.is_at_rest();
        self.requests
            .failed(self.now, req, failure, planned, at_rest)?;
        self.is_over(pid, req, false)
    }
}
