//! Reading a script.

use std::time::Duration;

use tenure_core::record::{AssignedBy, MovePhase};
use tenure_core::settings::Settings;

use super::{Expectation, Script, ScriptFailure, Step};
use crate::clock::{Instant, MS, SEC};
use crate::fault::{Cut, Fault, Mode, Outage, Target};
use crate::phase_faults::{FaultEffect, FaultPhase, PhaseFault, Victim};
use crate::run_config::{Family, RunConfig};

/// Reads a script; the error names the line.
pub fn parse(text: &str) -> Result<Script, ScriptFailure> {
    let mut reader = Reader::default();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        reader
            .line(n + 1, &words)
            .map_err(|problem| ScriptFailure {
                line: n + 1,
                problem,
            })?;
    }
    reader.finish().map_err(|problem| ScriptFailure {
        line: text.lines().count(),
        problem,
    })
}

struct Reader {
    nodes: usize,
    routers: usize,
    catches_up: bool,
    duplicates: u32,
    ambush: Option<PhaseFault>,
    shards: u32,
    seed: u64,
    family: Family,
    mode: AssignedBy,
    settings: Settings,
    load: Option<u64>,
    drain: Option<u64>,
    starts: Vec<(usize, u64)>,
    rates: Vec<(usize, i64)>,
    faults: Vec<(Instant, Fault)>,
    steps: Vec<(Instant, usize, Step)>,
    end: Option<Instant>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            nodes: 3,
            routers: 0,
            catches_up: false,
            duplicates: 0,
            ambush: None,
            shards: 4,
            seed: 1,
            family: Family::Watched,
            mode: AssignedBy::Rendezvous,
            settings: Settings::default(),
            load: None,
            drain: None,
            starts: Vec::new(),
            rates: Vec::new(),
            faults: Vec::new(),
            steps: Vec::new(),
            end: None,
        }
    }
}

impl Reader {
    fn line(&mut self, n: usize, words: &[&str]) -> Result<(), String> {
        // Routers are numbered after the nodes.
        let words: Vec<String> = words.iter().map(|word| self.numbered(word)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["nodes", count] => self.nodes = number(count)?,
            ["routers", count] => self.routers = number(count)?,
            ["catches-up"] => self.catches_up = true,
            ["duplicates", permille] => self.duplicates = number(permille)?,
            ["phase-fault", at, victim, ref blow @ ..] => {
                self.ambush = Some(ambush(at, victim, blow)?);
            }
            ["router-hold-timeout", span] => {
                self.settings.router_hold_timeout = Duration::from_nanos(self::span(span)?)
            }
            ["load-timeout", span] => {
                self.settings.load_timeout = Duration::from_nanos(self::span(span)?)
            }
            ["shards", count] => self.shards = number(count)?,
            ["seed", seed] => self.seed = number(seed)?,
            ["ttl", span] => self.settings.ttl = Duration::from_nanos(self::span(span)?),
            ["store", "watched"] => self.family = Family::Watched,
            ["store", "leased"] => self.family = Family::Leased,
            ["store", "polled"] => self.family = Family::Polled,
            ["store", "one-machine"] => self.family = Family::OneMachine,
            ["assigned-by", mode] => self.mode = mode.parse()?,
            ["claim-watch", "off"] => self.settings.claim_watch_enabled = false,
            ["claim-retry-window", span] => {
                self.settings.claim_retry_window = Duration::from_nanos(self::span(span)?);
            }
            ["claim-retry-interval", span] => {
                self.settings.claim_retry_interval = Duration::from_nanos(self::span(span)?);
            }
            ["drain-timeout", span] => {
                self.settings.drain_timeout = Duration::from_nanos(self::span(span)?)
            }
            ["load", span] => self.load = Some(self::span(span)?),
            ["drain", span] => self.drain = Some(self::span(span)?),
            ["start", node, at] => self.starts.push((self::node(node)?, self::span(at)?)),
            ["clock", node, ppm] => self.rates.push((self::node(node)?, number(ppm)?)),
            ["end", at] => self.end = Some(span(at)?),
            ["at", at, "mark"] => self.steps.push((span(at)?, n, Step::Mark)),
            ["at", at, "expect", ref what @ ..] => {
                self.steps
                    .push((span(at)?, n, Step::Expect(expectation(what)?)));
            }
            ["at", at, ref what @ ..] => self.faults.push((span(at)?, fault(what)?)),
            _ => return Err(format!("cannot read {:?}", words.join(" "))),
        }
        Ok(())
    }

    /// The name of a router as that of the node of its number.
    fn numbered(&self, word: &str) -> String {
        let router = word.strip_prefix('r').and_then(|n| n.parse::<usize>().ok());
        match router {
            Some(n) => format!("n{}", self.nodes + n),
            None => word.to_owned(),
        }
    }

