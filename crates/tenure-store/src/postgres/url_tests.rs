use super::*;

fn parse(url: &str) -> Result<ConnectionTarget, StoreError> {
    ConnectionTarget::parse_with(url, &|_| None)
}

fn refusal(url: &str) -> String {
    parse(url).unwrap_err().to_string()
}

fn tcp(name: &str, port: u16) -> ServerHost {
    ServerHost::Tcp {
        name: name.to_owned(),
        port,
    }
}

#[test]
fn a_url_in_the_spelling_of_libpq_is_understood() {
    let target = parse("postgres://ann:a%40b@db:5433/shop?sslmode=verify-full&schema=own").unwrap();
    assert_eq!(target.hosts, [tcp("db", 5433)]);
    assert_eq!(target.user.as_deref(), Some("ann"));
    assert_eq!(target.password, Some(Secret("a@b".to_owned())));
    assert_eq!(target.dbname.as_deref(), Some("shop"));
    assert_eq!(target.tls.mode, TlsMode::VerifyFull);
    assert_eq!(target.names.shown(), "own.kv");
    assert_eq!(target.shown, "postgres://ann@db:5433/shop?schema=own");
}

#[test]
fn several_hosts_and_sockets_and_six_part_addresses_are_understood() {
    let target = parse("postgresql://db1,db2:5433,[::1]:5434/shop").unwrap();
    let wanted = [tcp("db1", 5432), tcp("db2", 5433), tcp("::1", 5434)];
    assert_eq!(target.hosts, wanted);
    let socket = ServerHost::Unix {
        directory: "/run/pg".to_owned(),
        port: 5433,
    };
    for url in [
        "postgres:///shop?host=/run/pg&port=5433",
        "postgres://%2Frun%2Fpg:5433/shop",
    ] {
        let hosts = parse(url).unwrap().hosts;
        assert_eq!(hosts, std::slice::from_ref(&socket), "{url}");
    }
}

#[test]
fn the_environment_fills_in_what_the_url_leaves_out() {
    let env = |name: &str| match name {
        "PGUSER" => Some("ann".to_owned()),
        "PGPASSWORD" => Some("secret".to_owned()),
        "PGSSLMODE" => Some("require".to_owned()),
        _ => None,
    };
    let target = ConnectionTarget::parse_with("postgres://db/shop", &env).unwrap();
    assert_eq!(target.user.as_deref(), Some("ann"));
    assert_eq!(target.password, Some(Secret("secret".to_owned())));
    assert_eq!(target.tls.mode, TlsMode::Require);
    let target =
        ConnectionTarget::parse_with("postgres://bob:own@db/shop?sslmode=disable", &env).unwrap();
    assert_eq!(target.user.as_deref(), Some("bob"));
    assert_eq!(target.password, Some(Secret("own".to_owned())));
    assert_eq!(target.tls.mode, TlsMode::Disable);
}

#[test]
fn what_cannot_be_right_is_refused_without_repeating_secrets() {
    for (url, wanted) in [
        ("postgres:db", "postgres://USER@HOST:PORT/DATABASE"),
        ("postgres://a:hunter2@db:70000/x", "the port \"70000\""),
        ("postgres://a:hunter2@db/x?sslmode=yes", "sslmode \"yes\""),
        (
            "postgres://a:hunter2@db/x?fast=1",
            "unknown parameter \"fast\"",
        ),
        ("postgres://a:hunter2@db/x?schema=A", "schema \"A\""),
        (
            "postgres://a:hunter2@db/x?connect_timeout=soon",
            "connect_timeout",
        ),
        ("postgres://a:hunter2@db/x?sslcert=c", "name both"),
        ("postgres://a:hunter2@db/%x", "two hexadecimal digits"),
    ] {
        let reason = refusal(url);
        assert!(reason.contains(wanted), "{reason}");
        assert!(!reason.contains("hunter2"), "{reason}");
    }
}

#[test]
fn a_password_is_in_no_debug_output() {
    let target = parse("postgres://a:hunter2@db/x").unwrap();
    assert!(!format!("{target:?}").contains("hunter2"));
}
