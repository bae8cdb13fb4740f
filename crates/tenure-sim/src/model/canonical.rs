//! Which states are the same: times by their distance from now, counters by their order, and nothing else left out that
//! a machine decides by.
//!
//! The machines are values that hash; this reads what they hash, word by word, and knows some words by their size: every
//! counter begins at a number of its own (see [`base`]), so that a time is never taken for a version. A word that is not
//! recognised is kept as it is. A machine that grows a field therefore never makes two states equal that are not; at worst
//! it makes equal ones differ, and the state space larger.
//!
//! Left out are: the `rev` of a record (its mark says which write it was; where there are routers, which compare what they know
//! by it, that of the shard's record counts by its order) and the mark of a key where it is that of the value seen; since when a value has been known, unless it is that of a session whose end is not proven; how often a session
//! was renewed; and the changes of owner that a shard's record remembers for people. Beforehand each machine leaves out what it
//! can no longer decide by ([`tenure_core::node::Node::essence`]).

use std::hash::{Hash, Hasher};

use tenure_core::record::EndReason;

/// Where each kind of number begins.
pub(crate) mod base {
    pub(crate) const TIMES: u64 = 1 << 50;
    pub(crate) const VERSIONS: u64 = 1 << 52;
    pub(crate) const NONCES: u64 = 1 << 54;
    pub(crate) const OPS: u64 = 1 << 55;
    pub(crate) const RUNS: u64 = 1 << 56;
    pub(crate) const HOLDS: u64 = 1 << 57;
    pub(super) const SPAN: u64 = 1 << 40;
    pub(super) const EPOCHS: std::ops::Range<u64> = 1 << 32..1 << 40;
    /// Numbers of moves are drawn, 53 bits each; nothing else is so large and none of the above. One in some thousands is
    /// smaller or falls among the others, and is kept as it is or taken for one of them: then equal states differ.
    pub(super) const MOVES: std::ops::Range<u64> = 1 << 42..1 << 53;
}

/// A line of a story with small numbers: counters as if they had begun at zero.
pub(crate) fn without_bases(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = &rest[begin..];
        let len = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        let number = &digits[..len];
        out.push_str(&rest[..begin]);
        let known = [base::VERSIONS, base::NONCES, base::OPS, base::RUNS];
        match number.parse::<u64>() {
            Ok(n) if n >= base::VERSIONS => {
                let base = known.into_iter().find(|base| within(n, *base)).unwrap_or(0);
                out.push_str(&(n - base).to_string());
            }
            _ => out.push_str(number),
        }
        rest = &digits[len..];
    }
    out.push_str(rest);
    out
}

/// How [`EndReason::Missing`] hashes.
const UNPROVEN: isize = EndReason::Missing as isize;

/// Token of a state: one recognised word of what a machine hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateToken {
    Raw(u64),
    Time(u64),
    Version(u64),
    Nonce(u128, u64),
    Session(u128),
    Op(u64),
    Run(u64),
    Epoch(u64),
    Move(u64),
    /// Which of the values of the shard's record.
    Rev(u64),
    /// A router's count of holds.
    Hold(u64),
}

/// What is made of the revs of the shard's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revs {
    /// Nobody asks for them.
    LeftOut,
    /// There are routers.
    Kept,
    /// This is a router: its marks have them too.
    InMarks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    U8(u8),
    U32(u32),
    U64(u64),
    U128(u128),
    Size(usize),
    Tag(isize),
    Bytes(u64),
}

/// A hasher that keeps what it is told.
#[derive(Debug, Default)]
struct Recorder(Vec<Word>);