    fn finish(mut self) -> Result<Script, String> {
        let end = self.end.ok_or("the script has no `end TIME`")?;
        let timing = self.settings.check(Duration::ZERO).map_err(|problems| {
            problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        })?;
        self.faults.sort_by_key(|(at, _)| *at);
        self.steps.sort_by_key(|(at, n, _)| (*at, *n));
        let mut plan = RunConfig::quiet(self.seed, self.nodes, self.shards, timing);
        plan = plan.with_routers(self.routers);
        plan.catches_up = self.catches_up;
        plan.ambush = self.ambush;
        (plan.net.duplicate, plan.net.late_max) = (self.duplicates, SEC);
        plan.spec.settle_time = Some(Duration::from_millis(300));
        plan.spec.rejoin_after = Some(Duration::from_millis(300));
        plan.spec.cool_down = Some(Duration::from_millis(500));
        plan.family = self.family;
        plan.mode = self.mode;
        plan.faults = self.faults;
        if let Some(load) = self.load {
            plan.app.load = (load, load);
        }
        if let Some(drain) = self.drain {
            plan.app.drain = (drain, drain);
        }
        for (node, at) in self.starts {
            *plan
                .starts
                .get_mut(node)
                .ok_or("`start` names a node that does not exist")? = at;
        }
        for (node, ppm) in self.rates {
            plan.clocks
                .get_mut(node)
                .ok_or("`clock` names a node that does not exist")?
                .rate_ppm = ppm;
        }
        Ok(Script {
            plan,
            steps: self.steps,
            end,
        })
    }
}

fn ambush(at: &str, victim: &str, blow: &[&str]) -> Result<PhaseFault, String> {
    let at = match at {
        "warming" => FaultPhase::Phase(MovePhase::Warming),
        "freezing" => FaultPhase::Phase(MovePhase::Freezing),
        "sealed" => FaultPhase::Phase(MovePhase::Sealed),
        "taken" => FaultPhase::Taken,
        _ => {
            return Err(format!(
                "unknown phase {at:?}; known are warming, freezing, sealed and taken"
            ));
        }
    };
    let victim = match victim {
        "owner" => Victim::Owner,
        "target" => Victim::Target,
        "leader" => Victim::Leader,
        "router" => Victim::Router,
        _ => {
            return Err(format!(
                "unknown victim {victim:?}; known are owner, target, leader and router"
            ));
        }
    };
    let blow = match *blow {
        ["kill"] => FaultEffect::Kill,
        ["restart"] => FaultEffect::Restart,
        ["stop"] => FaultEffect::Stop,
        ["pause", percent] => FaultEffect::Pause(number(percent)?),
        ["cut", percent] => FaultEffect::Cut(number(percent)?),
        _ => return Err(format!("unknown blow {:?}", blow.join(" "))),
    };
    Ok(PhaseFault {
        at,
        victim,
        blow,
        times: 1,
    })
}

fn fault(words: &[&str]) -> Result<Fault, String> {
    Ok(match *words {
        ["pause", node, span] => Fault::Pause {
            node: self::node(node)?,
            span: self::span(span)?,
        },
        ["pause", node, "after", count, span] => Fault::PauseMidway {
            node: self::node(node)?,
            after: number(count)?,
            span: self::span(span)?,
        },
        ["kill", node] => Fault::Kill {
            node: self::node(node)?,
        },
        ["restart", node] => Fault::Restart {
            node: self::node(node)?,
            dir: true,
        },
        ["restart", node, "fresh"] => Fault::Restart {
            node: self::node(node)?,
            dir: false,
        },
        ["twin", node] => Fault::Twin {
            node: self::node(node)?,
            copy: false,
        },
        ["twin", node, "copied"] => Fault::Twin {
            node: self::node(node)?,
            copy: true,
        },
        ["stop", node] => Fault::Stop {
            node: self::node(node)?,
        },
        ["outage", how, span] => {
            let how = match how {
                "refuse" => Outage::Refuse,
                "hang" => Outage::Hang,
                "forget" => Outage::Forget,
                _ => {
                    return Err(format!(
                        "unknown outage {how:?}; known are refuse, hang and forget"
                    ));
                }
            };
            Fault::Outage {
                how,
                span: self::span(span)?,
            }
        }
        ["cut", node, how, span] => {
            let how = match how {
                "requests" => Cut::Requests,
                "replies" => Cut::Replies,
                "both" => Cut::Both,
                _ => {
                    return Err(format!(
                        "unknown cut {how:?}; known are requests, replies and both"
                    ));
                }
            };
            Fault::Cut {
                node: self::node(node)?,
                how,
                span: self::span(span)?,
            }
        }
        ["slow", node, "by", by, span] => Fault::Slow {
            node: self::node(node)?,
            by: self::span(by)?,
            span: self::span(span)?,
        },
        ["watch-breaks", node, span] => Fault::WatchBreaks {
            node: self::node(node)?,
            span: self::span(span)?,
        },
        ["watch-mute", node, span] => Fault::WatchMute {
            node: self::node(node)?,
            span: self::span(span)?,
        },
        ["wedge", node, span] => Fault::Wedge {
            node: self::node(node)?,
            span: self::span(span)?,
        },
        ["delete", ref target @ ..] => Fault::Delete {
            target: self::target(target)?,
        },
        ["corrupt", ref target @ ..] => Fault::Corrupt {
            target: self::target(target)?,
        },
        ["comes-back", ref target @ ..] => Fault::ComesBack {
            target: self::target(target)?,
        },
        ["mode", node, mode] => Fault::Mode {
            node: self::node(node)?,
            mode: match mode {
                "active" => Mode::Active,
                "draining" => Mode::Draining,
                "drained" => Mode::Drained,
                _ => {
                    return Err(format!(
                        "unknown mode {mode:?}; known are active, draining and drained"
                    ));
                }
            },
        },
        [
            "restore",
            back,
            "changes",
            ref how @ ..,
            "raised",
            "after",
            wait,
        ] => {
            let how = how.join(" ");
            let (other, under) = ("on another store", "under running processes");
            let known = ["", other, under, &format!("{other} {under}")];
            if !known.contains(&how.as_str()) {
                return Err(format!(
                    "{how:?}: a store is restored {other:?}, {under:?}, or both"
                ));
            }
            Fault::Restore {
                back: number(back)?,
                wait: self::span(wait)?,
                exchanged: how.contains(other),
                running: how.contains(under),
            }
        }
        _ => return Err(format!("unknown fault {:?}", words.join(" "))),
    })
}

