//! TLS client configurations, one per distinct set of options.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

/// What a user may choose about TLS. PEM contents, not paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsProfile {
    pub verify: bool,
    pub ca_pem: Option<Arc<[u8]>>,
    pub cert_pem: Option<Arc<[u8]>>,
    pub key_pem: Option<Arc<[u8]>>,
}

impl Default for TlsProfile {
    fn default() -> Self {
        Self { verify: true, ca_pem: None, cert_pem: None, key_pem: None }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the CA file holds no usable certificate: {0}")]
    Ca(String),
    #[error("the client certificate or key cannot be used: {0}")]
    Identity(String),
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// Configurations share their session caches, so they are made once per profile.
#[derive(Debug, Default)]
pub struct TlsConfigs {
    made: HashMap<TlsProfile, Arc<ClientConfig>>,
}

impl TlsConfigs {
    pub fn get(&mut self, profile: &TlsProfile) -> Result<Arc<ClientConfig>, TlsError> {
        if let Some(config) = self.made.get(profile) {
            return Ok(config.clone());
        }
        let config = Arc::new(configure(profile)?);
        self.made.insert(profile.clone(), config.clone());
        Ok(config)
    }
}

pub fn configure(profile: &TlsProfile) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.to_string()))?;
    let builder = if profile.verify {
        let roots = Arc::new(roots(profile.ca_pem.as_deref())?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| TlsError::Setup(error.to_string()))?;
        builder.with_webpki_verifier(verifier)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
    };
    let mut config = match (&profile.cert_pem, &profile.key_pem) {
        (Some(cert), Some(key)) => {
            let chain = CertificateDer::pem_slice_iter(cert)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| TlsError::Identity(error.to_string()))?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| TlsError::Identity(error.to_string()))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| TlsError::Identity(error.to_string()))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(TlsError::Identity("certificate and key go together".to_owned())),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn roots(ca_pem: Option<&[u8]>) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    if let Some(pem) = ca_pem {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| TlsError::Ca(error.to_string()))?;
            store.add(certificate).map_err(|error| TlsError::Ca(error.to_string()))?;
        }
        if store.is_empty() {
            return Err(TlsError::Ca("no PEM certificate found".to_owned()));
        }
        return Ok(store);
    }
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if store.is_empty() {
        // A machine without a trust store of its own: Mozilla's, as shipped.
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(store)
}

/// `verify=False`: any certificate passes; signatures are still checked.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What to tell people of a failed handshake.
#[must_use]
pub fn describe(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => "the server does not speak TLS".to_owned(),
        _ => error.to_string(),
    }
}

/// Whether an error came from the TLS layer rather than from the socket under it.
#[must_use]
pub fn is_tls_error(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}
