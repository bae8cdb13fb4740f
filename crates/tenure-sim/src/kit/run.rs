//! One run: steps of virtual time in which each process has its turn, until faults are over and everything is served.

use std::sync::Arc;
use std::time::Duration;

use tenure::KeyspaceKind;
use tenure::store::Store;
use tenure::store::memory::MemoryStore;

use super::faults::{self, Fault, Planned};
use super::ledger::{Ledger, ObservedGate};
use super::process::Process;
use super::{Kit, Scenario, SeedReport};
use crate::rng::Rng;

/// How long requests may take to end when nothing goes wrong any more.
const LAST_REQUESTS: Duration = Duration::from_secs(60);

/// The place of one process name.
struct Place<S: Scenario> {
    process: Option<Process<S>>,
    suspended_until: Option<Duration>,
    /// When the faults of its store end.
    heals_at: Option<Duration>,
    /// When the next process of this name starts.
    back_at: Option<Duration>,
}

struct Run<'a, S: Scenario> {
    kit: &'a Kit,
    seed: u64,
    scenario: Arc<S>,
    store: Arc<dyn Store>,
    now: Duration,
    places: Vec<Place<S>>,
    faults: Vec<Planned>,
    rng: Rng,
    next_request: Duration,
    started: u64,
    requests: u64,
    ledger: Ledger,
    story: Vec<String>,
}

pub(super) fn run<S: Scenario>(kit: &Kit, seed: u64, scenario: Arc<S>) -> SeedReport {
    let mut activation = Run::new(kit, seed, scenario);
    let failure = activation.play().err().map(|what| {
        let at = seconds(activation.now);
        format!("at {at}s: {what}")
    });
    for place in activation.places {
        if let Some(process) = place.process {
            process.kill();
        }
    }
    SeedReport {
        seed,
        failure,
        story: activation.story,
        requests: activation.requests,
        openings: activation.ledger.openings,
    }
}

impl<'a, S: Scenario> Run<'a, S> {
    fn new(kit: &'a Kit, seed: u64, scenario: Arc<S>) -> Self {
        let mut rng = Rng::new(seed).fork(20);
        let faults = if kit.calm {
            Vec::new()
        } else {
            faults::draw(&mut rng, kit.nodes, kit.span, kit.settings.ttl)
        };
        let places = (0..kit.nodes).map(|_| Place {
            process: None,
            suspended_until: None,
            heals_at: None,
            back_at: Some(Duration::from_millis(rng.below(1000))),
        });
        Self {
            places: places.collect(),
            kit,
            seed,
            scenario,
            store: Arc::new(MemoryStore::new()),
            now: Duration::ZERO,
            faults,
            rng,
            next_request: Duration::ZERO,
            started: 0,
            requests: 0,
            ledger: Ledger::default(),
            story: Vec::new(),
        }
    }

    fn play(&mut self) -> Result<(), String> {
        while self.now < self.kit.span {
            self.begin_faults();
            self.send_requests();
            self.step()?;
        }
        self.heal();
        let by = self.now + self.kit.settings.ttl * 10 + self.kit.settings.drain_timeout * 4;
        while let Some(missing) = self.missing() {
            if self.now >= by {
                return Err(format!("faults have long been over, but {missing}"));
            }
            self.send_requests();
            self.step()?;
        }
        let by = self.now + LAST_REQUESTS;
        while self.processes().any(|(_, process)| process.is_busy()) {
            if self.now >= by {
                return Err("requests do not end although nothing goes wrong".to_owned());
            }
            self.step()?;
        }
        self.stop_all()?;
        self.scenario.finally()
    }

    /// Ends every process in good order: what an application keeps in memory until then is written out.
    fn stop_all(&mut self) -> Result<(), String> {
        for place in &mut self.places {
            place.back_at = Some(Duration::MAX);
            if let Some(process) = &mut place.process {
                process.stop();
            }
        }
        let by = self.now + LAST_REQUESTS;
        while self.processes().count() > 0 {
            if self.now >= by {
                return Err("not every process stops although nothing goes wrong".to_owned());
            }
            self.step()?;
        }
        Ok(())
    }

