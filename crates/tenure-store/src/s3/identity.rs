//! What makes this store this store: a number in an object of its own, made once.

use serde::{Deserialize, Serialize};

use super::S3Store;
use super::object_format::ObjectBody;
use super::requests::{WriteCondition, WriteOutcome};
use crate::error::StoreError;
use crate::machine_identity::random_uuid;

const NAME: &str = "identity";

#[derive(Serialize, Deserialize)]
struct Identity {
    identity: String,
    /// Whether ETags match with quotes around them: for those who only look and have not tried.
    quoted: bool,
}

impl S3Store {
    /// Reads the identity; nothing if there is none yet.
    async fn found(&self) -> Result<Option<Identity>, StoreError> {
        let object = self.names.own(NAME);
        let Some(read) = self.client.read(&object).await? else {
            return Ok(None);
        };
        let identity = match &read.body {
            ObjectBody::Value(value) => serde_json::from_slice(value).ok(),
            ObjectBody::Deleted => None,
        };
        let unreadable = || {
            StoreError::corrupt(
                &object,
                "the object holds no store identity; restore it from a backup",
            )
        };
        identity.ok_or_else(unreadable).map(Some)
    }

    /// The identity, by an answer of the service now.
    pub(super) async fn ask_identity(&self) -> Result<String, StoreError> {
        let found = self.found().await?;
        found
            .map(|found| found.identity)
            .ok_or_else(|| self.missing())
    }

    fn missing(&self) -> StoreError {
        StoreError::denied(format!(
            "there is no store at {}: object {:?} is missing in bucket {:?}; start a node, create a keyspace, or \
             correct the store URL",
            self.info.url,
            self.names.own(NAME),
            self.client.site.settings.bucket
        ))
    }

    /// Checks that there is a store; makes one if `make` says so, after the service was tried.
    pub(super) async fn ready(&self, make: bool) -> Result<(), StoreError> {
        let found = self.found().await?;
        if !make {
            let found = found.ok_or_else(|| self.missing())?;
            self.client.site.manners.set_quoted(found.quoted);
            return Ok(());
        }
        self.probe().await?;
        if found.is_none() {
            self.make().await?;
        }
        Ok(())
    }

    async fn make(&self) -> Result<(), StoreError> {
        let identity = Identity {
            identity: random_uuid(),
            quoted: self.client.site.manners.is_quoted(),
        };
        let value = serde_json::to_vec(&identity).expect("text can be written as JSON");
        let (object, body) = (self.names.own(NAME), self.nonces.value(&value));
        match self
            .client
            .write(&object, body, &WriteCondition::Absent)
            .await?
        {
            WriteOutcome::Won(_) => Ok(()),
            // Somebody else was quicker.
            WriteOutcome::Refused | WriteOutcome::Conflict => self.ask_identity().await.map(drop),
        }
    }
}
