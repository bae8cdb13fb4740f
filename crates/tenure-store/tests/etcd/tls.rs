//! Encrypted connections, with certificates on both sides.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tempfile::TempDir;
use tenure_store::servers::etcd::{Etcd, EtcdOptions, EtcdRelease, TlsFiles};
use tenure_store::{StoreError, open};

use super::{create, denial};

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

fn guarded(papers: &Papers) -> Etcd {
    let tls = TlsFiles {
        ca: papers.path("ca.pem"),
        cert: papers.path("server.pem"),
        key: papers.path("server.key"),
    };
    EtcdOptions::new(EtcdRelease::V3_4).tls(tls).start()
}

#[tokio::test]
async fn a_server_is_reached_by_tls_with_a_certificate_of_ones_own() {
    let papers = Papers::new();
    let etcd = guarded(&papers);
    let options = [
        papers.option("ca", "ca.pem"),
        papers.option("cert", "client.pem"),
        papers.option("key", "client.key"),
    ];
    let url = format!("etcds://{}/shop?{}", etcd.endpoint(0), options.join("&"));
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
    let etcd = guarded(&papers);
    let others = Papers::new();
    let wrong = format!(
        "etcds://{}/shop?{}",
        etcd.endpoint(0),
        others.option("ca", "ca.pem")
    );
    let reason = denial(open(&wrong).await);
    assert!(reason.contains("ETCDCTL_CACERT"), "{reason}");

    // Without a certificate the server hangs up.
    let bare = format!(
        "etcds://{}/shop?{}",
        etcd.endpoint(0),
        papers.option("ca", "ca.pem")
    );
    // Its reason is lost where the connection is reset before it was read.
    let mut reason = String::new();
    for _ in 0..50 {
        let refused = match open(&bare).await {
            Ok(store) => store.get("k").await.map(|_| ()),
            Err(e) => Err(e),
        };
        reason = refused.unwrap_err().to_string();
        if reason.contains("cert=") {
            break;
        }
    }
    assert!(reason.contains("cert="), "{reason}");

    // Without TLS altogether.
    let plain = format!("etcd://{}/shop", etcd.endpoint(0));
    let e = open(&plain).await.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");
    assert!(e.to_string().contains("etcds://"), "{e}");
}
