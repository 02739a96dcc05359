//! Who is believed to be the database: what `sslmode` says, with rustls.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tidewater_store::{StoreError, StoreErrorKind};
use tokio_postgres_rustls::MakeRustlsConnect;

const DURING: &str = "open the database";

/// Whose certificate is good enough. The file, if there is one, replaces the system's authorities.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trust {
    /// Any: the connection is encrypted, and nobody knows with whom.
    Anybody,
    /// One of an authority.
    Authority(Option<PathBuf>),
    /// One of an authority for this very host.
    Host(Option<PathBuf>),
}

/// What connections are encrypted with.
pub(crate) fn connector(trust: &Trust) -> Result<MakeRustlsConnect, StoreError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS cannot be set up", error))?;
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anybody => Arc::new(Lenient {
            provider,
            authority: None,
        }),
        Trust::Authority(root) => Arc::new(Lenient {
            authority: Some(verifier(root.as_ref(), &provider)?),
            provider,
        }),
        Trust::Host(root) => verifier(root.as_ref(), &provider)?,
    };
    let config = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn verifier(
    root: Option<&PathBuf>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, StoreError> {
    let mut roots = RootCertStore::empty();
    match root {
        Some(path) => {
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| unusable("the file of sslrootcert is not read", error))?;
            for certificate in certificates {
                roots
                    .add(certificate)
                    .map_err(|error| unusable("a certificate of sslrootcert is not read", error))?;
            }
        }
        None => {
            // Some may be unreadable, as long as not all are.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| unusable("there is no authority to trust: set sslrootcert", error))
}

fn unusable(
    detail: &str,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    let mut unusable = StoreError::new(StoreErrorKind::Unavailable, DURING).with_source(error);
    unusable.detail = Some(detail.to_owned());
    unusable
}

/// Takes a certificate for any host, and without an authority any certificate at all.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    authority: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else {
            return Ok(ServerCertVerified::assertion());
        };
        // The name is looked at last.
        match authority.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        ) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
