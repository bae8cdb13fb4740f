//! Requests held for one shard, in a queue per key in the order of arrival.
//!
//! After a flush the requests of a key go one by one, each when the owner has answered the previous one; new requests of the key
//! join the tail. A key that receives requests faster than the owner answers them would never leave. When its queue does not shrink,
//! the rest of it goes at once, in order, and the key leaves. The first request always goes alone: its response proves that the
//! owner accepts requests, so no held request passes an earlier one that may still be refused.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use super::HoldReason;
use crate::rules::{Mutant, Rules};

/// Arrivals are numbered around a circle of so many.
pub const ARRIVALS: u64 = 1 << 40;

/// The number of an arrival at one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrivalNo(u64);

impl ArrivalNo {
    /// The arrival of this number.
    pub const fn new(number: u64) -> Self {
        Self(number % ARRIVALS)
    }

    /// Whether this one came before the other. Right for any two that are less than half the circle apart.
    pub fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) % ARRIVALS >= ARRIVALS / 2
    }
}

/// Where the requests of one shard come and go: counts what is in flight, holds what comes, and is told who may go.
pub trait FlightCounter {
    /// A request that waits, as whoever carries it knows it.
    type Waiter;
    /// Whom to tell that nothing is in flight.
    type Drained;
    /// Whom to tell that an owner which has refused takes requests again.
    type Trial;

    /// Lets nothing pass that comes from now on.
    fn hold(&self);
    /// Lets pass what comes from now on.
    fn open(&self);
    /// Counts in a request that has waited.
    fn count_in(&self);
    /// How many are in flight.
    fn in_flight(&self) -> u64;
    /// A request that has waited goes.
    fn go(&self, waiter: Self::Waiter, trial: Option<Self::Trial>);
    /// Nothing is in flight.
    fn drained(&self, drained: Self::Drained);
    /// Nobody waits who could try the owner: the next that comes goes.
    fn untried(&self, trial: Self::Trial);
}

/// How much to send of what was kept.
#[derive(Debug)]
pub enum FlushMode<T> {
    /// All of it; then whatever comes goes straight on.
    All,
    /// The first alone; the rest waits for what becomes of it.
    One(T),
}

#[derive(Clone, Debug, Hash)]
struct Waiting<W> {
    ticket: ArrivalNo,
    bytes: u64,
    waiter: W,
}

/// The requests of one key.
#[derive(Clone, Debug, Hash)]
struct KeyQueue<W> {
    /// The request that goes alone, while it is under way.
    running: Option<ArrivalNo>,
    /// Whether the running request was sent since the last hold. An earlier one says nothing about the present owner.
    proves: bool,
    /// Twice the number of requests that may be left after the next answer, or the rest goes at once. Set by the first request
    /// that goes after a hold; each answer takes one off. So one by one, a queue is emptied within two answers per request.
    pace: Option<usize>,
    queue: VecDeque<Waiting<W>>,
}

/// All that is held of one shard, and what was ordered for it.
pub struct HoldQueue<P: FlightCounter> {
    lines: BTreeMap<u64, KeyQueue<P::Waiter>>,
    open: bool,
    reason: HoldReason,
    count: u64,
    bytes: u64,
    drain: Option<P::Drained>,
    /// Nothing more is taken.
    stopping: bool,
    rules: Rules,
}

impl<P: FlightCounter> Default for HoldQueue<P> {
    fn default() -> Self {
        Self::new(Rules::sound())
    }
}

impl<W> KeyQueue<W> {
    /// Queues up to this length go one by one whatever their pace.
    const SHORT: usize = 8;

    /// Counts an answer. Returns whether so many requests are left that one by one takes too long.
    fn does_not_shrink(&mut self) -> bool {
        let pace = self.pace.unwrap_or_default().saturating_sub(1);
        self.pace = Some(pace);
        self.queue.len() > Self::SHORT && 2 * self.queue.len() > pace
    }
}

