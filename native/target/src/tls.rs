//! Certificates and the TLS side of the server.

use std::sync::Arc;

use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// What the server shows to its clients, and what it asks of them; all in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificates_pem: Vec<u8>,
    pub key_pem: Vec<u8>,
    /// Clients must present a certificate signed by one of these, if given.
    pub client_ca_pem: Option<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("no certificate in the PEM text given as {0}")]
    NoCertificate(&'static str),
    #[error("the PEM text given as {what} cannot be read: {why}")]
    Pem { what: &'static str, why: String },
    #[error("certificate and key cannot be used: {0}")]
    Unusable(String),
    #[error("a self-signed certificate could not be made: {0}")]
    SelfSigned(String),
}

/// A certificate for `names` (host names or addresses) and its key, in PEM.
pub fn self_signed(names: Vec<String>) -> Result<(String, String), TlsError> {
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|error| TlsError::SelfSigned(error.to_string()))?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}

/// What connections are accepted with; `alpn` are the protocols that are spoken on them.
pub fn server_config(identity: &Identity, alpn: &[&[u8]]) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match &identity.client_ca_pem {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, "client CA")? {
                roots.add(certificate).map_err(unusable)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(unusable)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates(&identity.certificates_pem, "certificate")?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key_pem)
        .map_err(|error| TlsError::Pem { what: "key", why: error.to_string() })?;
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Pem { what, why: error.to_string() })?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate(what));
    }
    Ok(found)
}

fn unusable(error: impl std::fmt::Display) -> TlsError {
    TlsError::Unusable(error.to_string())
}
