//! The switches of a faulty store and the chances that it draws.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::StoreError;
use crate::operation::Op;
use crate::rng::SplitMix;

/// Chances per thousand calls, drawn from a seed: the same calls in the same order meet the same faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// What the draws follow from.
    pub seed: u64,
    /// Refused before anything was applied.
    pub unavailable_permille: u16,
    /// Applied, but the answer is lost.
    pub lost_reply_permille: u16,
    /// Delayed on the way to the store.
    pub delay_permille: u16,
    /// The longest such delay; the length is drawn too.
    pub delay_max: Duration,
    /// A watch ends instead of showing its next batch.
    pub watch_cut_permille: u16,
}

impl FaultConfig {
    /// No faults by chance; the seed counts only for what is switched on later.
    pub fn none(seed: u64) -> Self {
        Self {
            seed,
            unavailable_permille: 0,
            lost_reply_permille: 0,
            delay_permille: 0,
            delay_max: Duration::ZERO,
            watch_cut_permille: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Up,
    Down,
    Hung,
}

type Predicate = Arc<dyn Fn(Op, &str) -> bool + Send + Sync>;

/// How the switches stand.
#[derive(Clone)]
pub(super) struct FaultSwitches {
    pub(super) link: LinkState,
    pub(super) slow: Duration,
    slow_replies: Duration,
    lose_permille: u16,
    pub(super) muted: bool,
    pub(super) cuts: u64,
    failing: Option<Predicate>,
    config: FaultConfig,
}

/// What chance has in store for one call.
#[derive(Clone, Debug)]
pub(super) struct DrawnFaults {
    pub(super) delay: Duration,
    refuse: bool,
    lose: bool,
}

pub(super) struct SharedControl {
    pub(super) control: watch::Sender<FaultSwitches>,
    rng: Mutex<SplitMix>,
}

impl SharedControl {
    /// Draws for one call. Every call draws as often as any other, so that a switch does not shift later draws.
    pub(super) fn draw(&self) -> DrawnFaults {
        let control = self.control.borrow();
        let config = &control.config;
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let delayed = rng.chance(config.delay_permille);
        let nanos = u64::try_from(config.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let length = Duration::from_nanos(rng.below(nanos));
        let refuse = rng.chance(config.unavailable_permille);
        let lost = rng.below(1000);
        DrawnFaults {
            delay: control.slow + if delayed { length } else { Duration::ZERO },
            refuse,
            lose: lost < u64::from(config.lost_reply_permille.max(control.lose_permille)),
        }
    }

    /// Whether a watch is cut instead of showing its next batch.
    pub(super) fn draw_cut(&self) -> bool {
        let permille = self.control.borrow().config.watch_cut_permille;
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.chance(permille)
    }

    pub(super) fn would_wait(&self, draw: &DrawnFaults) -> bool {
        let control = self.control.borrow();
        control.link == LinkState::Hung || !draw.delay.is_zero() || !control.slow_replies.is_zero()
    }

    pub(super) fn cuts(&self) -> u64 {
        self.control.borrow().cuts
    }

    /// The way to the store: delay, then hang while hung.
    pub(super) async fn reach(&self, op: Op, draw: &DrawnFaults) -> Result<(), StoreError> {
        if !draw.delay.is_zero() {
            tokio::time::sleep(draw.delay).await;
        }
        let mut control = self.control.subscribe();
        let hung = control.borrow().link == LinkState::Hung;
        let released = control.wait_for(|c| c.link != LinkState::Hung).await;
        let down = released.map_or(true, |c| c.link == LinkState::Down);
        match (down, hung && op.writes()) {
            (false, _) => Ok(()),
            (true, true) => Err(StoreError::unknown("injected: cut off while waiting")),
            (true, false) => Err(StoreError::unavailable("injected: outage")),
        }
    }

    /// The door of the store: refused by switch or by chance before anything is applied.
    pub(super) fn admit(&self, op: Op, key: &str, draw: &DrawnFaults) -> Result<(), StoreError> {
        let failing = self.control.borrow().failing.clone();
        if failing.is_some_and(|fails| fails(op, key)) {
            let reason = format!("injected: {op:?} of {key:?} fails");
            return Err(StoreError::unavailable(reason));
        }
        if draw.refuse {
            return Err(StoreError::unavailable("injected: rejected"));
        }
        Ok(())
    }

    /// The way back: late, or not at all.
    pub(super) async fn reply(&self, op: Op, draw: &DrawnFaults) -> Result<(), StoreError> {
        self.reply_late().await;
        self.lose(op, draw)
    }

    pub(super) async fn reply_late(&self) {
        let late = self.control.borrow().slow_replies;
        if !late.is_zero() {
            tokio::time::sleep(late).await;
        }
    }

    pub(super) fn lose(&self, op: Op, draw: &DrawnFaults) -> Result<(), StoreError> {
        match (draw.lose, op.writes()) {
            (false, _) => Ok(()),
            (true, true) => Err(StoreError::unknown("injected: reply lost")),
            (true, false) => Err(StoreError::unavailable("injected: reply lost")),
        }
    }
}

/// Switches the faults of a [`FaultStore`](super::FaultStore) while it is in use.
#[derive(Clone)]
pub struct FaultHandle(Arc<SharedControl>);

impl fmt::Debug for FaultHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let control = self.0.control.borrow();
        f.debug_struct("FaultHandle")
            .field("link", &control.link)
            .field("slow", &control.slow)
            .field("config", &control.config)
            .finish_non_exhaustive()
    }
}

impl FaultHandle {
    pub(super) fn new(config: FaultConfig) -> (Arc<SharedControl>, Self) {
        let shared = Arc::new(SharedControl {
            rng: Mutex::new(SplitMix::new(config.seed)),
            control: watch::Sender::new(FaultSwitches {
                link: LinkState::Up,
                slow: Duration::ZERO,
                slow_replies: Duration::ZERO,
                lose_permille: 0,
                muted: false,
                cuts: 0,
                failing: None,
                config,
            }),
        });
        (shared.clone(), Self(shared))
    }

