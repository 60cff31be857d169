//! `idemp receive`: serves one webhook and appends each event once to a file.

mod out;
mod store;

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, post};
use idemp_core::Secrets;
use idemp_receiver::{Event, HandlerError, MemoryStore, Receiver, ReceiverConfig, ReceiverLayer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, complain, say};
use crate::secret::AcceptedSecrets;
use crate::{runtime, signals, times};
use out::Out;
use store::StoreArg;

const HEALTH: &str = "/healthz";

/// How long connections may take to end once we are asked to. A handler has 4 s at most.
const SHUTDOWN: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,

    #[command(flatten)]
    secrets: AcceptedSecrets,

    /// Where claims are kept: memory, or sqlite:PATH to survive a restart
    #[arg(long, value_name = "STORE", default_value = "memory", value_parser = StoreArg::parse)]
    store: StoreArg,

    /// Append events to this file (default: standard output)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// The path of the webhook
    #[arg(long, value_name = "PATH", default_value = "/webhooks/langchain", value_parser = route)]
    path: String,

    /// Take only requests with good Standard Webhooks headers, which cover key and time as well as the body
    #[arg(long)]
    require_standard_webhooks: bool,

    /// How long a processed event is remembered
    #[arg(long, value_name = "D", default_value = "24h", value_parser = times::duration)]
    ttl: Duration,

    /// How long a claim holds without news of its owner; after a crash copies are put off for so long
    #[arg(long, value_name = "D", default_value = "6s", value_parser = times::duration)]
    lease: Duration,

    /// The largest body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024)]
    max_body: usize,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let secrets = args.secrets.load()?;
    let receiver = receiver(args, &secrets)?;
    let out = match &args.out {
        Some(path) => Out::append_to(path)?,
        None => Out::stdout()?,
    };
    runtime()?.block_on(async {
        let stop = signals::watch()?;
        let cannot =
            |error: std::io::Error| Failure::usage(format_args!("cannot listen on {}", args.listen)).because(&error);
        let listener = TcpListener::bind(args.listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        // Scripts wait for this line.
        say(format_args!("listening on http://{address}"));
        serve(listener, router(args, receiver.clone(), out), stop).await?;
        // Handlers run in tasks of their own, and some of their clients may have hung up.
        receiver.drain().await;
        Ok(Exit::Done)
    })
}

fn receiver(args: &Args, secrets: &Secrets) -> Result<Receiver, Failure> {
    let config = ReceiverConfig {
        ttl: args.ttl,
        lease: args.lease,
        body_limit: args.max_body,
        require_standard_webhooks: args.require_standard_webhooks,
        ..ReceiverConfig::default()
    };
    config
        .check()
        .map_err(|error| Failure::usage("configuration").because(&error))?;
    let receiver = match &args.store {
        StoreArg::Memory => Receiver::new(MemoryStore::new(), secrets, config),
        #[cfg(feature = "sqlite")]
        StoreArg::Sqlite(path) => {
            let store = idemp_receiver::SqliteStore::open(path)
                .map_err(|error| Failure::usage(format_args!("cannot open {}", args.store)).because(&error))?;
            Receiver::new(store, secrets, config)
        }
        #[cfg(not(feature = "sqlite"))]
        StoreArg::Sqlite(_) => {
            return Err(Failure::usage(
                "this build has no SQLite: build idemp-cli with the feature sqlite",
            ));
        }
    };
    receiver.map_err(|error| Failure::usage("configuration").because(&error))
}

fn router(args: &Args, receiver: Receiver, out: Out) -> Router {
    let handler = move |event: Event| async move {
        out.write(&event).await.map_err(|error| {
            tracing::error!(key = event.key(), %error, "an event could not be written");
            HandlerError::Failed
        })
    };
    let health = || async { ([(CONTENT_TYPE, "application/json")], r#"{"status":"ok"}"#) };
    Router::new()
        .route(&args.path, post(handler).route_layer(ReceiverLayer::new(receiver)))
        .route(HEALTH, get(health))
}

/// Serves until asked to stop; then lets requests in flight end.
async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> Result<(), Failure> {
    let server = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN).await;
    };
    tokio::select! {
        served = server.into_future() => served.map_err(|error| Failure::failed("cannot serve").because(&error)),
        () = overdue => {
            complain("warning: some connections did not end in time");
            Ok(())
        }
    }
}

/// A path that the router takes as it is.
fn route(path: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    if !path.starts_with('/') || !path.bytes().all(plain) {
        Err("not a / followed by letters, digits, / - . _ ~")
    } else if path == HEALTH {
        Err("taken by the health check")
    } else {
        Ok(path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_plain() {
        assert_eq!(route("/webhooks/langchain"), Ok("/webhooks/langchain".to_owned()));
        for path in ["", "webhooks", "/healthz", "/{id}", "/*a", "/:a", "/a?b", "/a b"] {
            assert!(route(path).is_err(), "{path}");
        }
    }
}
