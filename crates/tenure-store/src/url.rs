//! Opening a store by its URL.

use std::sync::Arc;

use crate::error::StoreError;
#[cfg(feature = "etcd")]
use crate::etcd::EtcdStore;
use crate::memory::MemoryStore;
#[cfg(feature = "nats")]
use crate::nats::NatsStore;
#[cfg(feature = "postgres")]
use crate::postgres::{self, PostgresStore};
#[cfg(feature = "s3")]
use crate::s3::S3Store;
#[cfg(feature = "sqlite")]
use crate::sqlite::{HostCheck, SqliteStore};
use crate::store::{Store, StoreInfo};

/// What a user may write, for messages.
const KNOWN: &str = "memory:, memory:NAME, sqlite:PATH, etcd://HOST:PORT/PREFIX, \
                     nats://HOST:PORT/BUCKET, postgres://USER@HOST:PORT/DATABASE, s3://BUCKET/PREFIX";

/// Opens the store that `url` names.
///
/// | URL | store |
/// |---|---|
/// | `memory:` | a new store in this process |
/// | `memory:NAME` | the store of that name in this process |
/// | `sqlite:PATH` | a file, shared by the processes of one machine; made if it does not exist |
/// | `etcd://[USER[:PASSWORD]@]HOST:PORT[,…]/PREFIX`, `etcds://…` | the keys under a prefix of an etcd cluster |
/// | `nats://[USER:PASSWORD@]HOST:PORT[,…]/BUCKET`, `tls://…` | a JetStream bucket, made if it does not exist |
/// | `postgres://USER@HOST:PORT/DATABASE` | tables in a PostgreSQL database, made if they do not exist |
/// | `s3://BUCKET/PREFIX[?endpoint=…]` | objects under a prefix of a bucket that exists |
///
/// A URL that names nothing we know, a path that cannot be used and a file that may not be used are [`StoreError::Denied`].
pub async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    match parse(url)? {
        Target::Memory("") => Ok(Arc::new(MemoryStore::new())),
        Target::Memory(name) => Ok(Arc::new(MemoryStore::named(name))),
        #[cfg(feature = "sqlite")]
        Target::Sqlite { path, check } => Ok(Arc::new(SqliteStore::open_with(path, check).await?)),
        #[cfg(feature = "etcd")]
        Target::Etcd => Ok(Arc::new(EtcdStore::open(url).await?)),
        #[cfg(feature = "nats")]
        Target::Nats => Ok(Arc::new(NatsStore::open(url).await?)),
        #[cfg(feature = "postgres")]
        Target::Postgres => Ok(Arc::new(PostgresStore::open(url).await?)),
        #[cfg(feature = "s3")]
        Target::S3 => Ok(Arc::new(S3Store::open(url).await?)),
    }
}

/// Opens the store that `url` names if it is there. Never makes one: for those who only look.
pub async fn open_existing(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    #[cfg(feature = "sqlite")]
    if let Target::Sqlite { path, .. } = parse(url)?
        && let Err(e) = std::fs::metadata(path)
        && e.kind() == std::io::ErrorKind::NotFound
    {
        return Err(StoreError::denied(format!(
            "database {path} does not exist; check the path, or start a node or create a keyspace to create it"
        )));
    }
    #[cfg(feature = "nats")]
    if let Target::Nats = parse(url)? {
        return Ok(Arc::new(NatsStore::open_existing(url).await?));
    }
    #[cfg(feature = "postgres")]
    if let Target::Postgres = parse(url)? {
        return Ok(Arc::new(PostgresStore::open_existing(url).await?));
    }
    #[cfg(feature = "s3")]
    if let Target::S3 = parse(url)? {
        return Ok(Arc::new(S3Store::open_existing(url).await?));
    }
    open(url).await
}

/// What the store that `url` names says of itself, without opening it.
pub fn describe(url: &str) -> Result<StoreInfo, StoreError> {
    Ok(match parse(url)? {
        Target::Memory(name) => crate::memory::info(name),
        #[cfg(feature = "sqlite")]
        Target::Sqlite { path, .. } => crate::sqlite::info(std::path::Path::new(path)),
        #[cfg(feature = "etcd")]
        Target::Etcd => crate::etcd::info(url)?,
        #[cfg(feature = "nats")]
        Target::Nats => crate::nats::info(url)?,
        #[cfg(feature = "postgres")]
        Target::Postgres => postgres::describe(url)?,
        #[cfg(feature = "s3")]
        Target::S3 => crate::s3::info(url)?,
    })
}

/// What a URL names.
enum Target<'a> {
    Memory(&'a str),
    #[cfg(feature = "sqlite")]
    Sqlite {
        path: &'a str,
        check: HostCheck,
    },
    #[cfg(feature = "etcd")]
    Etcd,
    #[cfg(feature = "nats")]
    Nats,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "s3")]
    S3,
}