impl<P: FlightCounter> HoldQueue<P> {
    /// Nothing waits yet, and what comes is held.
    pub fn new(rules: Rules) -> Self {
        Self {
            lines: BTreeMap::new(),
            open: false,
            reason: HoldReason::Unknown,
            count: 0,
            bytes: 0,
            drain: None,
            stopping: false,
            rules,
        }
    }

    /// How many wait, and how large they are.
    pub fn held(&self) -> (u64, u64) {
        (self.count, self.bytes)
    }

    /// Why they were held last.
    pub fn reason(&self) -> HoldReason {
        self.reason
    }

    /// Whether nothing more is taken.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Takes nothing more from now on; says whether that is news.
    pub fn stop(&mut self) -> bool {
        !std::mem::replace(&mut self.stopping, true)
    }

    /// Whether a request of this line may go at once.
    pub fn passes(&self, line: u64) -> bool {
        self.open && !self.lines.contains_key(&line)
    }

    /// Puts a request in its place in its line; it hears when it may go. It may be at once.
    pub fn join(&mut self, port: &P, line: u64, ticket: ArrivalNo, bytes: u64, waiter: P::Waiter) {
        let waiting = Waiting {
            ticket,
            bytes,
            waiter,
        };
        let new = || KeyQueue {
            running: None,
            proves: false,
            pace: None,
            queue: VecDeque::new(),
        };
        let KeyQueue { running, queue, .. } = self.lines.entry(line).or_insert_with(new);
        running.take_if(|running| *running == ticket);
        let after = queue
            .iter()
            .rev()
            .take_while(|w| ticket.is_before(w.ticket));
        let at = queue.len() - after.count();
        queue.insert(at, waiting);
        self.count += 1;
        self.bytes += bytes;
        port.hold();
        if self.open {
            self.next(port, line);
        }
    }

    /// Takes a request out of its line although it was not told to go; says how large it is, if it was there.
    pub fn give_up(&mut self, port: &P, line: u64, ticket: ArrivalNo) -> Option<u64> {
        let KeyQueue { queue, .. } = self.lines.get_mut(&line)?;
        let at = queue.iter().position(|w| w.ticket == ticket)?;
        let bytes = queue.remove(at)?.bytes;
        self.count -= 1;
        self.bytes -= bytes;
        self.next(port, line);
        Some(bytes)
    }

    /// Ends a request that had waited. If it went alone, the next one goes; all of them go if an owner has answered it and the
    /// queue does not shrink.
    pub fn over(&mut self, port: &P, line: u64, ticket: ArrivalNo, answered: bool) {
        if let Some(queue) = self.lines.get_mut(&line)
            && queue
                .running
                .take_if(|running| *running == ticket)
                .is_some()
            && (answered && queue.proves && self.open)
            && queue.does_not_shrink()
        {
            self.go_all(port, line);
        }
        self.next(port, line);
    }

    /// Keeps what comes.
    pub fn hold(&mut self, port: &P, reason: HoldReason) {
        (self.open, self.reason) = (false, reason);
        for line in self.lines.values_mut() {
            (line.proves, line.pace) = (false, None);
        }
        port.hold();
    }

    /// Reports when nothing is in flight. A later order takes the place of an earlier one.
    pub fn drain(&mut self, port: &P, drained: P::Drained) {
        self.drain = Some(drained);
        self.check_empty(port);
    }

    /// Reports that nothing is in flight, if that is so and somebody asked.
    pub fn check_empty(&mut self, port: &P) {
        if (port.in_flight() == 0 || self.rules.broken_by(Mutant::HeldBeforeDrained))
            && let Some(drained) = self.drain.take()
        {
            port.drained(drained);
        }
    }

    /// Whether nothing of the shard waits or is in flight.
    pub fn is_idle(&self, port: &P) -> bool {
        self.lines.is_empty() && port.in_flight() == 0
    }

