//! Whom a link over TLS trusts.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio_tungstenite::Connector;

/// The connector for one file of authorities; without one, the public authorities.
pub(super) fn connector(ca_file: Option<&Path>) -> anyhow::Result<Option<Connector>> {
    let Some(path) = ca_file else {
        // Fails when the program has chosen one before; that one is used then.
        aws_lc_rs::default_provider().install_default().ok();
        return Ok(None);
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path)
        .with_context(|| format!("cannot read the authorities in {}", path.display()))?;
    for certificate in certificates {
        let certificate = certificate
            .with_context(|| format!("{} is not a PEM file of certificates", path.display()))?;
        roots.add(certificate).context("an authority is not usable")?;
    }
    anyhow::ensure!(!roots.is_empty(), "{} holds no certificate", path.display());
    let config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .context("the TLS library offers no protocol version")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(Connector::Rustls(Arc::new(config))))
}