fn target(words: &[&str]) -> Result<Target, String> {
    Ok(match *words {
        ["keyspace"] => Target::Keyspace,
        ["leader"] => Target::Leader,
        ["shard", n] => Target::Shard(number(n)?),
        ["session", node] => Target::Session(self::node(node)?),
        ["node", node] => Target::Node(self::node(node)?),
        _ => {
            return Err(format!(
                "unknown key {:?}; known are keyspace, leader, shard N, session NODE and node NODE",
                words.join(" ")
            ));
        }
    })
}

fn expectation(words: &[&str]) -> Result<Expectation, String> {
    Ok(match *words {
        ["served"] => Expectation::Served,
        ["answered", within] => Expectation::Answered(self::span(within)?),
        ["something", "held"] => Expectation::SomethingHeld,
        ["not", "served"] => Expectation::NotServed,
        ["same", "owners"] => Expectation::SameOwners,
        ["same", "epochs"] => Expectation::SameEpochs,
        ["higher", "epochs"] => Expectation::HigherEpochs,
        ["only", "shard", n, "higher"] => Expectation::OnlyHigher(number(n)?),
        ["broken", promise] => Expectation::Broken(promise.to_owned()),
        ["closed", node] => Expectation::Closed(self::node(node)?),
        ["open", node] => Expectation::Open(self::node(node)?),
        ["shard", n, "closed"] => Expectation::ShardClosed(number(n)?),
        ["shard", n, "open", node] => Expectation::ShardOpen(number(n)?, self::node(node)?),
        _ => return Err(format!("unknown expectation {:?}", words.join(" "))),
    })
}

fn node(word: &str) -> Result<usize, String> {
    word.strip_prefix('n')
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| format!("{word:?} is not a node, such as n0"))
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse()
        .map_err(|_| format!("{word:?} is not a number"))
}

/// Reads `250ms` or `2.5s`.
fn span(word: &str) -> Result<u64, String> {
    let bad = || format!("{word:?} is not a time, such as 250ms or 2.5s");
    let (text, unit) = match word.strip_suffix("ms") {
        Some(text) => (text, MS),
        None => (word.strip_suffix('s').ok_or_else(bad)?, SEC),
    };
    let value: f64 = text.parse().map_err(|_| bad())?;
    if !(0.0..=1e6).contains(&value) {
        return Err(bad());
    }
    Ok((value * unit as f64).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_says_what_it_means() {
        let script = parse(
            "nodes 2\nshards 3\nttl 2s # short\nat 1.5s kill n1\nat 2s expect served\nend 3s\n",
        )
        .unwrap();
        assert_eq!(script.plan.faults, [(1500 * MS, Fault::Kill { node: 1 })]);
        assert_eq!(
            script.steps,
            [(2 * SEC, 5, Step::Expect(Expectation::Served))]
        );
        assert_eq!(
            (script.plan.nodes, script.plan.shards, script.end),
            (2, 3, 3 * SEC)
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, line) in [
            ("nodes 2\nat 1s explode n1\nend 2s", 2),
            ("at soon kill n1", 1),
            ("nodes 1", 1),
            ("ttl 5\nend 1s", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
