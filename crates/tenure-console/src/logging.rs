//! Log lines on standard error.

use std::io;

use tracing_subscriber::EnvFilter;

/// Checks a filter without starting to log.
///
/// # Errors
///
/// If the filter is invalid.
pub fn check(filter: &str) -> Result<(), String> {
    let parsed = EnvFilter::try_new(filter);
    parsed.map(drop).map_err(|e| e.to_string())
}

/// Starts logging with a filter such as `info` or `tenure=debug`.
///
/// # Errors
///
/// If the filter is invalid.
pub fn start(filter: &str) -> Result<(), String> {
    let mut filter = filter.to_owned();
    // The store reports connection errors itself, once and with advice; the NATS client repeats them.
    if !filter.contains("async_nats") {
        filter.push_str(",async_nats=off");
    }
    let filter = EnvFilter::try_new(filter).map_err(|e| e.to_string())?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
    Ok(())
}
