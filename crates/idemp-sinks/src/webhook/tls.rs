//! TLS by rustls with ring, set up per client: the process-wide default stays the application's choice.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};

use super::error::{WebhookError, WebhookErrorKind as Kind};

/// A client that trusts the system's authorities and those of the PEM text.
///
/// `required` says that there is no use in a client that trusts nobody.
pub(super) fn client(pem: &[u8], required: bool) -> Result<ClientConfig, WebhookError> {
    let mut roots = RootCertStore::empty();
    add_pem(&mut roots, pem)?;
    let system = rustls_native_certs::load_native_certs();
    // Stores hold certificates that no longer parse; they are of no use and do no harm.
    roots.add_parsable_certificates(system.certs);
    if roots.is_empty() && required {
        let why = "the system trusts no authority: install its certificates, or give some";
        return Err(WebhookError::new(Kind::RootCertificates, why));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| WebhookError::new(Kind::Client, "TLS could not be set up").with_source(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn add_pem(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), WebhookError> {
    if pem.is_empty() {
        return Ok(());
    }
    let fault = |why| WebhookError::new(Kind::RootCertificates, why);
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| fault("not readable as PEM").with_source(error))?;
        roots
            .add(certificate)
            .map_err(|error| fault("holds a certificate that is none").with_source(error))?;
    }
    if roots.len() == before {
        return Err(fault("holds no certificate"));
    }
    Ok(())
}

/// What is wrong and what to do about it.
pub(super) fn explain(error: &Error) -> &'static str {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "certificate expired: renew the receiver's certificate, or set this machine's clock"
        }
        Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "certificate not valid yet: set this machine's clock"
        }
        Error::InvalidCertificate(Bad::UnknownIssuer) => {
            "unknown issuer: add the CA that signed the receiver's certificate to root_certificates"
        }
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "name mismatch: the receiver's certificate is for another host than the URL names"
        }
        Error::InvalidCertificate(Bad::Revoked) => "certificate revoked: replace the receiver's certificate",
        Error::InvalidCertificate(_) => "certificate not accepted: check the receiver's certificate and its chain",
        Error::InvalidMessage(_) => "peer speaks no TLS: check scheme and port of the URL",
        Error::PeerIncompatible(_)
        | Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion) => {
            "no TLS version or cipher in common: the receiver must offer TLS 1.2 or 1.3"
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "client certificate wanted: the receiver asks for one, which is not supported"
        }
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "name not served: the receiver has no certificate for the URL's host"
        }
        Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "no HTTP version in common: the receiver must offer HTTP/1.1 or HTTP/2"
        }
        _ => "TLS handshake failed: check the receiver's TLS set-up",
    }
}