impl Hasher for Recorder {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, bytes: &[u8]) {
        let (numbers, rest) = bytes.as_chunks();
        let versions = numbers.iter().map(|n| u64::from_ne_bytes(*n));
        if rest.is_empty()
            && !numbers.is_empty()
            && versions.clone().all(|n| within(n, base::VERSIONS))
        {
            return self.0.extend(versions.map(Word::U64));
        }
        let mut print = fold(rest.len() as u64, numbers.len() as u64);
        for part in bytes.chunks(8) {
            let n = part.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
            print = fold(print, n);
        }
        self.0.push(Word::Bytes(print));
    }
    fn write_u8(&mut self, n: u8) {
        self.0.push(Word::U8(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.0.push(Word::U32(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0.push(Word::U64(n));
    }
    fn write_u128(&mut self, n: u128) {
        self.0.push(Word::U128(n));
    }
    fn write_usize(&mut self, n: usize) {
        self.0.push(Word::Size(n));
    }
    fn write_isize(&mut self, n: isize) {
        self.0.push(Word::Tag(n));
    }
}

/// What a value hashes, recognised.
pub(crate) fn toks(value: &impl Hash, revs: Revs, out: &mut Vec<StateToken>) {
    let mut recorder = Recorder(Vec::with_capacity(512));
    value.hash(&mut recorder);
    let words = recorder.0;
    let mut at = 0;
    let mut seen = None;
    while at < words.len() {
        at += recognise(&words[at..], revs, &mut seen, out);
    }
}

fn within(n: u64, base: u64) -> bool {
    (base..base + base::SPAN).contains(&n)
}

fn is_nonce(n: u64) -> bool {
    within(n, base::NONCES)
}

/// A record whose mark was not met yet.
#[derive(Clone, Copy, Debug)]
struct Record {
    rev: u64,
    /// Since when it has been known decides something: it is a session that may be live.
    dated: bool,
}

/// Whether what follows the head of a record is that of a session which is live, or whose end is not proven.
fn is_dated(rest: &[Word]) -> bool {
    match rest {
        [Word::Tag(0), Word::U8(_), ..] => true,
        [Word::Tag(1), Word::Tag(reason), Word::U128(_), ..] => *reason == UNPROVEN,
        _ => false,
    }
}

/// Takes one thing off the front; says how many words it was.
fn recognise(
    words: &[Word],
    revs: Revs,
    seen: &mut Option<Record>,
    out: &mut Vec<StateToken>,
) -> usize {
    match *words {
        // How new what a router knows is.
        [Word::U64(e), Word::U64(rev), ..]
            if revs == Revs::InMarks && base::EPOCHS.contains(&e) =>
        {
            out.extend([StateToken::Epoch(e), StateToken::Rev(rev)]);
            2
        }
        // The head of a record.
        [
            Word::U32(1),
            Word::U64(r),
            Word::U128(writer),
            Word::U64(n),
            ref rest @ ..,
        ] if is_nonce(n) => {
            *seen = Some(Record {
                rev: r,
                dated: is_dated(rest),
            });
            let is_shard = matches!(rest, [Word::U64(e), ..] if base::EPOCHS.contains(e));
            if is_shard && revs != Revs::LeftOut {
                out.push(StateToken::Rev(r));
            }
            out.push(StateToken::Nonce(writer, n));
            4
        }
        [Word::U128(writer), Word::U64(n), ..] if is_nonce(n) => {
            out.push(StateToken::Nonce(writer, n));
            2
        }
        // The ttl of a session, how often it was renewed, the cluster's boot, the format that it reads.
        [
            Word::U64(0),
            Word::U32(ttl),
            Word::U64(_),
            Word::U64(boot),
            Word::U32(1),
            ..,
        ] => {
            out.extend([StateToken::Raw(u64::from(ttl)), StateToken::Raw(boot)]);
            5
        }
        // When a value was seen, and the mark of its key.
        [Word::U64(t), Word::U64(high), ..]
            if within(t, base::TIMES) && seen.is_some_and(|record| record.rev == high) =>
        {
            if seen.take().is_some_and(|record| record.dated) {
                out.push(StateToken::Time(t));
            }
            2
        }
        [Word::Size(len), Word::U64(e), ..] if len > 0 && base::EPOCHS.contains(&e) => {
            history(words, len).unwrap_or_else(|| {
                out.push(StateToken::Raw(len as u64));
                1
            })
        }
        [word, ..] => {
            out.push(single(word));
            1
        }
        [] => 0,
    }
}

/// How many words the remembered changes of a shard's owner are, if that is what this is.
fn history(words: &[Word], len: usize) -> Option<usize> {
    let mut at = 1;
    for _ in 0..len {
        matches!(words.get(at)?, Word::U64(e) if base::EPOCHS.contains(e)).then_some(())?;
        at += 1;
        for _ in 0..2 {
            at += match words.get(at)? {
                Word::Tag(0) => 1,
                Word::Tag(1) => 3,
                _ => return None,
            };
        }
        let rest = matches!(words.get(at..at + 2)?, [Word::Tag(_), Word::U128(_)]);
        rest.then_some(())?;
        at += 2;
    }
    Some(at)
}

fn single(word: Word) -> StateToken {
    match word {
        Word::U64(n) if within(n, base::TIMES) => StateToken::Time(n),
        Word::U64(n) if within(n, base::VERSIONS) => StateToken::Version(n),
        Word::U64(n) if within(n, base::OPS) => StateToken::Op(n),
        Word::U64(n) if within(n, base::RUNS) => StateToken::Run(n),
        Word::U64(n) if within(n, base::HOLDS) => StateToken::Hold(n),
        Word::U64(n) if base::EPOCHS.contains(&n) => StateToken::Epoch(n),
        Word::U64(n) if base::MOVES.contains(&n) => StateToken::Move(n),
        // The count itself is above every mark that was made.
        Word::U64(n) if is_nonce(n) => StateToken::Raw(0),
        Word::U128(n) => StateToken::Session(n),
        Word::U8(n) => StateToken::Raw(u64::from(n)),
        Word::U32(n) => StateToken::Raw(u64::from(n)),
        Word::U64(n) | Word::Bytes(n) => StateToken::Raw(n),
        Word::Size(n) => StateToken::Raw(n as u64),
        Word::Tag(n) => StateToken::Raw(n as u64),
    }
}

/// A state in words, on the way to its hash. Words of one part share a clock and counters.
#[derive(Debug)]
pub(crate) struct Words {
    parts: Vec<Part>,
    toks: Vec<StateToken>,
    pub(crate) revs: Revs,
}

#[derive(Debug)]
struct Part {
    /// The first word of the next part.
    end: usize,
    /// What the clock of this part shows now.
    now: u64,
    /// Older than this is old.
    memory: u64,
    ops: Vec<u64>,
    runs: Vec<u64>,
    holds: Vec<u64>,
}

impl Words {
    pub(crate) fn new(revs: Revs) -> Self {
        Self {
            parts: Vec::new(),
            toks: Vec::new(),
            revs,
        }
    }

    pub(crate) fn raw(&mut self, n: u64) {
        self.toks.push(StateToken::Raw(n));
    }

    pub(crate) fn add(&mut self, value: &impl Hash) {
        toks(value, self.revs, &mut self.toks);
    }

    /// Adds what a router knows.
    pub(crate) fn add_marks(&mut self, value: &impl Hash) {
        toks(value, Revs::InMarks, &mut self.toks);
    }

    pub(crate) fn extend(&mut self, toks: &[StateToken]) {
        self.toks.extend_from_slice(toks);
    }

    /// Ends a part.
    pub(crate) fn part(&mut self, now: u64, memory: u64) {
        let begin = self.parts.last().map_or(0, |part| part.end);
        let (mut ops, mut runs, mut holds) = (Vec::new(), Vec::new(), Vec::new());
        for tok in &self.toks[begin..] {
            match tok {
                StateToken::Op(n) => ops.push(*n),
                StateToken::Run(n) => runs.push(*n),
                StateToken::Hold(n) => holds.push(*n),
                _ => {}
            }
        }
        for numbers in [&mut ops, &mut runs, &mut holds] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        let end = self.toks.len();
        self.parts.push(Part {
            end,
            now,
            memory,
            ops,
            runs,
            holds,
        });
    }

    /// The hash of all parts; epochs by their distance from this one.
    pub(crate) fn print(self, epoch: u64) -> u64 {
        let mut print = 0x9e37_79b9_7f4a_7c15;
        self.each(epoch, |kind, n| {
            print = fold(print, n.rotate_left(3) ^ kind);
        });
        print
    }

    /// All words as they count.
    fn each(mut self, epoch: u64, mut told: impl FnMut(u64, u64)) {
        self.part(0, 0);
        let (mut versions, mut nonces, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
        let mut revs = Vec::new();
        for tok in &self.toks {
            match *tok {
                StateToken::Version(n) => versions.push(n),
                StateToken::Nonce(w, n) => nonces.push((w, n)),
                StateToken::Session(n) => sessions.push(n),
                StateToken::Rev(n) => revs.push(n),
                _ => {}
            }
        }
        sessions.extend(nonces.iter().map(|(writer, _)| *writer));
        versions.sort_unstable();
        versions.dedup();
        nonces.sort_unstable();
        nonces.dedup();
        sessions.sort_unstable();
        sessions.dedup();
        revs.sort_unstable();
        revs.dedup();
        let (mut begin, mut moves) = (0, Vec::new());
        for part in &self.parts {
            told(9, part.end as u64 - begin as u64);
            for tok in &self.toks[begin..part.end] {
                let (kind, n) = match *tok {
                    StateToken::Raw(n) => (0, n),
                    StateToken::Time(t) => {
                        let ago = part.now.wrapping_sub(t) as i64;
                        (1, ago.min(part.memory as i64) as u64)
                    }
                    StateToken::Version(n) => (2, rank(&versions, &n)),
                    StateToken::Nonce(w, n) => {
                        (3, rank(&nonces, &(w, n)) << 32 | rank(&sessions, &w))
                    }
                    StateToken::Session(n) => (4, rank(&sessions, &n)),
                    StateToken::Op(n) => (5, rank(&part.ops, &n)),
                    StateToken::Run(n) => (6, rank(&part.runs, &n)),
                    StateToken::Epoch(n) => (7, n.wrapping_sub(epoch)),
                    StateToken::Move(n) => (8, place(&mut moves, n)),
                    StateToken::Rev(n) => (10, rank(&revs, &n)),
                    StateToken::Hold(n) => (11, rank(&part.holds, &n)),
                };
                told(kind, n);
            }
            begin = part.end;
        }
    }
}

fn fold(print: u64, n: u64) -> u64 {
    let wide = u128::from(print ^ n) * 0xa076_1d64_78bd_642f_u128;
    (wide as u64 ^ (wide >> 64) as u64)
        .rotate_left(23)
        .wrapping_add(n)
}

/// In which place a number came that means nothing but itself.
fn place(met: &mut Vec<u64>, n: u64) -> u64 {
    let place = met.iter().position(|known| *known == n);
    place.unwrap_or_else(|| {
        met.push(n);
        met.len() - 1
    }) as u64
}

fn rank<T: Ord>(sorted: &[T], n: &T) -> u64 {
    sorted.binary_search(n).unwrap_or_default() as u64
}
