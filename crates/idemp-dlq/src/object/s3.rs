//! A bucket, with TLS by rustls and ring and the credentials of the environment.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{HttpClient, HttpConnector};
use object_store::limit::LimitStore;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, Error, ObjectStore, RetryConfig};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use super::fault;
use crate::{StoreError, StoreErrorKind as Kind};

/// For credentials to be had, and for the bucket to answer at the start.
const OPEN_WITHIN: Duration = Duration::from_secs(15);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How many requests are under way at once; others wait for their turn, which takes nothing from their time.
const AT_ONCE: usize = 64;
/// For one request, from its start to the last byte of the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Which bucket, and how. Start from [`S3Config::new`] and change what differs.
///
/// Credentials come from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, else
/// `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`, else what a container's `AWS_CONTAINER_CREDENTIALS_*` name, else
/// the role of the instance, unless `AWS_EC2_METADATA_DISABLED` is `true`. Profile files are not read.
///
/// `Debug` does not show the endpoint, which may be a URL with a password in it until it is refused.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Config {
    /// The bucket, which has to exist.
    pub bucket: String,
    /// The folder in it, without a slash at either end; `""`, the default, for none.
    pub prefix: String,
    /// Where to send instead of AWS, `https` or `http`: a server that speaks S3. By default `AWS_ENDPOINT_URL_S3` or
    /// `AWS_ENDPOINT_URL`, else AWS's own endpoint of the region. The bucket is part of the path, as such servers want it.
    pub endpoint: Option<String>,
    /// The bucket's region. By default `AWS_REGION` or `AWS_DEFAULT_REGION`, else `us-east-1`.
    pub region: Option<String>,
    /// Whether an endpoint may be `http`, where everybody on the way can read and change what is sent. Off by default.
    pub allow_http: bool,
}

impl S3Config {
    /// The defaults, for this bucket.
    #[must_use]
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            prefix: String::new(),
            endpoint: None,
            region: None,
            allow_http: false,
        }
    }
}

impl fmt::Debug for S3Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Config")
            .field("bucket", &self.bucket)
            .field("prefix", &self.prefix)
            .field("region", &self.region)
            .field("allow_http", &self.allow_http)
            .finish_non_exhaustive()
    }
}

/// Opens a bucket and looks whether it is there.
pub(super) async fn open(config: &S3Config) -> Result<LimitStore<AmazonS3>, StoreError> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&config.bucket)
        .with_allow_http(config.allow_http)
        // One request for one object, whose refusal is its status.
        .with_disable_bulk_delete(true)
        .with_retry(RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(50),
                max_backoff: Duration::from_secs(1),
                ..BackoffConfig::default()
            },
            max_retries: 3,
            retry_timeout: ANSWER_WITHIN,
        });
    let endpoint = config.endpoint.clone();
    let endpoint = endpoint
        .or_else(|| environment("AWS_ENDPOINT_URL_S3"))
        .or_else(|| environment("AWS_ENDPOINT_URL"));
    if let Some(endpoint) = endpoint {
        if !config.allow_http && !endpoint.starts_with("https://") {
            return Err(cannot_open("the endpoint is not https, and http is not allowed"));
        }
        // The client's errors tell the whole of it.
        let host = endpoint
            .split("://")
            .nth(1)
            .and_then(|rest| rest.split(['/', '?', '#']).next());
        if host.is_some_and(|host| host.contains('@')) {
            return Err(cannot_open("the endpoint must not hold a user name or password"));
        }
        builder = builder.with_endpoint(endpoint);
    }
    let region = config.region.clone();
    if let Some(region) = region
        .or_else(|| environment("AWS_REGION"))
        .or_else(|| environment("AWS_DEFAULT_REGION"))
    {
        builder = builder.with_region(region);
    }
    let store = builder
        .with_http_connector(Connector { tls: tls()? })
        .build()
        .map_err(|error| cannot_open("the configuration makes no sense").with_source(error))?;
    if !has_credentials(environment) && environment("AWS_EC2_METADATA_DISABLED").is_some_and(|is| is == "true") {
        return Err(cannot_open(NO_CREDENTIALS));
    }
    let probe = async {
        let credential = store.credentials().get_credential().await;
        credential.map_err(|error| cannot_open(NO_CREDENTIALS).with_source(error))?;
        is_there(&store, &config.prefix).await
    };
    match tokio::time::timeout(OPEN_WITHIN, probe).await {
        Ok(probed) => probed.map(|()| LimitStore::new(store, AT_ONCE)),
        Err(_elapsed) => Err(cannot_open(
            "no answer from the object store, or none about credentials",
        )),
    }
}

const NO_CREDENTIALS: &str = "no credentials for the object store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";

fn has_credentials(environment: impl Fn(&str) -> Option<String>) -> bool {
    [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ]
    .iter()
    .any(|name| environment(name).is_some())
}

/// Asks for one name.
async fn is_there(store: &AmazonS3, prefix: &str) -> Result<(), StoreError> {
    let prefix = Path::from(prefix);
    let Err(error) = store.list(Some(&prefix)).try_next().await else {
        return Ok(());
    };
    let error = fault::error(error);
    Err(match error.kind() {
        Kind::Unavailable => cannot_open("the object store cannot be reached").with_source(error),
        _ => error,
    })
}

fn cannot_open(message: &'static str) -> StoreError {
    StoreError::new(Kind::CannotOpen, message)
}

/// Makes the client's connections. The client comes without TLS, so that there is one TLS library for everything.
#[derive(Debug)]
struct Connector {
    tls: ClientConfig,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options
            .get_config_value(&ClientConfigKey::AllowHttp)
            .is_some_and(|allowed| allowed == "true");
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .https_only(!allow_http)
            .redirect(reqwest::redirect::Policy::none())
            // The object store's client tries again.
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .pool_idle_timeout(Duration::from_secs(4))
            .build();
        client.map(HttpClient::new).map_err(|error| Error::Generic {
            store: "S3",
            source: Box::new(error),
        })
    }
}

/// Trusts the authorities that the system trusts. Process-wide defaults stay the application's choice.
fn tls() -> Result<ClientConfig, StoreError> {
    let mut roots = RootCertStore::empty();
    // Stores hold certificates that no longer parse; they are of no use and do no harm.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| cannot_open("TLS could not be set up").with_source(error))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
