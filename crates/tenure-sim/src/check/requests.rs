//! P4: what becomes of requests. In a planned move none fails and none is lost; each is done once at most, goes at most one
//! hop too far, and held requests of one router and key are sent in order of arrival, the first of them alone until it is
//! answered (D11).
//!
//! What a client was told is compared with what it reads afterwards (P3).

use std::collections::{BTreeMap, VecDeque};

use tenure_core::router::HoldReason;

use super::{CheckResult, Violation};
use crate::clients::Req;
use crate::clock::{Instant, MS};
use crate::event_queue::Pid;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The node that it was in died.
    Died,
    /// Its work was cut off, or outlived by a stay that had drained.
    Cut { drained: bool },
    /// It, or its answer, was lost on the way.
    Lost,
    /// It was held for as long as may be.
    TooLong(HoldReason),
    /// The router held as much as it may; whether that is so.
    Full(bool),
    /// The router sent it without knowing where to.
    NoRoute,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) well: bool,
    pub(crate) held: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
    UnderWay,
    Waiting,
    Over,
}

#[derive(Clone, Debug)]
struct Book {
    came: Instant,
    line: (Pid, u64),
    is: RequestStage,
    /// Whether it ever had to wait.
    waited: bool,
    /// Whether it was sent at the instant of an answer to another held request of its key. Others need not wait for its end.
    follows: bool,
    admitted: bool,
    hops: u32,
}

/// Checker of requests, with the books of all of them.
#[derive(Debug, Default)]
pub(crate) struct RequestChecker {
    books: Vec<Book>,
    /// Requests of one router and key that are not over, in order of arrival.
    lines: BTreeMap<(Pid, u64), VecDeque<Req>>,
    /// Time of the last answer to a request of one router and key that had waited.
    answers: BTreeMap<(Pid, u64), Instant>,
    /// How long each that came from then on and was answered had been held, if that is wanted.
    holds: Option<(Instant, Vec<u64>)>,
}

impl RequestChecker {
    pub(crate) fn came(&mut self, at: Instant, req: Req, router: Pid, key: u64) {
        debug_assert_eq!(req, self.books.len());
        let line = (router, key);
        self.books.push(Book {
            came: at,
            line,
            is: RequestStage::UnderWay,
            waited: false,
            follows: false,
            admitted: false,
            hops: 0,
        });
        self.lines.entry(line).or_default().push_back(req);
    }

    pub(crate) fn waits(&mut self, req: Req) {
        let book = &mut self.books[req];
        (book.is, book.waited) = (RequestStage::Waiting, true);
    }

    /// When a request came.
    pub(crate) fn came_at(&self, req: Req) -> Instant {
        self.books[req].came
    }

    /// A request leaves its router: no earlier one of its key waits, and none that has waited is the first under way.
    pub(crate) fn sent(&mut self, at: Instant, req: Req) -> CheckResult {
        let line = self.books[req].line;
        let before = self.lines.get(&line).into_iter().flatten();
        for other in before.take_while(|other| **other < req) {
            let book = &self.books[*other];
            let left_behind = match book.is {
                RequestStage::Waiting => true,
                RequestStage::UnderWay => book.waited && !book.follows,
                RequestStage::Over => false,
            };
            if left_behind {
                let what = format!(
                    "request {req} overtakes request {other} of the same key at router process {}",
                    line.0
                );
                return Err(Violation::new("D11", at, what));
            }
        }
        let follows = self.answers.get(&line) == Some(&at);
        let book = &mut self.books[req];
        (book.is, book.follows) = (RequestStage::UnderWay, follows);
        Ok(())
    }

    /// A request goes where a refusal sent it.
    pub(crate) fn followed(&mut self, at: Instant, req: Req) -> CheckResult {
        let book = &mut self.books[req];
        book.hops += 1;
        if book.hops > 1 {
            let what = format!("request {req} follows a second refusal");
            return Err(Violation::new("P4", at, what));
        }
        Ok(())
    }

    /// A node lets a request in.
    pub(crate) fn admitted(&mut self, at: Instant, req: Req) -> CheckResult {
        let book = &mut self.books[req];
        if std::mem::replace(&mut book.admitted, true) {
            let what = format!("request {req} is done a second time");
            return Err(Violation::new("P4", at, what));
        }
        Ok(())
    }

    /// Whether a node has let it in, and its router has heard nothing yet.
    pub(crate) fn is_in(&self, req: Req) -> bool {
        self.books[req].admitted && self.books[req].is != RequestStage::Over
    }

    /// A request reads: it sees everything that its client knew to be acknowledged when it came.
    pub(crate) fn reads(
        &self,
        at: Instant,
        req: Req,
        shard: usize,
        known: u64,
        knows: u64,
        demanded: bool,
    ) -> CheckResult {
        if known >= knows || !demanded {
            return Ok(());
        }
        let what = format!(
            "request {req} reads shard {shard} and finds {known} writes, but {knows} were acknowledged before it came"
        );
        Err(Violation::new("P3", at, what))
    }

    /// Begins to write down for how long requests are held that come from then on.
    pub(crate) fn listen_from(&mut self, from: Instant) {
        self.holds = Some((from, Vec::new()));
    }

    /// How long those were held that were answered.
    pub(crate) fn holds(&self) -> &[u64] {
        self.holds.as_ref().map_or(&[], |(_, holds)| holds)
    }

    pub(crate) fn answered(&mut self, at: Instant, req: Req, sent: Sent) {
        if self.books[req].waited {
            self.answers.insert(self.books[req].line, at);
        }
        if let Some((from, holds)) = &mut self.holds
            && sent.well
            && self.books[req].came >= *from
        {
            holds.push(sent.held);
        }
        self.is_over(req);
    }

    pub(crate) fn failed(
        &mut self,
        at: Instant,
        req: Req,
        failure: Failure,
        planned: bool,
        at_rest: bool,
    ) -> CheckResult {
        self.is_over(req);
        let never = matches!(
            failure,
            Failure::NoRoute | Failure::Full(false) | Failure::Cut { drained: true }
        );
        if !planned && !at_rest && !never {
            return Ok(());
        }
        let when = match (planned, at_rest) {
            (true, _) => "although nothing but planned moves happened",
            (_, true) => "at rest",
            _ => "for no reason",
        };
        let what = format!("request {req} fails {when}: {failure:?}");
        Err(Violation::new("P4", at, what))
    }

    /// Its router is gone, and with it whoever would hear of it.
    pub(crate) fn forgotten(&mut self, req: Req) {
        self.is_over(req);
    }

    fn is_over(&mut self, req: Req) {
        let book = &mut self.books[req];
        book.is = RequestStage::Over;
        if let Some(line) = self.lines.get_mut(&book.line) {
            line.retain(|other| *other != req);
        }
    }

    /// Whether any request waits.
    pub(crate) fn anything_waits(&self) -> bool {
        let mut open = self.lines.values().flatten();
        open.any(|req| self.books[*req].is == RequestStage::Waiting)
    }

    /// Nothing is held for ever: what came before this instant is over.
    pub(crate) fn end(&self, at: Instant, before: Instant) -> CheckResult {
        for (line, open) in &self.lines {
            let old = open.front().filter(|req| self.books[**req].came < before);
            if let Some(req) = old {
                let book = &self.books[*req];
                let what = format!(
                    "request {req}, {} at router process {}, is not answered after {} ms",
                    if book.is == RequestStage::Waiting {
                        "waiting"
                    } else {
                        "under way"
                    },
                    line.0,
                    (at - book.came) / MS
                );
                return Err(Violation::new("P4", at, what));
            }
        }
        Ok(())
    }
}
