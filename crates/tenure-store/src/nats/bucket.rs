//! The bucket: made if it is absent, refused if it could lose keys, and never trusted to a leader that stands alone.

use std::time::Duration;

use serde_json::json;

use super::NatsStore;
use super::call::NatsRequest;
use super::errors::{self, CallContext};
use super::jetstream::{self, StreamConfig, StreamInfo};
use crate::error::StoreError;

/// A leader that has not heard from a majority for this long may have been replaced: others stand for election after four
/// seconds without it. In health it hears from each every second.
const IN_TOUCH: Duration = Duration::from_secs(3);

impl NatsStore {
    /// Sees to it that there is a bucket that we can rely on.
    pub(super) async fn ready(&self, make: bool) -> Result<(), StoreError> {
        let info = match self.find().await? {
            Some(info) => info,
            None if make => self.make().await?,
            None => {
                let servers = self.client.cluster.settings.endpoints.join(", ");
                return Err(StoreError::denied(format!(
                    "NATS at {servers} has no bucket {:?}; check the name, or create it: start a node, create a keyspace, or \
                     run: tenure store init --store URL",
                    self.keys.bucket
                )));
            }
        };
        self.note_replicas(info.config.num_replicas);
        fit(&info.config, &self.keys.bucket, &self.keys.all())
    }

    async fn find(&self) -> Result<Option<StreamInfo>, StoreError> {
        let subject = jetstream::about("STREAM.INFO", &self.keys.stream);
        let question = NatsRequest::reads(subject.clone(), &json!({}));
        let (answer, link) = match self.client.ask_linked(question).await {
            Err(StoreError::Unavailable { .. }) if self.is_without_jetstream().await? => {
                let servers = self.client.cluster.settings.endpoints.join(", ");
                return Err(errors::disabled(&servers));
            }
            answer => answer?,
        };
        match answer {
            Ok(info) => Ok(Some(info)),
            Err(refusal) if refusal.is_no_stream() => Ok(None),
            Err(refusal) => {
                let about = CallContext {
                    endpoint: &link.endpoint,
                    subject: &subject,
                    writes: false,
                };
                Err(about.refused(&refusal))
            }
        }
    }

    /// Whether there is a server that has no JetStream and knows nobody who has.
    async fn is_without_jetstream(&self) -> Result<bool, StoreError> {
        let info = self.client.link().await?.client.server_info();
        Ok(!info.jetstream && info.cluster.is_none())
    }

    /// Makes the bucket as the `nats` command would, with reads by replicas switched off. Asked twice it is made once.
    async fn make(&self) -> Result<StreamInfo, StoreError> {
        let replicas = self.client.cluster.settings.replicas;
        let config = StreamConfig {
            name: self.keys.stream.clone(),
            subjects: vec![self.keys.all()],
            retention: "limits".to_owned(),
            storage: "file".to_owned(),
            discard: "new".to_owned(),
            num_replicas: replicas,
            max_msgs_per_subject: 1,
            max_msgs: -1,
            max_bytes: -1,
            max_age: 0,
            allow_direct: false,
            allow_rollup_hdrs: true,
            deny_delete: true,
            ..StreamConfig::default()
        };
        let subject = jetstream::about("STREAM.CREATE", &self.keys.stream);
        // Whose answer is lost asks again: that does no harm.
        let question = NatsRequest::reads(subject.clone(), &config);
        let (answer, link) = self.client.ask_linked(question).await?;
        let refusal = match answer {
            Ok(info) => {
                tracing::info!(bucket = self.keys.bucket, replicas, "NATS bucket created");
                return Ok(info);
            }
            Err(refusal) => refusal,
        };
        if refusal.is_name_taken()
            && let Some(info) = self.find().await?
        {
            return Ok(info);
        }
        let message = &refusal.description;
        if refusal.err_code == 10_074 || message.contains("peers") || message.contains("replicas") {
            return Err(StoreError::denied(format!(
                "NATS at {} cannot keep {replicas} copies of bucket {:?}: {message}; set replicas= in the store URL, or start \
                 more servers",
                link.endpoint, self.keys.bucket
            )));
        }
        let about = CallContext {
            endpoint: &link.endpoint,
            subject: &subject,
            // Nothing of ours can be in it yet.
            writes: false,
        };
        Err(about.refused(&refusal))
    }
}