    fn processes(&self) -> impl Iterator<Item = (usize, &Process<S>)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(node, place)| Some((node, place.process.as_ref()?)))
    }

    /// Lets a little time pass, and looks at everything.
    fn step(&mut self) -> Result<(), String> {
        self.now += self.kit.step;
        for node in 0..self.places.len() {
            self.end_what_is_over(node)?;
            let (now, place) = (self.now, &mut self.places[node]);
            if place.suspended_until.is_some() {
                continue;
            }
            if let Some(process) = &mut place.process {
                process.run_until(now);
                if process.panicked() {
                    return Err(format!("a request to n{node} panicked"));
                }
            }
        }
        for node in 0..self.places.len() {
            self.look_at(node);
        }
        let open: Vec<(usize, &ObservedGate)> = self
            .places
            .iter()
            .enumerate()
            .filter_map(|(node, place)| Some((node, place.process.as_ref()?)))
            .flat_map(|(node, process)| process.open.iter().map(move |open| (node, open)))
            .collect();
        self.ledger.look(self.now, &open)?;
        self.scenario.check()
    }

    /// Ends suspensions and faults whose time has come, and starts processes.
    fn end_what_is_over(&mut self, node: usize) -> Result<(), String> {
        let now = self.now;
        let place = &mut self.places[node];
        let is_due = |at: &Option<Duration>| at.is_some_and(|at| at <= now);
        if is_due(&place.suspended_until) {
            place.suspended_until = None;
            if let Some(process) = &mut place.process {
                process.oversleep(now);
            }
        }
        if is_due(&place.heals_at) {
            place.heals_at = None;
            if let Some(process) = &place.process {
                process.heal();
            }
        }
        if is_due(&place.back_at) && place.process.is_none() {
            place.back_at = None;
            self.started += 1;
            let entropy = u128::from(self.seed) << 64 | u128::from(self.started) << 16;
            let process = Process::start(self.kit, &self.scenario, &self.store, node, now, entropy);
            let process = process.map_err(|e| format!("no runtime for a process: {e}"))?;
            self.places[node].process = Some(process);
            self.tell(node, "starts");
        }
        Ok(())
    }

    fn look_at(&mut self, node: usize) {
        let place = &mut self.places[node];
        if place.suspended_until.is_some() {
            return;
        }
        let Some(process) = &mut place.process else {
            return;
        };
        let told = process.look(self.now);
        let over = process.is_over();
        for line in told {
            self.tell(node, &line);
        }
        if over {
            self.tell(node, "has ended");
            let place = &mut self.places[node];
            if let Some(process) = place.process.take() {
                process.kill();
            }
            // One that was not stopped on purpose is started again, as a supervisor would.
            let soon = self.now + self.kit.settings.ttl;
            place.back_at.get_or_insert(soon);
        }
    }

    fn begin_faults(&mut self) {
        while let Some(planned) = self.faults.first().copied()
            && planned.at <= self.now
        {
            self.faults.remove(0);
            self.hit(planned.node, planned.fault);
        }
    }

    fn hit(&mut self, node: usize, fault: Fault) {
        let now = self.now;
        let place = &mut self.places[node];
        let Some(process) = &mut place.process else {
            return;
        };
        let mut for_a_while = |span: Duration| {
            let until = (now + span).max(place.heals_at.unwrap_or_default());
            place.heals_at = Some(until);
        };
        match fault {
            Fault::Suspend(span) => place.suspended_until = Some(now + span),
            Fault::Stop { back_after } => {
                process.stop();
                place.back_at = Some(now + back_after);
            }
            Fault::Kill { back_after } => {
                place.back_at = Some(now + back_after);
                place.suspended_until = None;
                if let Some(process) = place.process.take() {
                    process.kill();
                }
            }
            Fault::Outage(span) => {
                process.faults.outage();
                for_a_while(span);
            }
            Fault::Hang(span) => {
                process.faults.hang();
                for_a_while(span);
            }
            Fault::LoseAnswers(span) => {
                process.faults.lose_replies(1000);
                for_a_while(span);
            }
            Fault::Slow(by, span) => {
                process.faults.slow(by);
                for_a_while(span);
            }
            Fault::Deaf(span) => {
                process.faults.mute_watch();
                for_a_while(span);
            }
        }
        self.tell(node, &fault.to_string());
    }

    /// From here on nothing goes wrong any more.
    fn heal(&mut self) {
        self.story
            .push(format!("{:>10} all faults end", seconds(self.now)));
        for place in &mut self.places {
            for at in [
                &mut place.suspended_until,
                &mut place.heals_at,
                &mut place.back_at,
            ] {
                *at = at.map(|_| self.now);
            }
            if place.process.is_none() {
                place.back_at = Some(self.now);
            }
        }
    }

    fn send_requests(&mut self) {
        while self.next_request <= self.now {
            let every = u64::try_from(self.kit.every.as_nanos()).unwrap_or(u64::MAX);
            self.next_request += Duration::from_nanos(self.rng.between(1, 2 * every));
            let node = self.rng.below(self.places.len() as u64) as usize;
            let place = &mut self.places[node];
            if place.suspended_until.is_none()
                && let Some(process) = &mut place.process
                && process.request(self.requests)
            {
                self.requests += 1;
            }
        }
    }

    /// What is still missing from a cluster in which everything is served.
    fn missing(&self) -> Option<String> {
        let up = self.processes().filter(|(_, p)| p.is_up()).count();
        if up < self.places.len() || self.places.iter().any(|p| p.suspended_until.is_some()) {
            return Some(format!("{up} of {} processes run", self.places.len()));
        }
        let KeyspaceKind::Hashed(shards) = self.kit.kind else {
            return None;
        };
        let open: usize = self.processes().map(|(_, p)| p.open.len()).sum();
        (open != shards as usize).then(|| format!("{open} of {shards} shards are served"))
    }

    fn tell(&mut self, node: usize, what: &str) {
        self.story
            .push(format!("{:>10} n{node} {what}", seconds(self.now)));
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}
