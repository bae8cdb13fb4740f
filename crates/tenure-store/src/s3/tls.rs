//! Whom to trust.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::error::StoreError;

/// TLS that trusts what is in the file, or else what this machine trusts.
pub(super) fn config(ca: Option<&str>) -> Result<ClientConfig, StoreError> {
    let certs = match ca {
        None => rustls_native_certs::load_native_certs().certs,
        Some(path) => CertificateDer::pem_file_iter(Path::new(path))
            .and_then(Iterator::collect)
            .map_err(|e| {
                StoreError::denied(format!(
                    "AWS_CA_BUNDLE {path:?} cannot be used: {e}; name a PEM file with certificates"
                ))
            })?,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| StoreError::denied(format!("TLS cannot be set up: {e}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