    pub(super) fn shared(&self) -> Arc<SharedControl> {
        self.0.clone()
    }

    fn switch(&self, switch: impl FnOnce(&mut FaultSwitches)) {
        self.0.control.send_modify(switch);
    }

    /// Every call is refused and every watch ends. Calls that were hung are cut off: their writes never land.
    pub fn outage(&self) {
        self.switch(|c| {
            c.link = LinkState::Down;
            c.cuts += 1;
        });
    }

    /// Calls wait and watches fall silent until [`heal`](Self::heal) or [`outage`](Self::outage).
    ///
    /// A write that waits here lands on healing even if its caller has given up meanwhile, as with a server that was paused.
    pub fn hang(&self) {
        self.switch(|c| c.link = LinkState::Hung);
    }

    /// Every call takes this much longer on its way to the store, and every watch is that late.
    pub fn slow(&self, by: Duration) {
        self.switch(|c| c.slow = by);
    }

    /// Calls are applied at once, but their answers come this much later.
    pub fn slow_replies(&self, by: Duration) {
        self.switch(|c| c.slow_replies = by);
    }

    /// So many of a thousand calls are applied but never answered; 1000 means all.
    pub fn lose_replies(&self, permille: u16) {
        self.switch(|c| c.lose_permille = permille);
    }

    /// Calls for which `fails` is true are refused; a prefix is passed as the key of `list`, `keys` and `watch`.
    pub fn fail_where(&self, fails: impl Fn(Op, &str) -> bool + Send + Sync + 'static) {
        self.switch(|c| c.failing = Some(Arc::new(fails)));
    }

    /// Ends every watch that is open now.
    pub fn cut_watch(&self) {
        self.switch(|c| c.cuts += 1);
    }

    /// Watches stay open and show nothing until [`heal`](Self::heal).
    pub fn mute_watch(&self) {
        self.switch(|c| c.muted = true);
    }

    /// Faults by chance from now on, drawn from the start of this seed.
    pub fn random(&self, config: FaultConfig) {
        let mut rng = self.0.rng.lock().unwrap_or_else(PoisonError::into_inner);
        *rng = SplitMix::new(config.seed);
        drop(rng);
        self.switch(|c| c.config = config);
    }

    /// Ends every fault, those by chance included. What hung goes on.
    pub fn heal(&self) {
        self.switch(|c| {
            *c = FaultSwitches {
                link: LinkState::Up,
                slow: Duration::ZERO,
                slow_replies: Duration::ZERO,
                lose_permille: 0,
                muted: false,
                cuts: c.cuts,
                failing: None,
                config: FaultConfig::none(c.config.seed),
            };
        });
    }
}
