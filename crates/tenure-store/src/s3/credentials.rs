//! Where the key comes from that requests are signed with.
//!
//! In the order of the `aws` command: variables, a web identity, the profile's files, the container, the machine. Keys that expire are
//! fetched anew by `object_store`, whose part in this store it is.

use std::fmt;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AwsCredential, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpConnector};
use object_store::{ClientOptions, RetryConfig, StaticCredentialProvider};

use super::settings::Settings;
use crate::error::StoreError;

/// Gives the key that is good at the moment. Not printed.
#[derive(Clone)]
pub(super) struct Credentials(AwsCredentialProvider);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    pub(super) fn find(settings: &Settings, http: &reqwest::Client) -> Result<Self, StoreError> {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let own = !settings.key_is_named
            && (set("AWS_ACCESS_KEY_ID") || set("AWS_WEB_IDENTITY_TOKEN_FILE"));
        let keys = settings.profile.as_ref().and_then(|p| p.keys.clone());
        if let (false, Some(keys)) = (own, keys) {
            let credential = AwsCredential {
                key_id: keys.id,
                secret_key: keys.secret,
                token: keys.token,
            };
            return Ok(Self(Arc::new(StaticCredentialProvider::new(credential))));
        }
        let once = RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        };
        let found = AmazonS3Builder::from_env()
            .with_bucket_name(&settings.bucket)
            .with_region(&settings.region)
            .with_retry(once)
            .with_http_connector(Connector(http.clone()))
            .build();
        let found = found.map_err(|e| {
            StoreError::denied(format!("the AWS variables are invalid: {e}; set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"))
        })?;
        Ok(Self(found.credentials().clone()))
    }

    pub(super) async fn get(&self) -> Result<Arc<AwsCredential>, String> {
        self.0.get_credential().await.map_err(|e| e.to_string())
    }
}

/// Lets keys be fetched by the client that everything else goes through.
#[derive(Debug)]
struct Connector(reqwest::Client);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}
