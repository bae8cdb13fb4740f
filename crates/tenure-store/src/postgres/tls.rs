//! TLS as libpq's `sslmode` means it.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use super::socket::WatchedSocket;
use crate::error::StoreError;

/// How much is asked of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS where the server has it; nothing is checked.
    Prefer,
    /// TLS; nothing is checked unless a root certificate is named.
    Require,
    /// TLS, and the certificate must be signed by somebody trusted.
    VerifyCa,
    /// TLS, and the certificate must also be for this host.
    VerifyFull,
}

/// What a URL says about TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsSettings {
    pub(super) mode: TlsMode,
    /// A file of trusted certificates, or `system`.
    pub(super) root: Option<String>,
    /// The client's certificate and key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

impl TlsSettings {
    /// The settings that every connection is made with.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, StoreError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let broken = |e: rustls::Error| StoreError::denied(format!("TLS cannot be set up: {e}"));
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(broken)?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(provider)?);
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let certs = certificates(cert)?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| bad_file(key, &e))?;
                builder.with_client_auth_cert(certs, secret).map_err(|e| {
                    StoreError::denied(format!(
                        "sslcert {} cannot be used with sslkey {}: {e}",
                        cert.display(),
                        key.display()
                    ))
                })?
            }
        };
        Ok(Arc::new(config))
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Arc<Verifier>, StoreError> {
        let by = match (self.mode, &self.root) {
            (TlsMode::Disable | TlsMode::Prefer, _) | (TlsMode::Require, None) => None,
            // As libpq does: whoever names a root certificate wants it to be used.
            (TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull, root) => {
                let roots = Arc::new(roots(root.as_deref())?);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
                let no_roots =
                    |e| StoreError::denied(format!("the trusted certificates cannot be used: {e}"));
                Some(verifier.build().map_err(no_roots)?)
            }
        };
        Ok(Arc::new(Verifier {
            by,
            any_name: self.mode != TlsMode::VerifyFull,
            provider,
        }))
    }
}

fn roots(named: Option<&str>) -> Result<RootCertStore, StoreError> {
    let mut store = RootCertStore::empty();
    let own = std::env::home_dir().map(|home| home.join(".postgresql/root.crt"));
    let file = match named {
        Some("system") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => own.filter(|path| path.exists()),
    };
    let certs = match &file {
        Some(path) => certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    store.add_parsable_certificates(certs);
    if store.is_empty() {
        let place = file.map_or("this system".to_owned(), |path| path.display().to_string());
        return Err(StoreError::denied(format!(
            "{place} has no trusted certificates; name a file of them with sslrootcert="
        )));
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| bad_file(path, &e))
}

fn bad_file(path: &Path, e: &rustls::pki_types::pem::Error) -> StoreError {
    StoreError::denied(format!(
        "{} cannot be read as a PEM file: {e}",
        path.display()
    ))
}

/// Checks what the mode asks for and no more.
#[derive(Debug)]
struct Verifier {
    by: Option<Arc<WebPkiServerVerifier>>,
    any_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(by) = &self.by else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified =
            by.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The chain is checked before the name.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

/// Makes one connection secure.
pub(super) struct TlsUpgrade {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

impl TlsConnect<WatchedSocket> for TlsUpgrade {
    type Stream = TlsConnection;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsConnection>> + Send>>;

    fn connect(self, wire: WatchedSocket) -> Self::Future {
        Box::pin(async move {
            let connector = TlsConnector::from(self.config);
            Ok(TlsConnection(connector.connect(self.name, wire).await?))
        })
    }
}

/// A connection under TLS.
pub(super) struct TlsConnection(tokio_rustls::client::TlsStream<WatchedSocket>);

impl TlsStream for TlsConnection {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