    /// Sends what waits. Says how many.
    pub fn flush(&mut self, port: &P, flush: FlushMode<P::Trial>) -> u64 {
        let before = self.count;
        match flush {
            FlushMode::All => {
                self.open = true;
                let lines: Vec<u64> = self.lines.keys().copied().collect();
                for line in lines {
                    self.next(port, line);
                }
            }
            FlushMode::One(trial) => match self.foremost() {
                Some(line) => self.go(port, line, Some(trial)),
                // Whoever is under way will tell.
                None if !self.lines.is_empty() => {}
                None => {
                    self.open = true;
                    port.untried(trial);
                }
            },
        }
        self.open_port(port);
        before - self.count
    }

    /// The line whose first request came before all others that wait and could go.
    fn foremost(&self) -> Option<u64> {
        let idle = self.lines.iter().filter(|(_, l)| l.running.is_none());
        let firsts = idle.filter_map(|(line, l)| Some((*line, l.queue.front()?.ticket)));
        firsts
            .reduce(|a, b| if b.1.is_before(a.1) { b } else { a })
            .map(|(line, _)| line)
    }

    /// Sends the first of a key alone, if it may go; removes the queue of a key of which nothing is left.
    fn next(&mut self, port: &P, line: u64) {
        let Some(KeyQueue { running, queue, .. }) = self.lines.get(&line) else {
            return;
        };
        if running.is_none() && queue.is_empty() {
            self.lines.remove(&line);
            self.open_port(port);
        } else if running.is_none() && self.open {
            self.go(port, line, None);
            if self.rules.broken_by(Mutant::HeldSentUnproven) {
                self.go_all(port, line);
            }
        }
    }

    /// Sends the first of a key; the others wait for its end.
    fn go(&mut self, port: &P, line: u64, trial: Option<P::Trial>) {
        if let Some(ticket) = self.send_first(port, line, trial)
            && let Some(queue) = self.lines.get_mut(&line)
        {
            (queue.running, queue.proves) = (Some(ticket), true);
            queue.pace.get_or_insert(2 * (queue.queue.len() + 1));
        }
    }

    /// Sends all requests of a key, in order.
    fn go_all(&mut self, port: &P, line: u64) {
        while self.send_first(port, line, None).is_some() {}
    }

    fn send_first(&mut self, port: &P, line: u64, trial: Option<P::Trial>) -> Option<ArrivalNo> {
        let Waiting {
            ticket,
            bytes,
            waiter,
        } = self.lines.get_mut(&line)?.queue.pop_front()?;
        self.count -= 1;
        self.bytes -= bytes;
        port.count_in();
        port.go(waiter, trial);
        Some(ticket)
    }

    /// What comes goes straight on once nothing waits.
    fn open_port(&self, port: &P) {
        let overtakes = self.rules.broken_by(Mutant::NewOvertakesHeld);
        if self.open && (self.lines.is_empty() || overtakes) && !self.stopping {
            port.open();
        }
    }
}

impl<P: FlightCounter<Waiter: Clone, Drained: Clone>> Clone for HoldQueue<P> {
    fn clone(&self) -> Self {
        Self {
            lines: self.lines.clone(),
            drain: self.drain.clone(),
            ..*self
        }
    }
}

impl<P: FlightCounter<Waiter: Hash, Drained: Hash>> Hash for HoldQueue<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.lines, self.open, self.reason, &self.drain).hash(state);
        (self.stopping, self.rules).hash(state);
    }
}

