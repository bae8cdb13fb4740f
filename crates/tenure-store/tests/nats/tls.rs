//! Encrypted connections, with certificates on both sides.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tempfile::TempDir;
use tenure_store::servers::nats::{Nats, NatsOptions};
use tenure_store::{Store, StoreError, open};

use super::{bounded, create, denial};

/// An authority with one certificate for the server and one for a client.
struct Papers(TempDir);

impl Papers {
    fn new() -> Self {
        let papers = Self(tempfile::tempdir().unwrap());
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        let ca = params.self_signed(&key).unwrap();
        fs::write(papers.path("ca.pem"), ca.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let cert = params.signed_by(&key, &issuer).unwrap();
            fs::write(papers.path(&format!("{name}.pem")), cert.pem()).unwrap();
            fs::write(papers.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        papers
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn option(&self, option: &str, name: &str) -> String {
        let path: &Path = &self.path(name);
        format!("{option}={}", path.display())
    }
}

fn guarded(papers: &Papers) -> Nats {
    let file = |name: &str| papers.path(name).display().to_string();
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        file("server.pem"),
        file("server.key"),
        file("ca.pem")
    );
    NatsOptions::new().more(&tls).start()
}

#[tokio::test]
async fn a_server_is_reached_by_tls_with_a_certificate_of_ones_own() {
    let papers = Papers::new();
    let nats = guarded(&papers);
    let options = [
        papers.option("ca", "ca.pem"),
        papers.option("cert", "client.pem"),
        papers.option("key", "client.key"),
    ];
    let url = format!("tls://{}/shop?{}", nats.endpoint(0), options.join("&"));
    let store = open(&url).await.unwrap();
    create(&*store, "k").await;
    let from = store.revision().await.unwrap();
    store.watch("", from).await.unwrap();
    let told = format!("{store:?} {:?}", store.info());
    assert!(!told.contains("client.key"), "{told}");
}

#[tokio::test]
async fn who_cannot_be_trusted_is_told_what_to_check() {
    let papers = Papers::new();
    let nats = guarded(&papers);
    let others = Papers::new();
    let wrong = format!(
        "tls://{}/shop?{}",
        nats.endpoint(0),
        others.option("ca", "ca.pem")
    );
    let reason = denial(bounded(open(&wrong)).await);
    assert!(reason.contains("NATS_CA"), "{reason}");

    // Without a certificate the server hangs up, at times before its reason was read.
    let bare = format!(
        "tls://{}/shop?{}",
        nats.endpoint(0),
        papers.option("ca", "ca.pem")
    );
    let e = bounded(open(&bare)).await.unwrap_err();
    let refused = matches!(
        e,
        StoreError::Unavailable { .. } | StoreError::Denied { .. }
    );
    assert!(refused, "{e:?}");
    assert!(e.to_string().contains(&nats.endpoint(0)), "{e}");
}

#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to_in_the_clear_where_tls_is_asked_for() {
    let papers = Papers::new();
    let nats = Nats::start();
    let url = format!(
        "tls://{}/shop?{}",
        nats.endpoint(0),
        papers.option("ca", "ca.pem")
    );
    let e: Result<std::sync::Arc<dyn Store>, StoreError> = bounded(open(&url)).await;
    e.unwrap_err();
}
