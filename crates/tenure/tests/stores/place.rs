//! A server, and nodes that come to it through proxies.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_store::servers::proxy::TcpProxy;

use crate::backend::Backend;
use crate::logs::Holders;
use crate::process::Process;
use crate::test_cluster::TestCluster;
use crate::worker::Own;

/// How many shards there are, unless a scenario is about their number.
pub(crate) const SHARDS: u32 = 8;

/// A running cluster. Nodes go before the server.
pub(crate) struct Place<B> {
    pub(crate) nodes: BTreeMap<&'static str, Process>,
    pub(crate) proxies: BTreeMap<&'static str, TcpProxy>,
    pub(crate) server: B,
    pub(crate) site: TestCluster,
}

impl<B: Backend> Place<B> {
    /// Starts the server and two nodes, and waits until each has its share.
    pub(crate) fn of_two() -> (Self, Holders) {
        Self::settled(&["a", "b"], SHARDS)
    }

    /// Starts the server and these nodes, and waits until each has its share.
    pub(crate) fn settled(names: &[&'static str], shards: u32) -> (Self, Holders) {
        let server = B::launch();
        Self::settled_on(server, names, shards, B::url)
    }

    /// The same on a server that runs, by these URLs.
    pub(crate) fn settled_on(
        server: B,
        names: &[&'static str],
        shards: u32,
        url: impl Fn(&B, u16) -> String,
    ) -> (Self, Holders) {
        let site = TestCluster::new(shards).with_ttl(B::TTL);
        Self::settled_as(server, site, names, url, &Own::default())
    }

    /// The same at this site, with nodes that say this of themselves.
    pub(crate) fn settled_as(
        server: B,
        site: TestCluster,
        names: &[&'static str],
        url: impl Fn(&B, u16) -> String,
        own: &Own,
    ) -> (Self, Holders) {
        let proxy = |name: &&'static str| (*name, TcpProxy::start(server.address()));
        let proxies: BTreeMap<_, _> = names.iter().map(proxy).collect();
        let start = |(name, proxy): (&&'static str, &TcpProxy)| {
            let url = url(&server, proxy.port());
            (*name, site.launch_as(name, name, &url, own.clone()))
        };
        let nodes = proxies.iter().map(start).collect();
        let before = site.await_settled(names);
        let place = Self {
            nodes,
            proxies,
            server,
            site,
        };
        (place, before)
    }

    /// Waits until every shard is worked on later than `since`.
    pub(crate) fn await_work_after(&self, since: u64) -> Holders {
        let fresh = |held: &Holders| held.0.values().all(|h| h.last > since);
        self.site.await_served("everything is served again", fresh)
    }

    /// How long anybody worked on after `since`, as far as the logs tell by now.
    pub(crate) fn worked_on_after(&self, since: u64, session: Option<&str>) -> Duration {
        let last = self.site.look(|logs| {
            let of = |l: &&crate::logs::Line| session.is_none_or(|s| s == l.session);
            logs.lines.iter().filter(of).map(|l| l.t).max()
        });
        crate::test_cluster::between(since, last.unwrap_or_default())
    }

    /// Owners, sessions and epochs are what they were, and stay it.
    pub(crate) fn assert_same_owners(&self, before: &Holders) -> Holders {
        let names: Vec<&str> = self.nodes.keys().copied().collect();
        let after = self.site.await_settled(&names);
        let (is, was) = (after.owners(), before.owners());
        assert_eq!(is, was, "{}", self.site.scene());
        after
    }
}

/// Starts the server, and a site whose nodes connect to it without a proxy.
pub(crate) fn direct<B: Backend>(shards: u32) -> (B, TestCluster) {
    let server = B::launch();
    let url = server.url(server.address().port());
    let site = TestCluster::new(shards).with_ttl(B::TTL).with_store(url);
    (server, site)
}

/// Prints a measured time in the words of the table in `docs/stores/faults.md`.
pub(crate) fn measured<B: Backend>(what: &str, took: Duration) {
    let of_ttl = took.div_duration_f64(B::TTL);
    println!(
        "measured {}: {what}: {took:.2?}, {of_ttl:.2} × ttl",
        B::NAME
    );
}
