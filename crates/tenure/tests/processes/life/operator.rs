//! An operator's hands, and what the records say of nodes.

use std::time::{Duration, Instant};

use tenure::{AdminClient, AdminError, NodeMode, NodeName};
use tenure_core::record::NodeRecord;

use crate::test_cluster::TestCluster;
use crate::worker::CLUSTER;

/// How long anything may take that is bound to happen.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Does something as an operator would.
pub(crate) fn admin<T>(
    site: &TestCluster,
    act: impl AsyncFnOnce(AdminClient) -> Result<T, AdminError>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let admin = AdminClient::open(site.store(), CLUSTER)
            .await
            .expect("the store");
        match act(admin).await {
            Ok(done) => done,
            Err(error) => panic!("{error}\n{}", site.scene()),
        }
    })
}

pub(crate) fn names() -> (NodeName, NodeName) {
    let name = |name| NodeName::new(name).expect("a name");
    (name("a"), name("b"))
}

/// What is recorded of a node.
pub(crate) fn node_record(site: &TestCluster, node: &str) -> NodeRecord {
    let name = NodeName::new(node).expect("a name");
    let snapshot = admin(site, async |admin: AdminClient| admin.snapshot().await);
    snapshot.view.nodes.get(&name).expect("a record").clone()
}

pub(crate) fn mode(site: &TestCluster, node: &str) -> NodeMode {
    node_record(site, node).mode
}

/// Waits until a node's mode is this.
pub(crate) fn until_mode(site: &TestCluster, node: &str, wanted: &NodeMode) {
    let begun = Instant::now();
    while mode(site, node) != *wanted {
        assert!(
            begun.elapsed() < TIMEOUT,
            "never {wanted}\n{}",
            site.scene()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