/// Whether a bucket keeps what is written to it.
fn fit(config: &StreamConfig, bucket: &str, all: &str) -> Result<(), StoreError> {
    let limited = config.max_msgs > 0 || config.max_bytes > 0;
    let problem = if config.mirror.is_some() {
        "is a mirror, which cannot be written to; name the bucket that it mirrors"
    } else if config.sealed {
        "is sealed and rejects writes; name another"
    } else if !config.subjects.iter().any(|s| s == all) {
        "is not a key-value bucket; name another"
    } else if config.max_age > 0 {
        "expires keys; remove its ttl (nats stream edit --max-age=0), or name another"
    } else if config.retention != "limits" {
        "removes messages that were read; name another"
    } else if config.discard == "old" && limited {
        "removes old keys when it is full; set its discard policy to new, or name another"
    } else {
        return Ok(());
    };
    Err(StoreError::denied(format!(
        "NATS bucket {bucket:?} {problem}"
    )))
}

impl StreamInfo {
    /// Whether the leader that says this has lately heard from a majority. One that has not may be the leader no more, and
    /// what it knows may be the past.
    pub(super) fn in_touch(&self, bucket: &str) -> Result<(), StoreError> {
        let replicas = self.cluster.iter().flat_map(|peers| &peers.replicas);
        let (mut heard, mut all) = (1, 1);
        for replica in replicas {
            all += 1;
            let lately = u128::from(replica.active) < IN_TOUCH.as_nanos();
            heard += usize::from(lately && !replica.offline);
        }
        if heard * 2 > all {
            return Ok(());
        }
        Err(StoreError::unavailable(format!(
            "the leader of NATS bucket {bucket:?} has lost its majority: {heard} of {all} servers are connected, itself included"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::jetstream::{ClusterPeers, Replica, StreamState};
    use super::*;

    fn usual() -> StreamConfig {
        StreamConfig {
            subjects: vec!["$KV.b.>".to_owned()],
            retention: "limits".to_owned(),
            discard: "new".to_owned(),
            ..StreamConfig::default()
        }
    }

    fn refused(change: impl Fn(&mut StreamConfig)) -> String {
        let mut config = usual();
        change(&mut config);
        fit(&config, "b", "$KV.b.>").unwrap_err().to_string()
    }

    #[test]
    fn a_bucket_that_could_lose_keys_is_refused_with_the_way_out() {
        assert_eq!(fit(&usual(), "b", "$KV.b.>"), Ok(()));
        assert!(refused(|c| c.max_age = 1).contains("--max-age=0"));
        assert!(refused(|c| c.sealed = true).contains("sealed"));
        assert!(refused(|c| c.subjects.clear()).contains("not a key-value bucket"));
        assert!(
            refused(|c| c.retention = "workqueue".to_owned()).contains("messages that were read")
        );
        assert!(refused(|c| c.mirror = Some(json!({"name": "x"}))).contains("mirror"));
        let full = refused(|c| {
            c.discard = "old".to_owned();
            c.max_bytes = 1 << 20;
        });
        assert!(full.contains("discard policy"), "{full}");
    }

    #[test]
    fn a_leader_that_has_lost_the_majority_is_not_believed() {
        let replica = |active, offline| Replica {
            active,
            offline,
            ..Replica::default()
        };
        let info = |replicas: Vec<Replica>| StreamInfo {
            config: usual(),
            created: String::new(),
            state: StreamState::default(),
            cluster: Some(ClusterPeers { replicas }),
            ts: None,
            total: 0,
        };
        let second = 1_000_000_000;
        let (near, far) = (replica(second, false), replica(9 * second, false));
        assert_eq!(info(vec![]).in_touch("b"), Ok(()));
        assert_eq!(info(vec![near.clone(), far.clone()]).in_touch("b"), Ok(()));
        let off = replica(0, true);
        for lost in [vec![far.clone(), far], vec![off.clone(), off]] {
            let e = info(lost).in_touch("b").unwrap_err();
            assert!(e.to_string().contains("1 of 3"), "{e}");
        }
    }
}
