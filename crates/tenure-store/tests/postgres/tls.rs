//! TLS: what each sslmode takes and refuses.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tenure_store::open;
use tenure_store::servers::postgres::Postgres;

use super::{create, refusal};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// A certificate for a name, and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        (cert.pem(), key.serialize_pem())
    }
}

/// A server with a certificate for `name`, and the files that clients may trust.
fn server(name: &str) -> (Postgres, String, String) {
    let (ours, others) = (Authority::new(), Authority::new());
    let postgres = Postgres::start();
    let (cert, key) = ours.sign(name);
    postgres.write("server.crt", &cert, 0o600);
    postgres.write("server.key", &key, 0o600);
    postgres.sql("ALTER SYSTEM SET ssl = on");
    postgres.set_access(
        "hostssl all all all trust\nlocal all all trust\nhostnossl all all all reject\n",
    );
    let file = |name: &str, authority: &Authority| {
        let path = postgres.dir().join(name);
        std::fs::write(&path, authority.0.pem()).unwrap();
        path.display().to_string()
    };
    let (ours, others) = (file("ours.crt", &ours), file("others.crt", &others));
    (postgres, ours, others)
}

async fn secure(url: &str) {
    let store = open(url).await.unwrap_or_else(|e| panic!("{url}: {e}"));
    create(&*store, &format!("k{}", url.len())).await;
    let findings = store.examine().await.unwrap();
    let encryption = findings.iter().find(|f| f.about == "encryption").unwrap();
    assert_eq!(encryption.found, "TLS");
}

#[tokio::test]
async fn each_mode_checks_what_it_says() {
    let (postgres, ours, others) = server("127.0.0.1");
    let url = |query: String| format!("{}?{query}", postgres.url());
    secure(&url(format!("sslmode=verify-full&sslrootcert={ours}"))).await;
    secure(&url(format!("sslmode=verify-ca&sslrootcert={ours}"))).await;
    secure(&url("sslmode=require".to_owned())).await;
    secure(&url("sslmode=prefer".to_owned())).await;
    for query in [
        format!("sslmode=verify-full&sslrootcert={others}"),
        format!("sslmode=verify-ca&sslrootcert={others}"),
        // Whoever names a root certificate wants it to be used.
        format!("sslmode=require&sslrootcert={others}"),
        "sslrootcert=system".to_owned(),
    ] {
        let reason = refusal(&url(query)).await;
        assert!(reason.contains("check sslmode and sslrootcert"), "{reason}");
    }
    let reason = refusal(&url("sslmode=disable".to_owned())).await;
    assert!(reason.contains("pg_hba.conf"), "{reason}");
    let reason = refusal(&url("sslmode=verify-full&sslrootcert=/nowhere".to_owned())).await;
    assert!(reason.contains("/nowhere"), "{reason}");
}

#[tokio::test]
async fn only_verify_full_cares_for_the_name() {
    let (postgres, ours, _) = server("db.example");
    let url = |mode: &str| format!("{}?sslmode={mode}&sslrootcert={ours}", postgres.url());
    secure(&url("verify-ca")).await;
    let reason = refusal(&url("verify-full")).await;
    assert!(reason.contains("not valid for"), "{reason}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_asked_for() {
    let postgres = Postgres::start();
    let reason = refusal(&format!("{}?sslmode=require", postgres.url())).await;
    assert!(reason.contains("does not support TLS"), "{reason}");
    open(&format!("{}?sslmode=prefer", postgres.url()))
        .await
        .unwrap();
}
