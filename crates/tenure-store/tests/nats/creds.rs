//! Users by credentials file, on a server that trusts an operator.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tenure_store::open;
use tenure_store::servers::nats::NatsOptions;

use super::{bounded, create, denial};

/// What `issuer` says of `subject`, signed.
fn signed(issuer: &KeyPair, subject: &KeyPair, claims: Value) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let body = json!({
        "jti": "test", "iat": 1_700_000_000, "name": "test",
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": claims,
    });
    let text = format!("{}.{}", part(header), part(body));
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn account(operator: &KeyPair, account: &KeyPair, storage: i64) -> String {
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
    });
    let claims = json!({ "limits": limits, "type": "account", "version": 2 });
    signed(operator, account, claims)
}

fn credentials(account: &KeyPair, user: &KeyPair) -> String {
    let claims = json!({
        "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2,
    });
    let jwt = signed(account, user, claims);
    let seed = user.seed().unwrap();
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

#[tokio::test]
async fn a_credentials_file_says_who_one_is() {
    let operator = KeyPair::new_operator();
    let (ours, system) = (KeyPair::new_account(), KeyPair::new_account());
    let trusted = signed(
        &operator,
        &operator,
        json!({ "type": "operator", "version": 2 }),
    );
    let config = format!(
        "operator: {trusted}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}: {}\n{}: {}\n}}\n",
        system.public_key(),
        ours.public_key(),
        account(&operator, &ours, -1),
        system.public_key(),
        account(&operator, &system, 0),
    );
    let nats = NatsOptions::new().more(&config).start();
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        format!("nats://{}/shop?creds={}", nats.endpoint(0), path.display())
    };
    let user = credentials(&ours, &KeyPair::new_user());
    let store = open(&url("user.creds", &user)).await.unwrap();
    create(&*store, "k").await;
    let again = store.dedicated().unwrap();
    assert!(again.get("k").await.unwrap().is_some());
    let told = format!("{store:?} {:?}", store.info());
    assert!(!told.contains("creds"), "{told}");

    let stranger = credentials(&KeyPair::new_account(), &KeyPair::new_user());
    let reason = denial(bounded(open(&url("stranger.creds", &stranger))).await);
    assert!(reason.contains("rejects this user"), "{reason}");
    assert!(reason.contains("NATS_CREDS"), "{reason}");
}