impl<P: FlightCounter> std::fmt::Debug for HoldQueue<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("HoldQueue");
        s.field("open", &self.open).field("reason", &self.reason);
        s.field("held", &self.held()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Counts, and writes down who goes.
    #[derive(Default)]
    struct Post {
        held: Cell<bool>,
        in_flight: Cell<u64>,
        gone: RefCell<Vec<u32>>,
        drained: RefCell<Vec<u64>>,
        untried: Cell<u32>,
    }

    impl FlightCounter for Post {
        type Waiter = u32;
        type Drained = u64;
        type Trial = ();

        fn hold(&self) {
            self.held.set(true);
        }
        fn open(&self) {
            self.held.set(false);
        }
        fn count_in(&self) {
            self.in_flight.set(self.in_flight.get() + 1);
        }
        fn in_flight(&self) -> u64 {
            self.in_flight.get()
        }
        fn go(&self, waiter: u32, _: Option<()>) {
            self.gone.borrow_mut().push(waiter);
        }
        fn drained(&self, drained: u64) {
            self.drained.borrow_mut().push(drained);
        }
        fn untried(&self, (): ()) {
            self.untried.set(self.untried.get() + 1);
        }
    }

    const KEY: u64 = 7;
    const OTHER: u64 = 8;

    fn ticket(n: u32) -> ArrivalNo {
        ArrivalNo::new(u64::from(n))
    }

    fn held() -> (Post, HoldQueue<Post>) {
        let (post, mut lines) = (Post::default(), HoldQueue::default());
        lines.hold(&post, HoldReason::Freezing);
        (post, lines)
    }

    fn waits(post: &Post, lines: &mut HoldQueue<Post>, line: u64, n: u32) {
        lines.join(post, line, ticket(n), 1, n);
    }

    fn ends(post: &Post, lines: &mut HoldQueue<Post>, line: u64, n: u32) {
        post.in_flight.set(post.in_flight.get() - 1);
        lines.over(post, line, ticket(n), true);
    }

    fn fails(post: &Post, lines: &mut HoldQueue<Post>, line: u64, n: u32) {
        post.in_flight.set(post.in_flight.get() - 1);
        lines.over(post, line, ticket(n), false);
    }

    /// A request that is under way comes back refused.
    fn is_refused(post: &Post, lines: &mut HoldQueue<Post>, line: u64, n: u32) {
        waits(post, lines, line, n);
        post.in_flight.set(post.in_flight.get() - 1);
    }

    #[test]
    fn a_flush_sends_one_of_each_key_and_the_next_when_that_is_answered() {
        let (post, mut lines) = held();
        for (line, n) in [(KEY, 1), (OTHER, 2), (KEY, 3), (OTHER, 4), (KEY, 5)] {
            waits(&post, &mut lines, line, n);
        }
        assert_eq!(
            (lines.held(), lines.reason()),
            ((5, 5), HoldReason::Freezing)
        );
        assert_eq!(lines.flush(&post, FlushMode::All), 2);
        assert_eq!(*post.gone.borrow(), [1, 2]);
        ends(&post, &mut lines, KEY, 1);
        assert_eq!(*post.gone.borrow(), [1, 2, 3]);
        ends(&post, &mut lines, OTHER, 2);
        assert_eq!(*post.gone.borrow(), [1, 2, 3, 4]);
        ends(&post, &mut lines, OTHER, 4);
        assert!(lines.passes(OTHER) && !lines.passes(KEY));
        ends(&post, &mut lines, KEY, 3);
        assert_eq!(*post.gone.borrow(), [1, 2, 3, 4, 5]);
        ends(&post, &mut lines, KEY, 5);
        assert!(!post.held.get() && post.in_flight() == 0);
    }

    #[test]
    fn a_long_queue_goes_one_by_one_while_it_shrinks() {
        let (post, mut lines) = held();
        (1..=100).for_each(|n| waits(&post, &mut lines, KEY, n));
        lines.flush(&post, FlushMode::All);
        for n in 1..=100 {
            assert_eq!(post.gone.borrow().len() as u32, n);
            // One new request for two answers.
            if n.is_multiple_of(2) {
                waits(&post, &mut lines, KEY, 100 + n);
            }
            ends(&post, &mut lines, KEY, n);
        }
    }

    #[test]
    fn a_queue_that_does_not_shrink_goes_at_once_and_a_short_one_never_does() {
        for (held_before, at_once) in [(8, false), (9, true)] {
            let (post, mut lines) = held();
            (1..=held_before).for_each(|n| waits(&post, &mut lines, KEY, n));
            lines.flush(&post, FlushMode::All);
            for n in 1..=20 {
                waits(&post, &mut lines, KEY, held_before + n);
                let before = post.in_flight();
                ends(&post, &mut lines, KEY, n);
                if post.in_flight() > before {
                    assert!(at_once && lines.passes(KEY));
                    assert!(post.gone.borrow().is_sorted());
                    break;
                }
                assert!(n < 20 || !at_once);
            }
        }
    }

    #[test]
    fn after_a_first_request_that_was_not_answered_the_next_goes_alone() {
        let (post, mut lines) = held();
        (1..=4).for_each(|n| waits(&post, &mut lines, KEY, n));
        lines.flush(&post, FlushMode::All);
        fails(&post, &mut lines, KEY, 1);
        assert_eq!(*post.gone.borrow(), [1, 2]);
        ends(&post, &mut lines, KEY, 2);
        assert_eq!(*post.gone.borrow(), [1, 2, 3]);
    }

    #[test]
    fn a_first_request_that_is_refused_is_passed_by_none_of_its_key() {
        let (post, mut lines) = held();
        (1..=3).for_each(|n| waits(&post, &mut lines, KEY, n));
        lines.flush(&post, FlushMode::All);
        lines.hold(&post, HoldReason::Refused);
        is_refused(&post, &mut lines, KEY, 1);
        lines.flush(&post, FlushMode::One(()));
        assert_eq!(*post.gone.borrow(), [1, 1]);
        ends(&post, &mut lines, KEY, 1);
        assert_eq!(*post.gone.borrow(), [1, 1], "the shard is still held");
        lines.flush(&post, FlushMode::All);
        assert_eq!(*post.gone.borrow(), [1, 1, 2]);
        ends(&post, &mut lines, KEY, 2);
        assert_eq!(*post.gone.borrow(), [1, 1, 2, 3]);
    }

    #[test]
    fn requests_that_went_together_and_were_refused_go_again_in_order() {
        let (post, mut lines) = held();
        (1..=12).for_each(|n| waits(&post, &mut lines, KEY, n));
        lines.flush(&post, FlushMode::All);
        (13..=24).for_each(|n| waits(&post, &mut lines, KEY, n));
        ends(&post, &mut lines, KEY, 1);
        assert!(post.gone.borrow().iter().copied().eq(1..=24));
        lines.hold(&post, HoldReason::Freezing);
        waits(&post, &mut lines, KEY, 25);
        for n in [4, 2, 3] {
            is_refused(&post, &mut lines, KEY, n);
        }
        post.gone.borrow_mut().clear();
        lines.flush(&post, FlushMode::All);
        for n in [2, 3, 4, 25] {
            assert_eq!(post.gone.borrow().last(), Some(&n));
            ends(&post, &mut lines, KEY, n);
        }
        assert_eq!(*post.gone.borrow(), [2, 3, 4, 25]);
    }

    #[test]
    fn the_answer_to_a_request_from_before_a_hold_proves_nothing_after_it() {
        let (post, mut lines) = held();
        (1..=3).for_each(|n| waits(&post, &mut lines, KEY, n));
        lines.flush(&post, FlushMode::All);
        lines.hold(&post, HoldReason::Freezing);
        lines.flush(&post, FlushMode::All);
        assert_eq!(*post.gone.borrow(), [1]);
        ends(&post, &mut lines, KEY, 1);
        assert_eq!(*post.gone.borrow(), [1, 2], "2 is the first at this owner");
        ends(&post, &mut lines, KEY, 2);
        assert_eq!(*post.gone.borrow(), [1, 2, 3]);
    }

    #[test]
    fn what_comes_during_a_flush_goes_behind_what_was_held_and_passes_when_nothing_is_left() {
        let (post, mut lines) = held();
        waits(&post, &mut lines, KEY, 1);
        lines.flush(&post, FlushMode::All);
        assert!(!lines.passes(KEY) && lines.passes(OTHER));
        assert!(post.held.get(), "whoever comes has to ask");
        waits(&post, &mut lines, KEY, 2);
        assert_eq!(*post.gone.borrow(), [1]);
        ends(&post, &mut lines, KEY, 1);
        ends(&post, &mut lines, KEY, 2);
        assert_eq!(*post.gone.borrow(), [1, 2]);
        assert!(!post.held.get() && lines.passes(KEY) && lines.is_idle(&post));
    }

    #[test]
    fn a_request_that_comes_back_refused_goes_before_those_that_came_after_it() {
        let (post, mut lines) = held();
        waits(&post, &mut lines, KEY, 5);
        waits(&post, &mut lines, KEY, 3);
        waits(&post, &mut lines, KEY, 4);
        lines.flush(&post, FlushMode::All);
        ends(&post, &mut lines, KEY, 3);
        ends(&post, &mut lines, KEY, 4);
        assert_eq!(*post.gone.borrow(), [3, 4, 5]);
    }

    #[test]
    fn a_trial_takes_the_first_of_all_keys_and_one_at_a_time() {
        let (post, mut lines) = held();
        waits(&post, &mut lines, OTHER, 2);
        waits(&post, &mut lines, KEY, 1);
        lines.flush(&post, FlushMode::One(()));
        assert_eq!(*post.gone.borrow(), [1]);
        lines.flush(&post, FlushMode::One(()));
        assert_eq!(*post.gone.borrow(), [1, 2]);
        lines.flush(&post, FlushMode::One(()));
        assert_eq!((post.gone.borrow().len(), post.untried.get()), (2, 0));
        let (empty, mut lines) = held();
        lines.flush(&empty, FlushMode::One(()));
        assert_eq!(empty.untried.get(), 1, "the next that comes is the trial");
        assert!(!empty.held.get());
    }

    #[test]
    fn a_drain_is_reported_once_when_the_last_in_flight_is_over() {
        let (post, mut lines) = held();
        post.count_in();
        lines.drain(&post, 1);
        lines.drain(&post, 2);
        assert!(post.drained.borrow().is_empty());
        post.in_flight.set(0);
        lines.check_empty(&post);
        lines.check_empty(&post);
        assert_eq!(*post.drained.borrow(), [2], "the later order alone");
    }

    #[test]
    fn who_gives_up_leaves_its_place_and_who_was_told_to_go_cannot() {
        let (post, mut lines) = held();
        waits(&post, &mut lines, KEY, 1);
        waits(&post, &mut lines, KEY, 2);
        assert_eq!(lines.give_up(&post, KEY, ticket(1)), Some(1));
        lines.flush(&post, FlushMode::All);
        assert_eq!(*post.gone.borrow(), [2]);
        assert_eq!(lines.give_up(&post, KEY, ticket(2)), None);
    }

    /// Virtual time in milliseconds. Requests of one key arrive every 5 ms and take 40 to 200 ms, so that 24 are in flight on
    /// average. They are held for 2 s.
    #[test]
    fn a_key_with_many_requests_in_flight_leaves_the_queue_within_one_response_time_of_the_flush() {
        const FLUSH: u32 = 2_000;
        const SLOWEST: u32 = 200;
        let takes = |n: u32| 40 + n.wrapping_mul(2_654_435_761) % (SLOWEST - 40 + 1);
        let (post, mut lines) = held();
        let mut sent_at = std::collections::BTreeMap::new();
        let (mut passed_from, mut next) = (None, 0);
        for now in 0..20_000 {
            let over = |(n, at): (&u32, &u32)| (at + takes(*n) == now).then_some(*n);
            let over: Vec<u32> = sent_at.iter().filter_map(over).collect();
            for n in over {
                ends(&post, &mut lines, KEY, n);
            }
            if now == FLUSH {
                lines.flush(&post, FlushMode::All);
            }
            if now.is_multiple_of(5) {
                if lines.passes(KEY) {
                    passed_from.get_or_insert(now);
                    post.count_in();
                    post.gone.borrow_mut().push(next);
                } else {
                    waits(&post, &mut lines, KEY, next);
                }
                next += 1;
            }
            for n in post.gone.borrow().iter() {
                sent_at.entry(*n).or_insert(now);
            }
        }
        let passed_from = passed_from.expect("the key leaves the queue");
        assert!(passed_from <= FLUSH + SLOWEST + 5, "{passed_from}");
        assert!(post.gone.borrow().is_sorted(), "sent in order of arrival");
        assert_eq!((lines.held(), post.held.get()), ((0, 0), false));
    }
}