fn parse(url: &str) -> Result<Target<'_>, StoreError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(StoreError::denied(format!(
            "store URL {url:?} has no scheme; write one of: {KNOWN}"
        )));
    };
    match scheme {
        "memory" => Ok(Target::Memory(rest)),
        "sqlite" => parse_sqlite(url, rest),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Target::Etcd),
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => Err(StoreError::denied(format!(
            "store URL {:?} needs etcd support, which this build does not include; build with the feature `etcd`",
            redacted(url)
        ))),
        #[cfg(feature = "nats")]
        "nats" | "tls" => Ok(Target::Nats),
        #[cfg(not(feature = "nats"))]
        "nats" | "tls" => Err(StoreError::denied(format!(
            "store URL {:?} needs NATS support, which this build does not include; build with the feature `nats`",
            redacted(url)
        ))),
        "postgres" | "postgresql" => parse_postgres(url),
        #[cfg(feature = "s3")]
        "s3" => Ok(Target::S3),
        #[cfg(not(feature = "s3"))]
        "s3" => Err(StoreError::denied(format!(
            "store URL {:?} needs S3 support, which this build does not include; build with the feature `s3`",
            redacted(url)
        ))),
        _ => Err(StoreError::denied(format!(
            "store URL {:?} has the unknown scheme {scheme:?}; write one of: {KNOWN}",
            redacted(url)
        ))),
    }
}

#[cfg(feature = "sqlite")]
fn parse_sqlite<'a>(url: &str, path: &'a str) -> Result<Target<'a>, StoreError> {
    let (path, check) = match path.strip_suffix("?host=adopt") {
        Some(path) => (path, HostCheck::Adopt),
        None => (path, HostCheck::Refuse),
    };
    let problem = match path {
        "" => "names no file; write sqlite:PATH",
        ":memory:" => "cannot be shared; write memory: instead",
        _ if path.starts_with("//") && !path.starts_with("///") => {
            "has a host part; write sqlite:PATH with a single colon before the path"
        }
        _ => return Ok(Target::Sqlite { path, check }),
    };
    Err(StoreError::denied(format!("store URL {url:?} {problem}")))
}

#[cfg(not(feature = "sqlite"))]
fn parse_sqlite<'a>(url: &str, _path: &'a str) -> Result<Target<'a>, StoreError> {
    Err(StoreError::denied(format!(
        "store URL {url:?} needs SQLite support, which this build does not include; build with the feature `sqlite`"
    )))
}

#[cfg(feature = "postgres")]
fn parse_postgres(_url: &str) -> Result<Target<'static>, StoreError> {
    // What it names is read where it is opened.
    Ok(Target::Postgres)
}

#[cfg(not(feature = "postgres"))]
fn parse_postgres(url: &str) -> Result<Target<'static>, StoreError> {
    Err(StoreError::denied(format!(
        "store URL {:?} needs PostgreSQL support, which this build does not include; build with the feature `postgres`",
        redacted(url)
    )))
}

/// The URL without what stands between `//` and `@`, and without its query: either may hold a secret.
pub fn redacted(url: &str) -> String {
    let (url, query) = match url.split_once('?') {
        Some((url, _)) => (url, "?…"),
        None => (url, ""),
    };
    let Some((scheme, rest)) = url.split_once("//") else {
        return format!("{url}{query}");
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}//…@{host}{query}"),
        None => format!("{url}{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(url: &str) -> String {
        match open(url).await {
            Err(StoreError::Denied { reason }) => reason,
            other => panic!("{url} should be refused, but: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_refused_url_names_the_input_and_what_would_work() {
        for (url, wanted) in [
            ("shop.db", "has no scheme"),
            ("redis://localhost", "unknown scheme \"redis\""),
        ] {
            let reason = refusal(url).await;
            assert!(reason.contains(&format!("{url:?}")), "{reason}");
            assert!(reason.contains(wanted), "{reason}");
            assert!(reason.contains("sqlite:PATH"), "{reason}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_sqlite_url_without_a_usable_path_is_refused_by_name() {
        for url in ["sqlite:", "sqlite::memory:", "sqlite://shop.db"] {
            let reason = refusal(url).await;
            assert!(reason.contains(&format!("{url:?}")), "{reason}");
        }
    }

    #[tokio::test]
    async fn secrets_are_not_repeated() {
        let reason = refusal("mysql://root:hunter2@db/x?password=hunter2").await;
        assert!(!reason.contains("hunter2"), "{reason}");
        assert!(reason.contains("mysql://…@db/x?…"), "{reason}");
    }

    #[tokio::test]
    async fn memory_opens_by_name() {
        let a = open("memory:memory_opens_by_name").await.unwrap();
        let b = open("memory:memory_opens_by_name").await.unwrap();
        assert_eq!(a.identity().await, b.identity().await);
        let c = open("memory:").await.unwrap();
        assert_ne!(a.identity().await, c.identity().await);
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn what_only_looks_makes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.db");
        let url = format!("sqlite:{}", path.display());
        let e = open_existing(&url).await.unwrap_err().to_string();
        assert!(e.contains("shop.db does not exist"), "{e}");
        assert!(!path.exists());
        let made = open(&url).await.unwrap();
        let found = open_existing(&url).await.unwrap();
        assert_eq!(made.identity().await, found.identity().await);
        assert_eq!(&describe(&url).unwrap(), found.info());
    }

    #[tokio::test]
    async fn a_memory_store_describes_itself_as_it_opens() {
        let opened = open("memory:described").await.unwrap();
        assert_eq!(&describe("memory:described").unwrap(), opened.info());
    }
}
