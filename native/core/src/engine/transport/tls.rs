//! TLS client configurations, one per distinct set of options.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_name, WebPkiServerVerifier};
use rustls::crypto::{ring, verify_tls12_signature, verify_tls13_signature, CryptoProvider};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::quic;

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

/// The protocols to offer, the preferred one first.
pub type Alpn = &'static [&'static [u8]];

/// Configurations share their session caches, so they are made once per profile and offer.
#[derive(Debug, Default)]
pub struct TlsConfigs {
    made: HashMap<(TlsProfile, Alpn), Arc<ClientConfig>>,
    quic: HashMap<(TlsProfile, Alpn), quinn_proto::ClientConfig>,
}

impl TlsConfigs {
    pub fn get(&mut self, profile: &TlsProfile, alpn: Alpn) -> Result<Arc<ClientConfig>, TlsError> {
        let key = (profile.clone(), alpn);
        if let Some(config) = self.made.get(&key) {
            return Ok(config.clone());
        }
        let config = Arc::new(configure(profile, alpn)?);
        self.made.insert(key, config.clone());
        Ok(config)
    }

    pub fn get_quic(
        &mut self,
        profile: &TlsProfile,
        alpn: Alpn,
    ) -> Result<quinn_proto::ClientConfig, TlsError> {
        let key = (profile.clone(), alpn);
        if let Some(config) = self.quic.get(&key) {
            return Ok(config.clone());
        }
        let config = quic::configure(self.get(profile, alpn)?)?;
        self.quic.insert(key, config.clone());
        Ok(config)
    }
}

pub fn configure(profile: &TlsProfile, alpn: Alpn) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.to_string()))?;
    let builder = if profile.verify {
        let given = certificates(profile.ca_pem.as_deref())?;
        let roots = Arc::new(roots(given.as_deref())?);
        let chains = WebPkiServerVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|error| TlsError::Setup(error.to_string()))?;
        match given {
            None => builder.with_webpki_verifier(chains),
            Some(given) => {
                let verifier = Arc::new(GivenCertificates { given, chains });
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        }
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
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// The certificates of a CA file, of which there must be one.
fn certificates(ca_pem: Option<&[u8]>) -> Result<Option<Vec<CertificateDer<'static>>>, TlsError> {
    let Some(pem) = ca_pem else { return Ok(None) };
    let given = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Ca(error.to_string()))?;
    if given.is_empty() {
        return Err(TlsError::Ca("no PEM certificate found".to_owned()));
    }
    Ok(Some(given))
}

fn roots(given: Option<&[CertificateDer<'static>]>) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    if let Some(given) = given {
        for certificate in given {
            store.add(certificate.clone()).map_err(|error| TlsError::Ca(error.to_string()))?;
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

/// `ca=FILE`: a chain to one of these certificates is trusted, and so is a server that presents one
/// of them itself. Most self-signed certificates call themselves an authority, which no chain may
/// have at its end.
#[derive(Debug)]
struct GivenCertificates {
    given: Vec<CertificateDer<'static>>,
    chains: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for GivenCertificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen =
            self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp, now);
        match seen {
            // Only what is wrong with the chain: not an expired certificate, nor another name.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            )) if self.given.iter().any(|one| one == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            seen => seen,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
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
        Some(rustls::Error::InvalidCertificate(cause)) => describe_certificate(cause),
        _ if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the server closed the connection during the handshake".to_owned()
        }
        _ => error.to_string(),
    }
}

fn describe_certificate(cause: &CertificateError) -> String {
    match cause {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "certificate expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "certificate is not valid yet".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| plain_name(name)).collect();
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            format!("certificate is for {names}, not {}", expected.to_str())
        }
        CertificateError::UnknownIssuer => {
            "unknown issuer: pass ca=... with the certificate of its authority".to_owned()
        }
        CertificateError::Revoked => "certificate revoked".to_owned(),
        CertificateError::BadSignature => "certificate has a wrong signature".to_owned(),
        other => format!("certificate refused: {other}"),
    }
}

/// `shop.test` of `DnsName("shop.test")`, as the library has it.
fn plain_name(name: &str) -> &str {
    let inner = name.split_once('(').map_or(name, |(_, inner)| inner.trim_end_matches(')'));
    inner.trim_matches('"')
}

/// Whether an error came from the TLS layer rather than from the socket under it.
#[must_use]
pub fn is_tls_error(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::describe;
    use rustls::{CertificateError, Error};
    use rustls_pki_types::ServerName;
    use std::io;

    #[test]
    fn a_refused_certificate_is_described_in_words() {
        let other = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("shop.test").unwrap(),
            presented: vec!["DnsName(\"other.test\")".to_owned()],
        };
        let described = [
            (CertificateError::Expired, "certificate expired"),
            (other, "certificate is for other.test, not shop.test"),
            (CertificateError::UnknownIssuer, "unknown issuer: pass ca="),
        ];
        for (cause, words) in described {
            let error =
                io::Error::new(io::ErrorKind::InvalidData, Error::InvalidCertificate(cause));
            assert!(describe(&error).starts_with(words), "{}", describe(&error));
        }
    }
}
